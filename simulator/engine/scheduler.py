"""Which task runs next, at which virtual time, until when.

A task (a rank's main thread, or a thread that the rank started) runs until it waits. The task that waits steps the
simpy environment itself until some task is ready, and hands the baton straight to it: one hand-over a suspension.

Two kinds of time are kept apart. Events (sleeps, arrivals) live in simpy's queue. Time-outs live in a heap of their
own, so that "nothing can move any more" is seen at once, and not when a 30-minute time-out strikes.
"""

from __future__ import annotations

import _thread
import heapq
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import greenlet
import simpy

from simulator.engine.carrier import Carrier, GreenletCarrier, ThreadCarrier, refuse_below_cpp
from simulator.engine.errors import RankEnded, SimulatorFault, UsageError, require
from simulator.engine.site import Stack
from simulator.engine.watchdog import Watchdog

INFINITY = float("inf")
POLLS_PER_DOUBLING = 200
POLL_INTERVAL_MAX_S = 0.1


class End(Enum):
    """Why the run ended."""

    FINISHED = "every task finished"
    QUIESCENT = "nothing can move"
    LIVELOCK = "tasks run, but nothing progresses"
    SPIN = "a task runs without ever blocking"
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
        kind: `collective`, `create`, `send`, `recv`, `store`, `sleep`, `lock`, `thread`, `poll`.
        text: one phrase for people, e.g. `all_reduce on group 'tp' seq 7`.
        stack: user frames, innermost first.
        what: the object waited for (a slot, a rendezvous, a list of keys), if the analysis knows its kind.
        deadline_is_explicit: the user named this time-out at the call itself, so reaching it may be meant.
    """

    kind: str
    text: str
    stack: Stack = ()
    what: object = None
    deadline_is_explicit: bool = False


@dataclass(slots=True, eq=False)
class Task:
    """One thread of one rank."""

    name: str
    owner: Any
    number: int
    carrier: Carrier
    wait: Wait | None = None
    alive: bool = True
    ending: RankEnded | None = None
    token: int = 0
    timed_out: bool = False
    polls: int = 0
    idle_polls: int = 0
    seen_progress: int = -1
    thread_id: int = 0
    queued: bool = False
    abandoned: bool = False
    daemon: bool = True
    joiners: list[simpy.Event] = field(default_factory=list)


class Scheduler:
    """Runs tasks on a simpy environment. Use: `spawn` some tasks, then `run`.

    Args:
        carrier: `thread` or `greenlet`.
        limits: bounds of the run.
        policy: chooses among ready tasks.
        on_switch: called with (previous, next) whenever another task gets the baton.
        on_quiescent: called when only time-outs are left; True lets the earliest one strike, False ends the run.
        on_tick: called about every quarter of a wall second with this scheduler, from another thread.
    """

    def __init__(
        self,
        *,
        carrier: str = "thread",
        limits: Limits | None = None,
        policy: Policy = in_order,
        on_switch: Callable[[Task | None, Task | None], None] = lambda old, new: None,
        on_quiescent: Callable[[], bool] = lambda: False,
        on_tick: Callable[[Scheduler], None] = lambda scheduler: None,
    ) -> None:
        self.env = simpy.Environment()
        self.limits = limits or Limits()
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.switches = 0
        self.end = End.FINISHED
        self.fault: BaseException | None = None
        self.spinner: tuple[Task, Any] | None = None
        self.running = False
        self._kind = carrier
        self._policy = policy
        self._on_switch = on_switch
        self._on_quiescent = on_quiescent
        self._on_tick = on_tick
        self._ready: deque[Task] = deque()
        self._deadlines: list[tuple[float, int, Task, int]] = []
        self._deadline_count = 0
        self._idle_steps = 0
        self.progress_count = 0
        self._draining = False
        self._baton_is_out = False
        self._last: Task | None = None
        self._watchdog: Watchdog | None = None
        self._hub = greenlet.getcurrent()

    # -- tasks -------------------------------------------------------------------------------------------------

    def spawn(self, name: str, owner: Any, body: Callable[[], None], *, at_s: float = 0.0) -> Task:
        """Make a task that starts at virtual time `at_s`. `body` must not let an exception escape."""
        carrier = ThreadCarrier(name) if self._kind == "thread" else GreenletCarrier(name, self._hub)
        task = self._new_task(name, owner, carrier)
        carrier.start(self._body_of(task, body))
        self._start_later(task, at_s)
        return task

    def adopt(self, name: str, owner: Any, body: Callable[[], None]) -> tuple[Task, Callable[[], None]]:
        """A task for a thread that the code under test starts: run the returned callable on that thread.

        Raises:
            UsageError: under the greenlet carrier, which has no threads.
        """
        if self._kind != "thread":
            raise UsageError("a rank starts a thread, which greenlets cannot carry: use carrier='thread' (the default)")
        carrier = ThreadCarrier(name)
        task = self._new_task(name, owner, carrier)
        self._start_later(task, self.env.now)
        return task, carrier.adopt(self._body_of(task, body))

    def _new_task(self, name: str, owner: Any, carrier: Carrier) -> Task:
        task = Task(name, owner, len(self.tasks), carrier)
        self.tasks.append(task)
        return task

    def _start_later(self, task: Task, at_s: float) -> None:
        if at_s <= self.env.now:
            self._make_ready(task, task.token)
            return
        task.wait = Wait("sleep", f"its start at {at_s:g} s")
        event = self.env.timeout(at_s - self.env.now)
        token = task.token
        event.callbacks.append(lambda _: self._make_ready(task, token))

    def _body_of(self, task: Task, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            self._enter(task)
            try:
                if task.ending is None:
                    body()
            except RankEnded:
                pass
            except BaseException as error:  # the body promised not to raise
                self._fail(error)
            self._leave(task)

        return run

    def _leave(self, task: Task) -> None:
        task.alive = False
        self.progress()
        for event in task.joiners:
            event.succeed()
        task.joiners.clear()
        self._hand_on(task, finished=True)

    # -- waiting -----------------------------------------------------------------------------------------------

    def wait(self, event: simpy.Event, wait: Wait, timeout_s: float | None = None) -> bool:
        """Suspend the current task until `event` is triggered. False if `timeout_s` virtual seconds passed first.

        Raises:
            RankEnded: the rank was ended while it waited.
        """
        task = self._must_be_current()
        if event.triggered and (event.callbacks is None or not isinstance(event, simpy.Timeout)):
            return True
        token = task.token
        event.callbacks.append(lambda _: self._make_ready(task, token))
        if timeout_s is not None:
            self._deadline_count += 1
            heapq.heappush(self._deadlines, (self.env.now + max(0.0, timeout_s), self._deadline_count, task, token))
        task.wait, task.timed_out = wait, False
        self._suspend(task)
        return not task.timed_out

    def sleep(self, seconds: float, wait: Wait | None = None) -> None:
        """Let `seconds` of virtual time pass for the current task."""
        self.wait(self.env.timeout(max(0.0, seconds)), wait or Wait("sleep", f"sleep({seconds:g})"))

    def poll(self, text: str) -> None:
        """The current task looked at something that others may change: let them run for one poll interval.

        The interval doubles every 200 polls in which nothing progresses anywhere, up to a tenth of a second.
        """
        task = self.current
        if task is None:
            return
        if task.seen_progress != self.progress_count:
            task.seen_progress, task.idle_polls = self.progress_count, 0
        doublings = min(task.idle_polls // POLLS_PER_DOUBLING, 10)
        task.idle_polls += 1
        self.sleep(min(self.limits.poll_interval_s * 2**doublings, POLL_INTERVAL_MAX_S), Wait("poll", text))

    def join(self, task: Task, wait: Wait, timeout_s: float | None = None) -> bool:
        """Wait until `task` has ended. False after `timeout_s` virtual seconds."""
        if not task.alive:
            return True
        event = self.env.event()
        task.joiners.append(event)
        return self.wait(event, wait, timeout_s)

    @property
    def over(self) -> bool:
        """The run has ended; tasks that are still alive are being unwound."""
        return self._draining or self.end is not End.FINISHED

    def event(self) -> simpy.Event:
        """A new simpy event of this run."""
        return self.env.event()

    def progress(self) -> None:
        """Something got done: the livelock counter starts anew."""
        self._idle_steps = 0
        self.progress_count += 1

    def end_task(self, task: Task, how: RankEnded) -> None:
        """End a task: it raises `how` at the place where it waits (or at its next wait, if it is running)."""
        if not task.alive or task.ending is not None:
            return
        task.ending = how
        if task is not self.current:
            self._make_ready(task, task.token)

    def stop(self, end: End = End.STOPPED) -> None:
        """End the run as soon as the current task waits."""
        self.end = end
        self._draining = True

    def _must_be_current(self) -> Task:
        if self.current is None:
            raise SimulatorFault("a wait outside a task")
        if self.current.ending is not None:
            raise self.current.ending
        return self.current

    def _make_ready(self, task: Task, token: int) -> None:
        if task.alive and not task.queued and task.token == token:
            task.token += 1
            task.queued = True
            self._ready.append(task)

    def _suspend(self, task: Task) -> None:
        if self._kind == "greenlet":
            refuse_below_cpp()
        self._hand_on(task, finished=False)
        self._enter(task)
        if task.ending is not None:
            raise task.ending

    def _enter(self, task: Task) -> None:
        if self._last is not task:
            self._on_switch(self._last, task)
        self._last = self.current = task
        task.wait = None
        task.polls = 0
        task.thread_id = task.carrier.frame_owner()
        self.switches += 1

    def _hand_on(self, task: Task, *, finished: bool) -> None:
        self.current = None
        successor = self._next_task() if self.fault is None else None
        if successor is task and not finished:
            return
        if successor is None:
            self._to_runner(task, finished)
        elif finished:
            task.carrier.finish(successor.carrier)
        else:
            successor.carrier.wake()
            task.carrier.park()

    def _to_runner(self, task: Task, finished: bool) -> None:
        assert self._watchdog is not None
        if self._kind == "thread":
            if not task.abandoned:
                self._watchdog.finished()
            if not finished:
                task.carrier.park()
        elif finished:
            task.carrier.finish(None)
        else:
            self._hub.switch()

    # -- the loop ----------------------------------------------------------------------------------------------

    def _next_task(self) -> Task | None:
        """Step virtual time until a task is ready; None if the run is over."""
        try:
            while not self._draining:
                if self._ready:
                    return self._choose()
                if not self._advance():
                    return None
        except BaseException as error:
            self._fail(error)
        return None

    def _choose(self) -> Task | None:
        self._idle_steps += 1
        if self._idle_steps > self.limits.idle_steps_max:
            self.stop(End.LIVELOCK)
            return None
        index = self._ask_policy() if len(self._ready) > 1 else 0
        task = self._ready[index]
        del self._ready[index]
        task.queued = False
        return task

    def _ask_policy(self) -> int:
        try:
            index = self._policy(self._ready)
        except Exception as error:
            raise UsageError(
                f"the policy raised {error!r}: give a function from the ready tasks to an index"
            ) from error
        fits = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(self._ready)
        require(fits, f"the policy returned {index!r}: give an index below {len(self._ready)}")
        return index

    def _advance(self) -> bool:
        event_at = self.env.peek()
        deadline_at = self._earliest_deadline()
        if event_at == INFINITY:
            alive = any(task.alive for task in self.tasks)
            if alive and not self._on_quiescent():
                self.end = End.QUIESCENT
                return False
            if self._ready or self.env.peek() != INFINITY:
                return True
            if deadline_at == INFINITY:
                self.end = End.QUIESCENT if alive else self.end
                return False
        if event_at <= deadline_at:
            self.env.step()
        else:
            self._strike(deadline_at)
        return True

    def _earliest_deadline(self) -> float:
        heap = self._deadlines
        while heap and (not heap[0][2].alive or heap[0][2].token != heap[0][3]):
            heapq.heappop(heap)
        return heap[0][0] if heap else INFINITY

    def earliest_deadline_task(self) -> Task | None:
        """The task whose time-out would strike next."""
        return self._deadlines[0][2] if self._earliest_deadline() != INFINITY else None

    def _strike(self, at_s: float) -> None:
        _, _, task, token = heapq.heappop(self._deadlines)
        self.env.timeout(max(0.0, at_s - self.env.now))
        self.env.step()
        task.timed_out = True
        self._make_ready(task, token)

    def _fail(self, error: BaseException) -> None:
        if self.fault is None:
            self.fault = error
        self.stop(End.FAULT)

    def run(self) -> End:
        """Run until the end; every task has been unwound when this returns."""
        self.running = True
        self._watchdog = Watchdog(self, self._spun, self._on_tick)
        try:
            first = self._next_task()
            if first is not None:
                self._await(first)
        finally:
            self.running = False
        return self.end

    def here(self) -> Task | None:
        """The current task, if it is the calling thread that runs it."""
        task = self.current
        return task if task is not None and task.thread_id == _thread.get_ident() else None

    def drain(self) -> None:
        """Unwind, one after another, the tasks that are still alive. Their `finally` blocks run; waits raise."""
        self._draining = True
        if self._baton_is_out:
            self._take_back()
        for task in self.tasks:
            if task.alive and not task.abandoned:
                task.ending = task.ending or RankEnded("killed")
                self._await(task)
        self.current = None
        if self._last is not None:
            self._on_switch(self._last, None)
            self._last = None

    def _await(self, task: Task) -> None:
        """Give the baton to `task` and wait until it comes back to the runner."""
        assert self._watchdog is not None
        if self._kind == "thread":
            self._baton_is_out = True
            task.carrier.wake()
            self._watchdog.wait_finished()
            self._baton_is_out = False
        else:
            with self._watchdog.from_beside():
                task.carrier.wake()

    def _take_back(self) -> None:
        """The runner was interrupted (Control-C) while a task had the baton: get it back before anything else."""
        assert self._watchdog is not None
        self._watchdog.take_back()
        self._baton_is_out = False

    def _spun(self) -> None:
        """Called by the watchdog's thread: the current task has not blocked for too long."""
        task = self.current
        if task is None:
            return
        frame = sys._current_frames().get(task.carrier.frame_owner())
        self.spinner = (task, frame)
        task.ending = RankEnded("killed")
        self.stop(End.SPIN)
