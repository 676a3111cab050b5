"""Threads that a rank starts belong to that rank; each rank has a main thread of its own.

Not modelled: sockets, pipes and sub-processes, which block for real; threads started below `threading`
(`_thread.start_new_thread`, C++), which are no part of the simulation. A rank's main thread has the simulator's name.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from simulator.engine.errors import RankEnded
from simulator.engine.scheduler import Task, Wait
from simulator.torch_world.context import RankContext
from simulator.torch_world.locks import install_locks
from simulator.torch_world.patches import Patches
from simulator.torch_world.polling import looked
from simulator.torch_world.simulation import Simulation


def install_threads(patches: Patches, sim: Simulation) -> None:
    """Replace locks, and what starts, ends and lists threads."""
    install_locks(patches, sim)
    _install_numbers(patches, sim)
    _install_start(patches, sim)
    _install_join(patches, sim)
    _install_lists(patches, sim)


def task_of(thread: threading.Thread) -> Task | None:
    """The task of a thread that a rank has started."""
    task: Task | None = getattr(thread, "_hangcheck_task", None)
    return task


def _install_numbers(patches: Patches, sim: Simulation) -> None:
    """Threads and pools are numbered within their rank, as in a process of its own."""

    def counter(real: Callable[[], int], own: Callable[[RankContext], Iterator[int]]) -> Callable[[], int]:
        def number() -> int:
            context = sim.here()
            return real() if context is None else next(own(context))

        return number

    pools: Any = ThreadPoolExecutor
    of_threads = counter(vars(threading)["_counter"], lambda context: context.process.thread_numbers)
    of_pools = counter(pools._counter, lambda context: context.process.pool_numbers)
    patches.set(threading, "_counter", of_threads)
    patches.set(pools, "_counter", staticmethod(of_pools))


def _install_start(patches: Patches, sim: Simulation) -> None:
    """threading starts a thread through one of two module-level names, depending on Python's version."""
    for name in ("_start_new_thread", "_start_joinable_thread"):
        real = getattr(threading, name, None)
        if real is not None:
            patches.set(threading, name, _starter(sim, real))
    real_start = threading.Thread.start

    def start(self: threading.Thread) -> None:
        real_start(self)
        if task_of(self) is not None:
            _not_awaited_at_exit(self)

    patches.set(threading.Thread, "start", start)


def _starter(sim: Simulation, real: Callable[..., Any]) -> Callable[..., Any]:
    def start(bootstrap: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context, thread = sim.here(), getattr(bootstrap, "__self__", None)
        if context is None or not isinstance(thread, threading.Thread):
            return real(bootstrap, *args, **kwargs)
        task, run = sim.scheduler.adopt(f"r{context.rank}/{thread.name}", context, bootstrap)
        context.tasks.append(task)
        thread._hangcheck_task = task  # type: ignore[attr-defined]
        task.daemon = thread.daemon
        _watch_exceptions(sim, thread, task)
        if "daemon" in kwargs:
            kwargs["daemon"] = True
        return real(run, *args, **kwargs)

    return start


def _watch_exceptions(sim: Simulation, thread: Any, task: Task) -> None:
    """Being ended is no exception; what the user's code raises goes to `threading.excepthook`, and into the trace."""
    real = thread._invoke_excepthook

    def invoke(self: threading.Thread) -> None:
        error = sys.exc_info()[1]
        if task.ending is None and not isinstance(error, RankEnded):
            sim.log("thread_error", task.name, type(error).__name__)
            real(self)

    thread._invoke_excepthook = invoke


def _not_awaited_at_exit(thread: Any) -> None:
    """A thread that had to be given up must not hold up the end of the real process."""
    locks = getattr(threading, "_shutdown_locks", None)  # Python 3.13 asks the thread's daemon flag instead
    if locks is not None:
        locks.discard(thread._tstate_lock)


def _install_join(patches: Patches, sim: Simulation) -> None:
    real_join, real_is_alive = threading.Thread.join, threading.Thread.is_alive

    def join(self: threading.Thread, timeout: float | None = None) -> None:
        task = task_of(self)
        if task is not None and sim.here() is not None and self is not threading.current_thread():
            wait = Wait("thread", f"join of thread {self.name!r}", sim.sites.capture(1), None, timeout is not None)
            if not sim.scheduler.join(task, wait, None if timeout is None else max(0.0, timeout)):
                return
        real_join(self, timeout)

    def is_alive(self: threading.Thread) -> bool:
        task = task_of(self)
        if task is None or sim.here() is None:
            return real_is_alive(self)
        if task.alive:
            looked(sim, f"whether thread {self.name!r} is alive, in a loop")
        return task.alive

    patches.set(threading.Thread, "join", join)
    patches.set(threading.Thread, "is_alive", is_alive)


def _install_lists(patches: Patches, sim: Simulation) -> None:
    real_main, real_enumerate = threading.main_thread, threading.enumerate

    def threads_of(context: RankContext) -> list[threading.Thread]:
        idents = [task.carrier.frame_owner() for task in context.tasks if task.alive]
        by_ident = {thread.ident: thread for thread in real_enumerate()}
        return [by_ident[ident] for ident in idents if ident in by_ident]

    def main_thread() -> threading.Thread:
        context = sim.here()
        return real_main() if context is None else next(iter(threads_of(context)), real_main())

    def enumerate_threads() -> list[threading.Thread]:
        context = sim.here()
        return real_enumerate() if context is None else threads_of(context)

    patches.set(threading, "main_thread", main_thread)
    patches.set(threading, "enumerate", enumerate_threads)
    patches.set(threading, "active_count", lambda: len(threading.enumerate()))
