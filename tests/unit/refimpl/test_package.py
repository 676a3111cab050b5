"""What importing the package costs, and which way imports go."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl.distributed

ROOT = Path(refimpl.distributed.__file__).parents[1]
# Each module may import those before it.
ORDER = [
    "layout", "contract", "backend_options", "tensor_dict", "collectives", "group", "parallel_state",
    "bootstrap", "topology", "gatherer", "cohort", "life", "registry", "membership", "admission", "elastic", "joiner",
]  # fmt: skip


def imported(path: Path) -> list[str]:
    """Names of the modules that a file imports when it is loaded or later, not for type checking alone."""
    names = []
    tree = ast.parse(path.read_text())
    typing_only = {id(n) for b in ast.walk(tree) if isinstance(b, ast.If) and "TYPE_CHECKING" in ast.dump(b.test)
                   for n in ast.walk(b)}  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def test_imports_go_one_way() -> None:
    for position, name in enumerate(ORDER):
        allowed = {f"refimpl.distributed.{earlier}" for earlier in ORDER[:position]}
        found = {f"refimpl.distributed.{other}" for other in ORDER} & set(imported(ROOT / "distributed" / f"{name}.py"))
        assert found <= allowed, f"{name} imports {sorted(found - allowed)}"
    assert sorted(ORDER) == sorted(p.stem for p in (ROOT / "distributed").glob("[!_]*.py"))


def test_nothing_imports_the_simulator() -> None:
    for path in ROOT.rglob("*.py"):
        assert not [name for name in imported(path) if name.split(".")[0] == "simulator"], path


@pytest.mark.parametrize(
    "module", ["refimpl", "refimpl.distributed", "refimpl.distributed.layout", "refimpl.distributed.contract"]
)
def test_import_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, timeout=60, check=False).returncode == 0


def test_facade_offers_each_name_to_programs_and_to_type_checkers() -> None:
    tree = ast.parse(Path(refimpl.distributed.__file__).read_text())
    typed = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {*typed} - {"annotations", "TYPE_CHECKING", "Any"} == set(refimpl.distributed.__all__)
    assert all(hasattr(refimpl.distributed, name) for name in refimpl.distributed.__all__)
    with pytest.raises(AttributeError, match=r"module 'refimpl\.distributed' has no attribute 'get_mp_group'"):
        _ = refimpl.distributed.get_mp_group


def test_only_the_registry_is_module_level_state() -> None:
    """Names bound at module level to something mutable; upper case ones are constants by convention."""
    allowed = {"_STATES", "_TRACKER_LOCK", "logger", "__all__"}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                assert name in allowed or name.isupper() or name[0].isupper(), f"{path.name}: {name}"
