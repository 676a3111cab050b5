"""Which task runs next, at which virtual time, until when.

A task (a rank's main thread, or a thread that the rank started) runs until it waits. The task that waits steps the
simpy environment itself until some task is ready, and hands the baton straight to it: one hand-over a suspension.

Two kinds of time are kept apart. Events (sleeps, arrivals) live in simpy's queue. Time-outs live in a heap of their
own, so that "nothing can move any more" is seen at once, and not when a 30-minute time-out strikes.

Another order than the first one comes about in two ways: a policy that chooses among the ready tasks, or `delays`,
under which a task also stops at operations that others can see (`announce`), and lets them go first.
"""

from __future__ import annotations

import _thread
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenlet
import simpy

from simulator.engine.carrier import Carrier, GreenletCarrier, ThreadCarrier, is_below_cpp, refuse_below_cpp
from simulator.engine.deadlines import Deadlines
from simulator.engine.errors import RankEnded, SimulatorFault, UsageError, require
from simulator.engine.lag import Delays, Lag
from simulator.engine.operations import Operation, Target
from simulator.engine.site import Stack
from simulator.engine.task import INFINITY, End, Limits, Policy, Task, Wait, in_order
from simulator.engine.watchdog import Beside, Watchdog

POLLS_PER_DOUBLING = 200
POLL_INTERVAL_MAX_S = 0.1

__all__ = ["End", "Limits", "Policy", "Scheduler", "Task", "Wait", "in_order"]


