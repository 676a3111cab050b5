"""One run: the scheduler, the ranks' contexts, and what gets recorded for the analysis."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from simulator.device_queue import Pump
from simulator.engine.errors import RankEnded
from simulator.engine.operations import After, Target
from simulator.engine.scheduler import Scheduler, Task, Wait
from simulator.engine.site import SiteRecorder, Stack
from simulator.engine.trace import Trace
from simulator.faults.faults import Faults
from simulator.memory_records import MemoryLog
from simulator.records import Gathering, Note, Records
from simulator.torch_world.context import Node, RankContext
from simulator.torch_world.device_memory import DeviceMemory


class Simulation:
    """What every replacement of a torch or Python function needs to know.

    The object outlives a run, since what is installed holds on to it; `begin` starts the next run on it.

    Attributes:
        run: number of the run, from 1; what an earlier one left behind can be told by it.
        clock_tick_s: what a look at the clock costs, in virtual seconds of the rank that looks.
        at_begin: called at each `begin`, by those who keep something for the time of a run.
        at_rank_end: called with a process that has ended, and why if it ended badly.
        at_release: called when a run is over, by those who hold memory that its ranks shared.
        numbers: of what has to be told apart within a run and has no name.
        pump: starts what the ranks' devices do.
        mooncake_ranks_max: how many ranks a deployment of Mooncake can have.
        multicast: the nodes' devices can write to all of them at once.
        faults: those that are put into the run, if any are.
    """

    def __init__(self) -> None:
        self.sites = SiteRecorder()
        self.at_begin: list[Callable[[], None]] = []
        self.at_rank_end: list[Callable[[RankContext, str], None]] = []
        self.at_release: list[Callable[[], None]] = []
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
        self.clock_tick_s = 0.0
        self.multicast = True
        self.mooncake_ranks_max = 64
        self.faults: Faults | None = None
        self.numbers = count()
        self.pump = Pump()
        self.probe_watch: Callable[[str, Stack], None] | None = None
        self._until_next_group: list[Any] = []
        self.communicators: list[Any] = []
        for forget in self.at_begin:
            forget()

    def release_memory(self) -> None:
        """The run is over, and its findings are made: let go of the memory that its ranks shared."""
        self.memory.forget()
        self.records.memory = MemoryLog()
        for context in self.contexts.values():
            if context.in_flight is not None:
                context.in_flight.flights.clear()
            context.symmetric = context.watch = context.in_flight = None
        for forget in self.at_release:
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
        task = self.scheduler.here()
        if task is None:
            raise RuntimeError(f"{what} belongs to a simulation and was used outside its ranks")
        context: RankContext = task.owner
        return context

    def log(self, kind: str, *detail: object) -> None:
        """Add an event of the current rank to the trace."""
        scheduler = self.scheduler
        task = scheduler.current
        rank = -1 if task is None else task.owner.rank
        self.trace.append((scheduler.env.now, rank, kind, detail))

    def note(self, kind: str, text: str, *, stack: Stack | None = None, **facts: Any) -> None:
        """Record an observation that the analysis turns into a finding."""
        context = self.here()
        rank = -1 if context is None else context.rank
        stack = self.sites.capture(2) if stack is None else stack
        self.records.notes.append(Note(kind, rank, text, stack, self.scheduler.env.now, facts))
        self.log("note", kind, text)

    def announce(self, verb: str, target: Target, *, writes: bool = True) -> None:
        """The calling rank is about to do something that others can see; under a schedule it may fall behind here."""
        scheduler = self.scheduler
        if scheduler.lag is not None and scheduler.here() is not None:
            scheduler.announce(verb, target, writes=writes, stack=self.sites.capture)

    def announce_within(self, verb: str, target: Target, *, by_user: bool = False) -> None:
        """As `announce`, for what only the other threads of the rank can see, if it has started any.

        Args:
            by_user: it counts only if user code asks for it; threads take locks for themselves.
        """
        scheduler = self.scheduler
        if scheduler.lag is None or (task := scheduler.here()) is None:
            return
        if len(task.owner.tasks) > 1 and (not by_user or self.sites.capture(1)):
            scheduler.announce(verb, target, writes=True, stack=self.sites.capture)

    def position(self) -> int | None:
        """How far the calling rank has come in the log of operations, if there is one."""
        lag, task = self.scheduler.lag, self.scheduler.current
        return None if lag is None or task is None else lag.log.last.get(task.label)

    def follow(self, position: int | None) -> None:
        """What led to `position` comes before what the calling rank does from now on."""
        lag, task = self.scheduler.lag, self.scheduler.current
        if lag is not None and task is not None and position is not None:
            lag.log.add(After(task.label, position))

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

    def let_leave(self) -> bool:
        """Nothing can move: let go who would go on in reality although a collective is not complete."""
        return any(communicator.let_leave() for communicator in self.communicators)

    def go_on_after(self, gathering: Gathering, rank: int) -> bool:
        """Let the tasks of `rank` that wait for `gathering` go on, and note it. False if none waits."""
        waiting = [t for t in self.scheduler.tasks if t.owner.rank == rank and t.wait and t.wait.what is gathering]
        for task in waiting:
            stack = task.wait.stack if task.wait is not None else ()
            facts = {"gathering": gathering, "missing": gathering.missing}
            self.records.notes.append(Note("early_exit", rank, gathering.op, stack, self.scheduler.env.now, facts))
            self.trace.add(self.scheduler.env.now, rank, "leave", gathering.op, gathering.group.label)
            self.scheduler.release(task)
        return bool(waiting)

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
