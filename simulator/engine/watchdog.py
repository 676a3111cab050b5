"""The only place that looks at the wall clock: to see a task that never blocks, and to show progress."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from simulator.engine.errors import RankEnded

if TYPE_CHECKING:
    from simulator.engine.scheduler import Scheduler

_TICK_S = 0.25
_GRACE_S = 1.0


class Watchdog:
    """Waits, on the thread that called `Scheduler.run`, for the baton to come back, and watches meanwhile."""

    def __init__(self, scheduler: Scheduler, on_spin: Callable[[], None], on_tick: Callable[[Scheduler], None]) -> None:
        self._scheduler = scheduler
        self._on_spin = on_spin
        self._on_tick = on_tick
        self._done = threading.Semaphore(0)

    def finished(self) -> None:
        """The baton comes back to the runner."""
        self._done.release()

    def wait_finished(self) -> None:
        """Block until the baton is back, or until a task that never blocks had to be given up."""
        seen, since = self._scheduler.switches, monotonic()
        while not self._done.acquire(timeout=_TICK_S):
            self._on_tick(self._scheduler)
            if self._scheduler.switches != seen:
                seen, since = self._scheduler.switches, monotonic()
            elif monotonic() - since > self._scheduler.limits.spin_wall_s:
                self._give_up()
                return

    @contextmanager
    def from_beside(self) -> Iterator[None]:
        """Watch from a thread of its own while greenlets run on the calling thread."""
        beside = threading.Thread(target=self.wait_finished, name="hangcheck-watchdog", daemon=True)
        beside.start()
        try:
            yield
        finally:
            self._done.release()
            beside.join()

    def take_back(self) -> None:
        """Wait a moment for the baton, and then give up the task that has it."""
        if not self._done.acquire(timeout=_GRACE_S):
            self._give_up()

    def _give_up(self) -> None:
        task = self._scheduler.current
        if task is None:
            return
        self._on_spin()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(task.carrier.frame_owner()), ctypes.py_object(RankEnded)
        )
        if not self._done.acquire(timeout=_GRACE_S):
            task.abandoned = True
