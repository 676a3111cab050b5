"""Imports go one way. The map in `simulator/__init__.py` is checked against the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("simulator", "refimpl")
TORCH_FREE = (
    "simulator.engine",
    "simulator.analysis",
    "simulator.report",
    "simulator.records",
    "simulator.memory_records",
    "simulator.barrier_model",
    "simulator.mooncake_model",
    "simulator.faults",
    "simulator.lint",
    *(
        f"simulator.exploration.{name}"
        for name in ("schedule", "wording", "recipes", "order", "plans", "shrinking", "swap")
    ),
)
MAY_IMPORT = {
    "simulator.engine": ("simulator.engine",),
    "simulator.barrier_model": (),
    "simulator.mooncake_model": ("simulator.barrier_model", "simulator.mooncake_model"),
    "simulator.records": ("simulator.engine", "simulator.records", "simulator.memory_records"),
    "simulator.memory_records": ("simulator.engine", "simulator.memory_records"),
    "simulator.faults": ("simulator.engine", "simulator.records", "simulator.memory_records", "simulator.faults"),
    "simulator.analysis": (
        "simulator.engine",
        "simulator.records",
        "simulator.memory_records",
        "simulator.barrier_model",
        "simulator.analysis",
    ),
    "simulator.lint": ("simulator.engine.errors", "simulator.cli", "simulator.lint"),
    "simulator.report": ("simulator.analysis", "simulator.report"),
}
PRINTS = (
    "simulator/report/",
    "simulator/cli.py",
    "simulator/run_command.py",
    "simulator/job_arguments.py",
    "simulator/progress.py",
    "simulator/lint/command.py",
)


@cache
def modules() -> dict[str, Path]:
    """All modules of both packages, by name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def runtime_nodes(node: ast.AST, *, functions: bool) -> Iterator[ast.AST]:
    """All nodes that run, without `if TYPE_CHECKING:`, with or without the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if typing_only or (inside and not functions):
            continue
        yield child
        yield from runtime_nodes(child, functions=functions)


def imported(name: str, *, functions: bool = False) -> set[str]:
    """Names of the modules that a module imports when it is loaded (or also when its functions run)."""
    out: set[str] = set()
    for node in runtime_nodes(tree(name), functions=functions):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            out |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in modules() else node.module for a in node.names
            }
    return out


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_no_module_imports_itself_through_others() -> None:
    """The graph of imports at load time has no cycle."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(imported(name) & modules().keys()):
                visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_lower_layer_imports_only_what_lies_below_it(package: str) -> None:
    """Upward imports are bugs."""
    for name in modules():
        if below(name, package):
            for other in imported(name, functions=True) & modules().keys():
                assert any(below(other, allowed) for allowed in MAY_IMPORT[package]), f"{name} imports {other}"


@pytest.mark.parametrize("package", TORCH_FREE)
def test_the_torch_free_layers_do_not_name_torch(package: str) -> None:
    """Neither at load time nor later."""
    for name in modules():
        if below(name, package):
            assert not any(below(other, "torch") for other in imported(name, functions=True)), name


def test_simulator_and_refimpl_meet_in_the_scenarios_only() -> None:
    """The reference implementation runs without the simulator, and the other way round."""
    for name in modules():
        for other in imported(name, functions=True):
            if below(name, "refimpl"):
                assert not below(other, "simulator"), f"{name} imports {other}"
            elif not below(name, "simulator.scenarios"):
                assert not below(other, "refimpl"), f"{name} imports {other}"


def test_only_the_report_and_the_commands_print() -> None:
    """Diagnosis is data."""
    for name, path in modules().items():
        place = str(path.relative_to(ROOT))
        calls = [
            node.lineno
            for node in ast.walk(tree(name))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        ]
        assert not calls or place.startswith(PRINTS), f"{place}: print in lines {calls}"


def test_only_the_watchdog_and_the_progress_line_look_at_the_wall_clock() -> None:
    """Everything else lives in virtual time."""
    for name, path in modules().items():
        if not below(name, "simulator") or path.name in ("watchdog.py", "progress.py", "clock.py"):
            continue
        if below(name, "simulator.scenarios"):
            continue  # what runs there runs in ranks, whose clock is virtual
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                pytest.fail(f"{path.name}:{node.lineno} imports from time")
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
                pytest.fail(f"{path.name}:{node.lineno} uses time.{node.attr}")


def test_every_top_level_module_of_the_simulator_stands_on_its_map() -> None:
    """From the docstring alone a stranger can draw the architecture."""
    docstring = ast.get_docstring(tree("simulator")) or ""
    for name in modules():
        parts = name.split(".")
        if parts[0] == "simulator" and len(parts) == 2 and parts[1] != "__main__":
            assert parts[1] in docstring, f"{name} is not on the map in simulator/__init__.py"


@pytest.mark.parametrize(
    "package",
    [
        "simulator.torch_world",
        "simulator.torch_world.gpu",
        "simulator.torch_world.mooncake",
        "simulator.engine",
        "simulator.analysis",
        "simulator.triton_world",
        "simulator.exploration",
        "simulator.faults",
        "simulator.lint",
        "simulator.lint.rules",
        "simulator.lint.outputs",
    ],
)
def test_every_module_of_a_package_stands_on_its_map(package: str) -> None:
    """The docstring of each package names its modules."""
    docstring = ast.get_docstring(tree(package)) or ""
    missing = [
        name for name in modules() if name.rpartition(".")[0] == package and name.split(".")[-1] not in docstring
    ]
    assert missing == []
