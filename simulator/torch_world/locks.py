"""Locks that block in virtual time inside the ranks, and for real outside them.

`threading.Condition`, `Event`, `Semaphore`, `Barrier` and `queue.Queue` are built on `threading.Lock` and `RLock`, so
replacing those two carries them along. Not modelled: a lock that was made before the run (by a module that the ranks
share) blocks for real, and so may stop all of them.
"""

from __future__ import annotations

import _thread
import queue
import threading
from typing import Any

import simpy

from simulator.engine.scheduler import Wait
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.polling import looked
from simulator.torch_world.simulation import Simulation


class SimLock:
    """A lock that is real outside the ranks, and blocks in virtual time inside them."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._real = _thread.allocate_lock()
        self._waiters: list[simpy.Event] = []
        context = sim.here()
        self._name = ("lock", "outside") if context is None else ("lock", context.rank, next(context.process.locks))

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._sim.announce_within("acquire", self._name, by_user=True)
        if self._real.acquire(False):
            return True
        if self._sim.here() is None:
            return self._real.acquire(blocking, timeout)
        if not blocking:
            looked(self._sim, "a lock, in a loop")
            return self._real.acquire(False)
        return self._wait_free(timeout)

    def _wait_free(self, timeout: float) -> bool:
        scheduler = self._sim.scheduler
        deadline = scheduler.env.now + timeout
        while not self._real.acquire(False):
            left = None if timeout < 0 else deadline - scheduler.env.now
            event = scheduler.event()
            self._waiters.append(event)
            wait = Wait("lock", "a lock of its own process", self._sim.sites.capture(2), None, left is not None)
            if (left is not None and left <= 0) or not scheduler.wait(event, wait, left):
                if event in self._waiters:
                    self._waiters.remove(event)
                return self._real.acquire(False)
        return True

    def release(self) -> None:
        task = self._sim.scheduler.here()
        if task is not None and task.ending is not None and not self._real.locked():
            return  # the task is being unwound out of a wait, which has given the lock back
        self._real.release()
        waiters, self._waiters = self._waiters, []
        for event in waiters:
            if not event.triggered:
                event.succeed()

    def locked(self) -> bool:
        return self._real.locked()

    def _is_owned(self) -> bool:
        """What `Condition` would find out by trying to acquire, without being taken for a poll."""
        return self._real.locked()

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def _at_fork_reinit(self) -> None:
        self._real = _thread.allocate_lock()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class LockOfEachRank:
    """In place of a lock that the standard library made at import and holds while it starts threads."""

    def __init__(self, sim: Simulation, real: Any) -> None:
        self._sim = sim
        self._real = real
        self._locks: dict[RankContext, SimLock] = {}
        sim.at_begin.append(self._locks.clear)

    def _mine(self) -> Any:
        context = self._sim.here()
        return self._real if context is None else self._locks.setdefault(context, SimLock(self._sim))

    def __enter__(self) -> bool:
        return bool(self._mine().acquire())

    def __exit__(self, *_: object) -> None:
        self._mine().release()


def install_locks(patches: Patches, sim: Simulation) -> None:
    """Replace `threading.Lock` and `RLock`, and the C queue that thread pools use."""
    from concurrent.futures import thread as pools

    real_lock, real_rlock, real_queue = threading.Lock, threading.RLock, queue.SimpleQueue

    class Lock:
        def __new__(cls) -> Any:
            return real_lock() if sim.here() is None else SimLock(sim)

    class RLock:
        def __new__(cls) -> Any:
            if sim.here() is None:
                return real_rlock()
            lock = threading._PyRLock()  # type: ignore[attr-defined]
            lock._block = SimLock(sim)
            return lock

    class SimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined, misc]
        def __new__(cls) -> Any:
            return real_queue() if sim.here() is None else super().__new__(cls)

    patches.set(threading, "Lock", Lock)
    patches.set(threading, "_allocate_lock", Lock)
    patches.set(threading, "RLock", RLock)
    patches.set(queue, "SimpleQueue", SimpleQueue)
    patches.set(pools, "_global_shutdown_lock", LockOfEachRank(sim, pools._global_shutdown_lock))
