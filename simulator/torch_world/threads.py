"""Threads that a rank starts belong to that rank, and its locks block in virtual time.

`threading.Condition`, `Event`, `Semaphore`, `Barrier` and `queue.Queue` are built on `threading.Lock` and `RLock`, so
replacing those two (in rank threads only) carries them along. Not modelled: asyncio's selector, sockets, pipes and
sub-processes; a lock that was made before the run blocks for real.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from typing import Any

import simpy

from simulator.engine.errors import RankEnded
from simulator.engine.scheduler import Task, Wait
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


class SimLock:
    """A lock that is real outside the ranks, and blocks in virtual time inside them."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._real = _thread.allocate_lock()
        self._waiters: list[simpy.Event] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._real.acquire(False):
            return True
        if self._sim.scheduler.here() is None:
            return self._real.acquire(blocking, timeout)
        if not blocking:
            self._sim.scheduler.poll("a lock, in a loop")
            return self._real.acquire(False)
        return self._wait(timeout)

    def _wait(self, timeout: float) -> bool:
        scheduler = self._sim.scheduler
        deadline = scheduler.env.now + timeout
        while not self._real.acquire(False):
            left = None if timeout < 0 else deadline - scheduler.env.now
            event = scheduler.event()
            self._waiters.append(event)
            wait = Wait("lock", "a lock of its own process", self._sim.sites.capture(2), None, left is not None)
            if (left is not None and left <= 0) or not scheduler.wait(event, wait, left):
                return self._real.acquire(False)
        return True

    def release(self) -> None:
        self._real.release()
        waiters, self._waiters = self._waiters, []
        for event in waiters:
            if not event.triggered:
                event.succeed()

    def locked(self) -> bool:
        return self._real.locked()

    def _at_fork_reinit(self) -> None:
        self._real = _thread.allocate_lock()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def install_threads(patches: Patches, sim: Simulation) -> None:
    """Replace locks, thread start and join, and the C queue that thread pools use."""
    real_lock, real_rlock = threading.Lock, threading.RLock
    patches.set(threading, "Lock", lambda: real_lock() if sim.here() is None else SimLock(sim))
    patches.set(threading, "_allocate_lock", lambda: real_lock() if sim.here() is None else SimLock(sim))
    patches.set(threading, "RLock", lambda: real_rlock() if sim.here() is None else _rlock(sim))
    patches.set(queue, "SimpleQueue", _queue_class(sim, queue.SimpleQueue))
    _install_start(patches, sim)
    _install_join(patches, sim)


def _rlock(sim: Simulation) -> Any:
    lock = threading._PyRLock()  # type: ignore[attr-defined]
    lock._block = SimLock(sim)
    return lock


def _queue_class(sim: Simulation, real: type) -> Callable[[], Any]:
    return lambda: real() if sim.here() is None else queue._PySimpleQueue()  # type: ignore[attr-defined]


def _install_start(patches: Patches, sim: Simulation) -> None:
    """threading starts a thread through one of two module-level names, depending on Python's version."""
    for name in ("_start_new_thread", "_start_joinable_thread"):
        real = getattr(threading, name, None)
        if real is not None:
            patches.set(threading, name, _starter(sim, real))


def _starter(sim: Simulation, real: Callable[..., Any]) -> Callable[..., Any]:
    def start(bootstrap: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context = sim.here()
        if context is None:
            return real(bootstrap, *args, **kwargs)
        thread = getattr(bootstrap, "__self__", None)
        name = getattr(thread, "name", "thread")
        positional = args[0] if args else ()

        def body() -> None:
            try:
                bootstrap(*positional)
            except RankEnded:
                pass

        task, run = sim.scheduler.adopt(f"r{context.rank}/{name}", context, body)
        context.tasks.append(task)
        if thread is not None:
            thread._hangcheck_task = task
            task.daemon = thread.daemon
        return real(run, *(((),) if args else ()), **kwargs)

    return start


def _install_join(patches: Patches, sim: Simulation) -> None:
    real = threading.Thread.join

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        task: Task | None = getattr(self, "_hangcheck_task", None)
        if task is not None and sim.here() is not None:
            wait = Wait("thread", f"join of thread {self.name!r}", sim.sites.capture(1), None, timeout is not None)
            if not sim.scheduler.join(task, wait, timeout):
                return
        real(self, timeout)

    patches.set(threading.Thread, "join", join)