class Scheduler:
    """Runs tasks on a simpy environment. Use: `spawn` some tasks, then `run`.

    Args:
        carrier: `thread` or `greenlet`.
        limits: bounds of the run.
        policy: chooses among ready tasks.
        delays: who falls behind, and where (see `simulator.engine.lag`); `policy` is not asked then.
        keeps_stacks: the log of operations has their stacks.
        on_switch: called with (previous, next) whenever another task gets the baton.
        on_quiescent: called when only time-outs are left; True lets the earliest one strike, False ends the run.
        on_tick: called about every quarter of a wall second with this scheduler, from another thread.
        beside: watches greenlets, for many runs; None: one for this run.
        until_s: virtual seconds at which the run ends, if it goes on so long.

    Attributes:
        switches: how often a task got the baton; moves: the same, but for those that had polled.
        lag: who is behind, and the log of operations; None without `delays`, and then operations need no announcing.
    """

    def __init__(
        self,
        *,
        carrier: str = "thread",
        limits: Limits | None = None,
        policy: Policy = in_order,
        delays: Delays | None = None,
        keeps_stacks: bool = True,
        on_switch: Callable[[Task | None, Task | None], None] = lambda old, new: None,
        on_quiescent: Callable[[], bool] = lambda: False,
        on_tick: Callable[[Scheduler], None] = lambda scheduler: None,
        beside: Beside | None = None,
        until_s: float = INFINITY,
    ) -> None:
        self.lag = None if delays is None else Lag(delays, keeps_stacks=keeps_stacks)
        self.env = simpy.Environment() if self.lag is None else self.lag.env
        self.limits = limits or Limits()
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.switches = self.moves = 0
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
        self._deadlines = Deadlines()
        self._names: dict[str, int] = {}
        self._living = 0
        self._holders: dict[Any, Task] = {}
        self._held: list[tuple[Task, int, Any]] = []
        self._idle_steps = 0
        self.progress_count = 0
        self._draining = False
        self._baton_is_out = False
        self._last: Task | None = None
        self._watchdog: Watchdog | None = None
        self._beside = beside
        self._until_s = until_s
        self._hub = greenlet.getcurrent()

    # -- tasks -------------------------------------------------------------------------------------------------

    def spawn(self, name: str, owner: Any, body: Callable[[], None], *, at_s: float = 0.0) -> Task:
        """Make a task that starts at virtual time `at_s`. `body` must not let an exception escape."""
        carrier = ThreadCarrier(name) if self._kind == "thread" else GreenletCarrier(name, self._hub)
        task = self._new_task(name, owner, carrier)
        with self._outside():
            carrier.start(self._body_of(task, body))
        self._start_later(task, at_s)
        return task

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """A task that spawns another one starts a real thread: it must not do so as the code under test does."""
        current, self.current = self.current, None
        try:
            yield
        finally:
            self.current = current

    def adopt(self, name: str, owner: Any, body: Callable[[], None]) -> tuple[Task, Callable[[], None]]:
        """A task for a thread that the code under test starts: run the returned callable on that thread.

        Raises:
            UsageError: under the greenlet carrier, which has no threads.
        """
        if self._kind != "thread":
            raise UsageError("a rank starts a thread, which greenlets cannot carry: use carrier='thread' (the default)")
        carrier = ThreadCarrier(name)
        task = self._new_task(name, owner, carrier)
        if self.lag is not None and self.current is not None:
            self.lag.follows(task, self.current)
        self._start_later(task, self.env.now)
        return task, carrier.adopt(self._body_of(task, body))

    def _new_task(self, name: str, owner: Any, carrier: Carrier) -> Task:
        known = self._names[name] = self._names.get(name, 0) + 1
        task = Task(name, owner, len(self.tasks), carrier, name if known == 1 else f"{name}~{known}")
        self.tasks.append(task)
        self._living += 1
        return task

    def _start_later(self, task: Task, at_s: float) -> None:
        if at_s <= self.env.now:
            self._begin(task)
            return
        task.wait = Wait("sleep", f"its start at {at_s:g} s")
        event = self.env.timeout(at_s - self.env.now)
        event.callbacks.append(lambda _: self._begin(task))

    def _begin(self, task: Task) -> None:
        if self.lag is not None:
            self.lag.consider(task, Operation(task.label, 0, "start", ("task", task.label), False))
        self._make_ready(task, task.token)

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
        self._living -= task.alive
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
        event.callbacks.append(lambda event: self._make_ready(task, token, event))
        if timeout_s is not None:
            self._deadlines.add(self.env.now + max(0.0, timeout_s), task, token)
        task.wait, task.timed_out = wait, False
        self._suspend(task)
        return not task.timed_out

    def sleep(self, seconds: float, wait: Wait | None = None) -> None:
        """Let `seconds` of virtual time pass for the current task."""
        wait, event = wait or Wait("sleep", f"sleep({seconds:g})"), self.env.timeout(max(0.0, seconds))
        if self.lag is not None and self.current is not None:
            place = None if wait.kind == "poll" else wait.stack[:1] or wait.text
            self.lag.sleeps(self.current, self.env.now + max(0.0, seconds), place, self.progress_count)
        self.wait(event, wait)

    def announce(self, verb: str, target: Target, *, writes: bool, stack: Stack | Callable[[], Stack] = ()) -> None:
        """The current task is about to do something that others can see; to be called only if there is a `lag`.

        Args:
            stack: user frames, or what captures them if somebody wants to know.
        """
        lag, task = self.lag, self.current
        if lag is None or task is None or task.ending is not None or self._draining:
            return
        task.operations += 1
        operation = Operation(task.label, task.operations, verb, target, writes, _captured(stack, lag.keeps_stacks))
        lag.consider(task, operation, stack)
        if lag.is_behind(task) and self._must_give_way(lag, task):
            self._make_ready(task, task.token)
            self._suspend(task)
        lag.log.add(operation)

    def _must_give_way(self, lag: Lag, task: Task) -> bool:
        """Whether some other task may come before one that is behind."""
        env = self.env
        must = bool(self._ready) or env.peek() <= env.now or lag.may_wait(task, self._deadlines.earliest_s())
        return must and not (self._kind == "greenlet" and is_below_cpp())

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
    def has_threads(self) -> bool:
        """Each task has a thread of its own."""
        return self._kind == "thread"

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

    def interrupt(self, task: Task, error: Exception) -> None:
        """Let a task that waits raise `error` there, once."""
        if task.alive and task.ending is None:
            task.ending = error
            self._make_ready(task, task.token)

    def freeze(self, task: Task) -> None:
        """A task stops for good where it is, as a process that is killed: nothing of it runs any more.

        A thread stays parked until the real process ends. A greenlet, and any task under `delays` (of which there may
        be thousands of runs), is unwound once the run is over.
        """
        if not task.alive:
            return
        self._living -= 1
        task.alive, task.frozen, task.wait = False, True, None
        if task.queued:
            self._ready.remove(task)
            task.queued = False
        self.progress()
        if task is self.current:
            self._suspend(task)

    def release(self, task: Task) -> None:
        """Let a task that waits go on, though what it waits for has not happened."""
        if task.alive and task is not self.current:
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

    @contextmanager
    def alone_in_process(self) -> Iterator[None]:
        """While this is open, no other task of the current task's owner runs: it holds its interpreter's lock."""
        task = self.current
        if task is None or task.owner in self._holders:
            yield
            return
        self._holders[task.owner] = task
        for other in [t for t in self._ready if t.owner is task.owner and t is not task]:
            self._ready.remove(other)
            other.queued = False
            self._held.append((other, other.token, None))
        try:
            yield
        finally:
            del self._holders[task.owner]
            held, self._held = self._held, []
            for other, token, event in held:
                self._make_ready(other, token, event)

    def _make_ready(self, task: Task, token: int, event: Any = None) -> None:
        if self._holders and self._holders.get(task.owner, task) is not task:
            self._held.append((task, token, event))
            return
        if task.alive and not task.queued and task.token == token:
            task.token += 1
            task.queued = True
            self._ready.append(task)
            if self.lag is not None:
                self.lag.woken(task, event)

    def _suspend(self, task: Task) -> None:
        if self._kind == "greenlet":
            refuse_below_cpp()
        self._hand_on(task, finished=False)
        self._enter(task)
        if task.ending is not None:
            raise _taken(task)

    def _enter(self, task: Task) -> None:
        if self._last is not task:
            self._on_switch(self._last, task)
        self._last = self.current = task
        if task.wait is None or task.wait.kind != "poll":
            self.moves += 1
        task.wait = None
        task.polls = 0
        task.thread_id = task.carrier.frame_owner()
        self.switches += 1
        if self.lag is not None:
            self.lag.env.running = task

    def _hand_on(self, task: Task, *, finished: bool) -> None:
        self.current = None
        if self.lag is not None:
            self.lag.env.running = None
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
                if self._ready and (index := self._index()) is not None:
                    return self._choose(index)
                if not self._advance():
                    return None
        except BaseException as error:
            self._fail(error)
        return None

    def _index(self) -> int | None:
        """Which of the ready tasks goes on; None: let time pass first."""
        if self.lag is None:
            return self._ask_policy() if len(self._ready) > 1 else 0
        while self.env.peek() <= self.env.now:
            self.env.step()
        return self.lag.choose(self._ready, self._deadlines.earliest_s())

    def _choose(self, index: int) -> Task | None:
        self._idle_steps += 1
        if self._idle_steps > self.limits.idle_steps_max:
            self.stop(End.LIVELOCK)
            return None
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
        if not self._living:
            return False  # what is still to come concerns nobody
        event_at = self.env.peek()
        deadline_at = self._deadlines.earliest_s()
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
        if min(event_at, deadline_at) > self._until_s:
            self.stop(End.UNTIL)
            return False
        if event_at <= deadline_at:
            self.env.step()
        else:
            self._strike(deadline_at)
        return True

    def earliest_deadline_task(self) -> Task | None:
        """The task whose time-out would strike next."""
        return self._deadlines.earliest_task()

    def _strike(self, at_s: float) -> None:
        task, token = self._deadlines.take()
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
            if (task.alive or self._thaws(task)) and not task.abandoned:
                task.ending = task.ending or RankEnded("killed")
                self._await(task)
        for task in self.tasks:
            if task.ending is not None:
                task.ending.__traceback__ = None  # its frames hold what the ranks had
        self.current = None
        if self._last is not None:
            self._on_switch(self._last, None)
            self._last = None

    def _thaws(self, task: Task) -> bool:
        return task.frozen and (self._kind == "greenlet" or self.lag is not None)

    def _await(self, task: Task) -> None:
        """Give the baton to `task` and wait until it comes back to the runner."""
        assert self._watchdog is not None
        if self._kind == "thread":
            self._baton_is_out = True
            task.carrier.wake()
            self._watchdog.wait_finished()
            self._baton_is_out = False
        else:
            self._await_greenlet(task, self._watchdog)

    def _await_greenlet(self, task: Task, watchdog: Watchdog) -> None:
        beside = self._beside or Beside()
        try:
            with beside.watching(watchdog):
                task.carrier.wake()
        finally:
            if beside is not self._beside:
                beside.close()

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


def _taken(task: Task) -> BaseException:
    """What a task raises where it waits; what does not end it is raised once."""
    ending = task.ending
    assert ending is not None
    if not isinstance(ending, RankEnded):
        task.ending = None
    return ending


def _captured(stack: Stack | Callable[[], Stack], wanted: bool) -> Stack:
    if isinstance(stack, tuple):
        return stack
    return stack() if wanted else ()
