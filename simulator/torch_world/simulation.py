"""One run: the scheduler, the ranks' contexts, and what gets recorded for the analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.engine.errors import RankEnded
from simulator.engine.scheduler import Scheduler, Task, Wait
from simulator.engine.site import SiteRecorder, Stack
from simulator.engine.trace import Trace
from simulator.records import Note, Records
from simulator.torch_world.context import Node, RankContext
from simulator.torch_world.device_memory import DeviceMemory


class Simulation:
    """What every replacement of a torch or Python function needs to know.

    The object outlives a run, since what is installed holds on to it; `begin` starts the next run on it.

    Attributes:
        run: number of the run, from 1; what an earlier one left behind can be told by it.
        at_begin: called at each `begin`, by those who keep something for the time of a run.
    """

    def __init__(self) -> None:
        self.sites = SiteRecorder()
        self.at_begin: list[Callable[[], None]] = []
        self.run = 0
        self.begin(Scheduler(), ())

    def begin(self, scheduler: Scheduler, nodes: tuple[Node, ...]) -> None:
        """Forget the run before; a new one begins."""
        self.run += 1
        self.scheduler = scheduler
        self.nodes = nodes
        self.trace = Trace()
        self.records = Records()
        self.memory = DeviceMemory(self, self.records.memory)
        self.contexts: dict[int, RankContext] = {}
        self.has_joiners = False
        self.probe_watch: Callable[[str, Stack], None] | None = None
        self._until_next_group: list[Any] = []
        for forget in self.at_begin:
            forget()

    def here(self) -> RankContext | None:
        """The rank that the calling thread belongs to; None outside the simulated ranks."""
        task = self.scheduler.here()
        return None if task is None else task.owner

    def must_be_here(self, what: str) -> RankContext:
        """Like `here`, for things that make no sense outside a rank.

        Raises:
            RuntimeError: the caller is not a simulated rank.
        """
        context = self.here()
        if context is None:
            raise RuntimeError(f"{what} belongs to a simulation and was used outside its ranks")
        return context

    def log(self, kind: str, *detail: object) -> None:
        """Add an event of the current rank to the trace."""
        task = self.scheduler.current
        rank = -1 if task is None else task.owner.rank
        self.trace.add(self.scheduler.env.now, rank, kind, *detail)

    def note(self, kind: str, text: str, *, stack: Stack | None = None, **facts: Any) -> None:
        """Record an observation that the analysis turns into a finding."""
        context = self.here()
        rank = -1 if context is None else context.rank
        stack = self.sites.capture(2) if stack is None else stack
        self.records.notes.append(Note(kind, rank, text, stack, self.scheduler.env.now, facts))
        self.log("note", kind, text)

    def wait(self, event: Any, wait: Wait, timeout_s: float | None = None) -> bool:
        """Suspend the calling rank; see `Scheduler.wait`."""
        self.log("wait", wait.text)
        return self.scheduler.wait(event, wait, timeout_s)

    def wait_for_a_group(self, wait: Wait) -> None:
        """Suspend the calling rank until some group has been completed by its members."""
        event = self.scheduler.event()
        self._until_next_group.append(event)
        self.wait(event, wait)

    def group_completed(self) -> None:
        """A group has been completed by its members."""
        waiting, self._until_next_group = self._until_next_group, []
        for event in waiting:
            event.succeed()

    def end_rank(self, context: RankContext, how: RankEnded) -> None:
        """End all threads of a rank."""
        context.ended = True
        mine: Task | None = None
        for task in context.tasks:
            if task is self.scheduler.current:
                mine = task
            else:
                self.scheduler.end_task(task, how)
        if mine is not None:
            raise how
