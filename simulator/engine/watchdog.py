"""The only place that looks at the wall clock: to see a task that never blocks, and to show progress."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, process_time
from typing import TYPE_CHECKING

from simulator.engine.errors import RankEnded

if TYPE_CHECKING:
    from simulator.engine.scheduler import Scheduler

_TICK_S = 0.25
_GRACE_S = 1.0
_STARVED = (0.05, 0.5)
"""A process that is on a CPU for a part between these of the time computes, and others keep it from it: it has ..."""
_PATIENCE = 6
"""... so many times the limit. Tasks that only poll have as long."""


class Watchdog:
    """Waits, on the thread that called `Scheduler.run`, for the baton to come back, and watches meanwhile."""

    def __init__(self, scheduler: Scheduler, on_spin: Callable[[], None], on_tick: Callable[[Scheduler], None]) -> None:
        self._scheduler = scheduler
        self._on_spin = on_spin
        self._on_tick = on_tick
        self._done = threading.Semaphore(0)
        self._seen, self._since, self._cpu_s = -1, 0.0, 0.0
        self._moved, self._moved_at = (-1, -1), 0.0

    def finished(self) -> None:
        """The baton comes back to the runner."""
        self._done.release()

    def wait_finished(self) -> None:
        """Block until the baton is back, or until a task that never blocks had to be given up."""
        while not self._done.acquire(timeout=_TICK_S):
            if self.look():
                return

    def look(self) -> bool:
        """See how far the run is. True: a task that never blocks had to be given up."""
        self._on_tick(self._scheduler)
        if self._scheduler.switches != self._seen:
            self._seen, self._since, self._cpu_s = self._scheduler.switches, monotonic(), process_time()
        elif self._is_too_long(monotonic() - self._since):
            self._give_up()
            return True
        return self._only_polls()

    def _only_polls(self) -> bool:
        """Tasks look at clocks and the like, and go on at once; nothing else happens, for many times the limit."""
        moved = (self._scheduler.moves, self._scheduler.progress_count)
        if moved != self._moved:
            self._moved, self._moved_at = moved, monotonic()
        elif monotonic() - self._moved_at > self._scheduler.limits.spin_wall_s * _PATIENCE:
            self._give_up()
            return True
        return False

    def _is_too_long(self, wall_s: float) -> bool:
        limit_s = self._scheduler.limits.spin_wall_s
        low, high = _STARVED
        starved = low < (process_time() - self._cpu_s) / max(wall_s, _TICK_S) < high
        return wall_s > (limit_s * _PATIENCE if starved else limit_s)

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


class Beside:
    """A thread that watches while greenlets run on the calling thread: one for many runs.

    It looks four times a second, so a run costs it nothing; it starts with the first run, and ends with `close`.
    """

    def __init__(self) -> None:
        self._watched: Watchdog | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Semaphore(0)

    @contextmanager
    def watching(self, watchdog: Watchdog) -> Iterator[None]:
        """While this is open, `watchdog` looks at its run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="hangcheck-watchdog", daemon=True)
            self._thread.start()
        self._watched = watchdog
        try:
            yield
        finally:
            self._watched = None
            watchdog.finished()

    def _loop(self) -> None:
        while not self._closed.acquire(timeout=_TICK_S):
            watchdog = self._watched
            if watchdog is not None and watchdog.look():
                self._watched = None

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._closed.release()
            self._thread.join()
            self._thread = None
