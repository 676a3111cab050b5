"""Isolated modules: each rank has an instance of its own, and afterwards the process has its own again."""

from __future__ import annotations

import importlib
import importlib.machinery
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from simulator import Limits, simulate
from simulator.torch_world.half_imports import forget_half_imports

SOURCE = """
GROUP = None


class Token:
    def __init__(self, rank):
        self.rank = rank


def take(rank):
    global GROUP
    if GROUP is not None:
        raise RuntimeError(f"rank {rank} found rank {GROUP}'s global")
    GROUP = rank
"""


@pytest.fixture
def state_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a global, in a package of its own."""
    package = tmp_path / "leaky_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "leaky_pkg.state"


def take(rank: int, name: str) -> Any:
    """Uses the module's global, sends one of its objects round, and imports it once more, lazily."""
    dist.init_process_group("gloo")
    module = importlib.import_module(name)
    module.take(rank)
    received: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(received, module.Token(rank))
    assert all(type(token) is module.Token for token in received)
    assert importlib.import_module(name) is module
    assert importlib.import_module("leaky_pkg").state is module
    assert type(pickle.loads(pickle.dumps(module.Token(rank)))) is module.Token
    return module.GROUP


def test_a_shared_module_leaks_its_globals(state_module: str) -> None:
    """The control: without isolation the second rank finds the first one's global."""
    try:
        outcome = simulate(take, 2, args=(state_module,))
    finally:
        sys.modules.pop(state_module, None)
        sys.modules.pop("leaky_pkg", None)
    assert not outcome.ok
    assert "found rank 0's global" in outcome.findings[0].title


@pytest.mark.parametrize("pattern", ["leaky_pkg", "leaky_pkg.state", "leaky_pkg.*"])
@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_an_isolated_module_belongs_to_its_rank(state_module: str, pattern: str, carrier: str) -> None:
    """By its top-level name, by its own name, by a pattern."""
    try:
        outcome = simulate(take, 8, args=(state_module,), isolate=(pattern,), carrier=carrier).raise_if_bad()
        assert outcome.results == {rank: rank for rank in range(8)}
        assert state_module not in sys.modules
    finally:
        sys.modules.pop("leaky_pkg", None)


def test_the_process_keeps_its_own_instance(state_module: str) -> None:
    """What was imported before the run is the same object afterwards, untouched."""
    mine = importlib.import_module(state_module)
    try:
        simulate(take, 2, args=(state_module,), isolate=("leaky_pkg",)).raise_if_bad()
        assert importlib.import_module(state_module) is mine
        assert mine.GROUP is None
    finally:
        sys.modules.pop(state_module, None)
        sys.modules.pop("leaky_pkg", None)


def import_and_use(rank: int, package: str) -> int:
    """Imports a module by its full name, and reads it through its package."""
    importlib.import_module(f"{package}.first")
    value: int = sys.modules[package].first.VALUE
    return value


def test_an_import_that_was_cut_short_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is ended while the package loads its second module; the first one must not stay without its package."""
    package, spins = tmp_path / "cut_short_pkg", tmp_path / "spins"
    package.mkdir()
    (package / "__init__.py").write_text("import cut_short_pkg.first\nimport cut_short_pkg.second\n")
    (package / "first.py").write_text("VALUE = 7\n")
    (package / "second.py").write_text(f"import os\nwhile os.path.exists({str(spins)!r}):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spins.touch()
    try:
        cut = simulate(import_and_use, 1, args=("cut_short_pkg",), limits=Limits(spin_wall_s=0.5))
        assert cut.verdict == "livelock"
        assert [name for name in sys.modules if name.startswith("cut_short_pkg")] == []
        spins.unlink()
        assert simulate(import_and_use, 1, args=("cut_short_pkg",)).raise_if_bad().results == {0: 7}
    finally:
        for name in [name for name in sys.modules if name.startswith("cut_short_pkg")]:
            del sys.modules[name]


def test_modules_made_by_hand_and_finished_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dotted name without a package is half imported only if an import made it."""
    by_hand, orphan, started = (types.ModuleType(name) for name in ("gone.by_hand", "gone.orphan", "started"))
    orphan.__spec__ = importlib.machinery.ModuleSpec("gone.orphan", None)
    started.__spec__ = importlib.machinery.ModuleSpec("started", None)
    monkeypatch.setattr(started.__spec__, "_initializing", True, raising=False)
    before = frozenset(sys.modules)
    for module in (by_hand, orphan, started):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert forget_half_imports(before | {"started"}) == ["gone.orphan"]
    assert forget_half_imports(before) == ["started"]
    assert sys.modules["gone.by_hand"] is by_hand
