"""Tasks that fall behind: how another order of the ranks comes about.

    scheduler = Scheduler(delays=lambda operation: operation.task == "r0" and operation.verb == "set")

A task that falls behind is slow from then on: it runs only while no other can, and the others may sleep and wake
meanwhile. Real ranks are slow now and then, for any reason, so each order that comes about this way can be met in
reality. To keep it so:

- a lag lasts at least `LAG_S` and lets at most `LAG_MAX_S` of virtual time pass: slow, not dead;
- no time-out strikes because of it;
- who merely looks again and again (a poll, the same sleep a second time while nothing progresses) waits for it.

Not modelled: a rank that is slow for longer than that, and one that is slow between two operations (`Operation`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import simpy

from simulator.engine.operations import After, Operation, OperationLog
from simulator.engine.site import Stack
from simulator.engine.task import Task

LAG_S = 0.05
LAG_MAX_S = 10.0


class Delays(Protocol):
    """Says before which operations a task falls behind."""

    def __call__(self, operation: Operation) -> int:
        """0: nothing happens. Else `operation.task` falls behind, and does the operation after that.

        Among tasks that fall behind at their start, a higher number is further behind.
        """


class Recipe(ABC):
    """Makes the delays of a run: a schedule is one, and so is the draw of a random one. Plain data, for many runs."""

    __slots__ = ()

    @abstractmethod
    def start(self) -> Delays:
        """For one run. If the result has a method `check`, it is called after the run, and may raise a UsageError."""


class CausalEnvironment(simpy.Environment):
    """Notes with each event what the task that triggered it had done by then."""

    def __init__(self, log: OperationLog) -> None:
        super().__init__()
        self._log = log
        self.running: Task | None = None

    def schedule(self, event: Any, priority: Any = simpy.events.NORMAL, delay: Any = 0) -> None:
        if delay == 0 and self.running is not None:
            event.cause = self._log.last.get(self.running.label)
        super().schedule(event, priority, delay)


class _Fall(NamedTuple):
    """Who has the lowest `order` goes first."""

    order: tuple[int, int]
    since_s: float


class Lag:
    """Who is behind in one run.

    Args:
        delays: decides who falls behind, and where.
        keeps_stacks: operations are logged with their stacks; else only those before which a task falls behind.

    Attributes:
        tasks: labels of the tasks that have started.
        fallen: operations before which a task fell behind, in order.
    """

    def __init__(self, delays: Delays, *, keeps_stacks: bool = True) -> None:
        self.keeps_stacks = keeps_stacks
        self.log = OperationLog()
        self.env = CausalEnvironment(self.log)
        self.tasks: list[str] = []
        self.fallen: list[Operation] = []
        self._delays = delays
        self._behind: dict[Task, _Fall] = {}
        self._sleepers: dict[Task, tuple[float, bool]] = {}
        self._slept: dict[tuple[Task, object], int] = {}

    def is_behind(self, task: Task) -> bool:
        return task in self._behind

    def consider(self, task: Task, operation: Operation, stack: Stack | Callable[[], Stack] = ()) -> None:
        """Let `task` fall behind if it is to do so before `operation`. Who falls later is behind who fell earlier."""
        if operation.number == 0:
            self.tasks.append(operation.task)
        depth = self._delays(operation)
        if depth:
            self.fallen.append(operation if isinstance(stack, tuple) else operation._replace(stack=stack()))
            order = (0, depth) if operation.number == 0 else (1, len(self.fallen))
            self._behind[task] = _Fall(order, self.env.now)
            self.env.timeout(LAG_S)

    def follows(self, task: Task, starter: Task) -> None:
        """`task` is started by what `starter` has done so far."""
        position = self.log.last.get(starter.label)
        if position is not None:
            self.log.add(After(task.label, position))

    def woken(self, task: Task, event: Any) -> None:
        """`event` made `task` ready: keep what led to it."""
        cause = getattr(event, "cause", None)
        if cause is not None:
            self.log.add(After(task.label, cause))

    def sleeps(self, task: Task, until_s: float, place: object, progress: int) -> None:
        """`task` is about to sleep at `place`; `progress` counts what has got done anywhere."""
        again = self._slept.get((task, place)) == progress
        self._slept[task, place] = progress
        self._sleepers[task] = (until_s, again)

    def choose(self, ready: Sequence[Task], deadline_s: float) -> int | None:
        """Index of the task to run; None: let time pass until the next event.

        Args:
            deadline_s: when the next time-out would strike.
        """
        for index, task in enumerate(ready):
            if task not in self._behind:
                return index
        first = min(ready, key=lambda task: self._behind[task].order)
        return None if self.may_wait(first, deadline_s) else ready.index(first)

    def may_wait(self, task: Task, deadline_s: float) -> bool:
        """Whether time may pass until the next event while `task`, which is behind, could go on."""
        since_s, at_s = self._behind[task].since_s, self.env.peek()
        if at_s <= since_s + LAG_S:
            return True
        if at_s > min(since_s + LAG_MAX_S, deadline_s):
            return False
        due = [again for until_s, again in self._sleepers.values() if until_s == at_s]
        return not due or not all(due)
