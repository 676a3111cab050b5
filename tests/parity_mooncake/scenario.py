"""What a scenario is: one program text for real Mooncake processes and for simulated ranks, and what it observes.

    @scenario(Launch(2), limit_s=8)
    def all_reduce(me):
        me.init(2)
        me.all_reduce(me.rank + 1)

`me` is the `Observer` of one process. Nothing here imports the simulator: the real side has no such package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.parity_mooncake.observer import Observer

Program = Callable[["Observer"], None]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a scenario.

    Attributes:
        rank: its global rank.
        role: `launch`, `scale` or `recover`, as the simulator's cluster calls them.
        at_s: seconds after the first one at which it starts.
    """

    rank: int
    role: str = "launch"
    at_s: float = 0.0

    @property
    def label(self) -> str:
        """The rank; with a dash for a process that takes the slot of another one."""
        return f"{self.rank}'" if self.role == "recover" else f"{self.rank}"


def Launch(ranks: int) -> tuple[Process, ...]:
    """Ranks 0 to `ranks` - 1."""
    return tuple(Process(rank) for rank in range(ranks))


def Join(*ranks: int, at_s: float = 0.0) -> tuple[Process, ...]:
    """A later cohort."""
    return tuple(Process(rank, "scale", at_s) for rank in ranks)


def Recover(*ranks: int, at_s: float) -> tuple[Process, ...]:
    """Processes that replace dead ones."""
    return tuple(Process(rank, "recover", at_s) for rank in ranks)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program and its processes.

    Attributes:
        limit_s: a process that is still inside a call then counts as hung in it.
        env: for all processes.
        races: why the real side may answer differently from run to run; such a scenario is run, never compared.
    """

    name: str
    program: Program
    processes: tuple[Process, ...]
    limit_s: float
    env: tuple[tuple[str, str], ...]
    what: str
    races: str = ""


class Table:
    """Scenarios by their names, in the order in which they are written."""

    def __init__(self) -> None:
        self.scenarios: dict[str, Scenario] = {}

    def __call__(
        self, *processes: tuple[Process, ...], limit_s: float = 10.0, env: dict[str, str] | None = None, races: str = ""
    ) -> Callable[[Program], Program]:
        """Decorator: add a program; its docstring says what it is about."""

        def add(program: Program) -> Program:
            self.add(program.__name__, program, program.__doc__ or "", processes, limit_s, env, races)
            return program

        return add

    def add(
        self,
        name: str,
        program: Program,
        what: str,
        processes: tuple[tuple[Process, ...], ...],
        limit_s: float = 10.0,
        env: dict[str, str] | None = None,
        races: str = "",
    ) -> None:
        """Add a program under a name of its own."""
        assert name not in self.scenarios, name
        flat = tuple(process for cohort in processes for process in cohort)
        pairs = tuple(sorted((env or {}).items()))
        self.scenarios[name] = Scenario(name, program, flat, limit_s, pairs, what.strip().split("\n")[0], races)
