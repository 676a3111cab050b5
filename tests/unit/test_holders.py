"""What shared modules took from isolated ones: the running rank's, under every way of taking it."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator import simulate

STATE = """
from functools import lru_cache

GROUP = None
BOARD = {}


class Owner:
    rank = None


def take(rank):
    global GROUP
    assert GROUP is None and Owner.rank is None and not BOARD, (rank, GROUP, Owner.rank, BOARD)
    GROUP = Owner.rank = rank
    BOARD[rank] = True


@lru_cache
def first_asked(rank=None):
    return rank


def group():
    return GROUP
"""
SHARED = """
from held_pkg import state
from held_pkg.state import BOARD, Owner, first_asked, group, take

EXECUTED = [0]
EXECUTED[0] += 1


def own():
    return state.GROUP, group(), Owner.rank, list(BOARD), first_asked()


def lazily():
    from held_pkg import other
    return other.group()
"""
OTHER = "from held_pkg.state import group\n"
PATTERN = ("held_pkg.state",)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`held_pkg`: `state` is to be isolated, `shared` and `other` take from it."""
    home = tmp_path / "held_pkg"
    home.mkdir()
    for name, source in {"__init__": "", "state": STATE, "shared": SHARED, "other": OTHER}.items():
        (home / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "held_pkg"
    for name in [name for name in sys.modules if name.partition(".")[0] == "held_pkg"]:
        del sys.modules[name]


def use(rank: int) -> Any:
    """Everything that the shared module holds is this rank's, before and after others have run."""
    shared = importlib.import_module("held_pkg.shared")
    shared.take(rank)
    assert shared.first_asked() is None
    time.sleep(1)
    assert shared.own() == (rank, rank, rank, [rank], None)
    assert shared.lazily() == rank
    assert importlib.import_module("held_pkg").state is shared.state
    return shared.EXECUTED


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_a_shared_module_holds_what_is_the_ranks(package: str, imported: bool, carrier: str) -> None:
    """Globals, class attributes, caches, dictionaries; whether the program had imported it before the run or not."""
    mine = importlib.import_module("held_pkg.shared") if imported else None
    outcome = simulate(use, 4, isolate=PATTERN, carrier=carrier).raise_if_bad()
    assert len({id(executed) for executed in outcome.results.values()}) == 1
    assert outcome.results[0] == [1]
    if mine is not None:
        assert sys.modules["held_pkg.shared"] is mine
        assert mine.own() == (None, None, None, [], None)


def test_a_second_run_finds_nothing_of_the_first(package: str) -> None:
    """The shared module stays with the process, with an untouched instance of the isolated one."""
    for _ in range(2):
        simulate(use, 2, isolate=PATTERN).raise_if_bad()
    assert importlib.import_module("held_pkg.shared").own() == (None, None, None, [], None)


def test_what_a_rank_puts_into_a_held_name_is_its_own(package: str) -> None:
    """A mutant on one rank: it replaces a function that the shared module took."""

    def body(rank: int) -> Any:
        shared = importlib.import_module("held_pkg.shared")
        if rank == 1:
            shared.group = lambda: "mutant"
        time.sleep(1)
        return shared.group()

    assert simulate(body, 3, isolate=PATTERN).raise_if_bad().results == {0: None, 1: "mutant", 2: None}


def test_a_function_of_an_isolated_module_runs_in_the_ranks_instance(package: str) -> None:
    """Given to `simulate` itself, it uses the globals of the rank."""
    take = importlib.import_module("held_pkg.state").take
    simulate(take, 3, isolate=PATTERN).raise_if_bad()
    assert sys.modules["held_pkg.state"].GROUP is None


def test_each_rank_imports_for_itself(package: str) -> None:
    """A module that no other rank has imported is not there, as a module or as an attribute of its package."""

    def body(rank: int) -> list[bool]:
        home = importlib.import_module("held_pkg")
        if rank == 0:
            importlib.import_module("held_pkg.shared")
        time.sleep(1)
        return [name in sys.modules and hasattr(home, name.partition(".")[2]) for name in NAMES]

    outcome = simulate(body, 2, isolate=PATTERN).raise_if_bad()
    assert outcome.results == {0: [True, True], 1: [False, False]}


NAMES = ("held_pkg.state", "held_pkg.shared")
DEFINES = """
import torch
from torch.library import Library

LIB = Library("held_ops_{}", "FRAGMENT")
OWNER = []


def whose(x):
    return x + OWNER[0]


LIB.define("whose(Tensor x) -> Tensor")
LIB.impl("whose", whose, "CPU")
"""


def test_an_operator_of_an_isolated_module_is_the_ranks(package: str, tmp_path: Path) -> None:
    """Each rank's instance defines it; a call runs the function of the rank."""
    import torch

    (tmp_path / "held_pkg" / "ops.py").write_text(DEFINES.replace("{}", "a"))

    def body(rank: int) -> float:
        importlib.import_module("held_pkg.ops").OWNER.append(rank)
        time.sleep(1)
        total: float = torch.ops.held_ops_a.whose(torch.ones(1)).item()
        return total

    outcome = simulate(body, 3, isolate=("held_pkg.ops",)).raise_if_bad()
    assert outcome.results == {0: 1.0, 1: 2.0, 2: 3.0}
