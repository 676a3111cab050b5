"""A task, what it waits for, and the bounds of a run: plain data that the scheduler works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import simpy

from simulator.engine.carrier import Carrier
from simulator.engine.errors import require
from simulator.engine.site import Stack

INFINITY = float("inf")


class End(Enum):
    """Why the run ended."""

    FINISHED = "every task finished"
    QUIESCENT = "nothing can move"
    LIVELOCK = "tasks run, but nothing progresses"
    SPIN = "a task runs without ever blocking"
    UNTIL = "the time that was asked for is up"
    STOPPED = "somebody asked for the end"
    FAULT = "the simulator failed"


class Policy(Protocol):
    """Chooses among the tasks that are ready. `in_order` takes the first."""

    def __call__(self, ready: Sequence[Task]) -> int:
        """The index of the task to run next."""


def in_order(ready: Sequence[Task]) -> int:
    """First come, first served."""
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of a run; reaching one is a named outcome."""

    spin_wall_s: float = 10.0
    """Wall seconds that a task may run without blocking."""
    idle_steps_max: int = 100_000
    """Scheduler steps without progress (a completed collective, a store write, a task's end) before `livelock`."""
    poll_interval_s: float = 1e-4
    """Virtual seconds that one poll (`is_completed`, `check`, a busy clock loop) costs at first."""

    def __post_init__(self) -> None:
        for name in ("spin_wall_s", "idle_steps_max", "poll_interval_s"):
            value = getattr(self, name)
            require(isinstance(value, int | float) and value > 0, f"{name}={value!r}: give a number above 0")


@dataclass(slots=True, eq=False)
class Wait:
    """What a task waits for. Data for the diagnosis, nothing here acts.

    Attributes:
        kind: `collective`, `create`, `send`, `recv`, `store`, `sleep`, `lock`, `thread`, `poll`, `word`.
        text: one phrase for people, e.g. `all_reduce on group 'tp' seq 7`.
        stack: user frames, innermost first.
        what: the object waited for (a slot, a rendezvous, a list of keys), if the analysis knows its kind.
        deadline_is_explicit: the user named this time-out at the call itself, so reaching it may be meant.
        read_at: where the host waits for its device, if not at `stack`, where it gave the device what is waited for.
    """

    kind: str
    text: str
    stack: Stack = ()
    what: object = None
    deadline_is_explicit: bool = False
    read_at: Stack = ()


@dataclass(slots=True, eq=False)
class Task:
    """One thread of one rank.

    Attributes:
        label: its name, made unique where a second process has the first one's (`r3`, `r3~2`).
        operations: how many operations it has announced.
        ending: what it raises where it waits: the end of its rank, or an exception that a fault puts there.
        frozen: its process was killed: it never goes on.
    """

    name: str
    owner: Any
    number: int
    carrier: Carrier
    label: str
    wait: Wait | None = None
    alive: bool = True
    ending: BaseException | None = None
    token: int = 0
    timed_out: bool = False
    polls: int = 0
    idle_polls: int = 0
    seen_progress: int = -1
    thread_id: int = 0
    queued: bool = False
    abandoned: bool = False
    frozen: bool = False
    daemon: bool = True
    operations: int = 0
    joiners: list[simpy.Event] = field(default_factory=list)
