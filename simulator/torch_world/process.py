"""os, atexit: what a rank sees of its process, and how the process ends.

Not modelled: sub-processes (a rank that forks is refused; `subprocess` starts a real process with the real
environment), `/proc`, psutil, a redirection of the standard streams with `os.dup2` (it has no effect: all ranks share
them, and another rank may run before they are put back), and the C environment: `os.environ` is the rank's own, what C
code reads with getenv is not.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from concurrent.futures import thread as pools
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d as c10d

from simulator.engine.errors import RankEnded, UsageError
from simulator.engine.scheduler import Wait
from simulator.torch_world.context import RankContext
from simulator.torch_world.hosts import install_hosts
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.signals import SIGABRT, install_signals
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.threads import task_of

STANDARD_ERROR = 2


def install_process(patches: Patches, sim: Simulation) -> None:
    """Replace pids, host names, signals, the end of the process, the working directory."""
    _install_ends(patches, sim)
    _install_surroundings(patches, sim)
    install_hosts(patches, sim)
    install_signals(patches, sim)


def _install_ends(patches: Patches, sim: Simulation) -> None:
    def end(context: RankContext, how: RankEnded) -> None:
        how.stack = sim.sites.capture()
        sim.end_rank(context, how)

    def leave(context: RankContext, real: Any, status: int) -> None:
        end(context, RankEnded("exit", status))

    def abort(context: RankContext, real: Any) -> None:
        end(context, RankEnded("crash", -SIGABRT))

    def fork(context: RankContext, real: Any) -> None:
        raise UsageError("a rank forks a process, which is not simulated: let the rank do the work itself")

    def register(context: RankContext, real: Any, hook: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not sim.sites.is_user(sys._getframe(2).f_code):
            return real(hook, *args, **kwargs)  # a library's, of the real process
        context.process.exit_hooks.append((hook, args, kwargs))
        return hook

    def unregister(context: RankContext, real: Any, hook: Callable[..., Any], /) -> None:
        real(hook)
        context.process.exit_hooks[:] = [given for given in context.process.exit_hooks if given[0] != hook]

    def dup2(context: RankContext, real: Any, fd: int, fd2: int, inheritable: bool = True) -> int:
        return fd2 if fd2 <= STANDARD_ERROR else int(real(fd, fd2, inheritable))

    per_rank(patches, sim, os, "dup2", dup2)
    per_rank(patches, sim, os, "_exit", leave)
    per_rank(patches, sim, os, "abort", abort)
    per_rank(patches, sim, os, "fork", fork)
    per_rank(patches, sim, os, "forkpty", fork)
    per_rank(patches, sim, atexit, "register", register)
    per_rank(patches, sim, atexit, "unregister", unregister)


def _install_surroundings(patches: Patches, sim: Simulation) -> None:
    def change_directory(context: RankContext, real: Any, path: Any) -> None:
        real(path)
        context.process.cwd = os.getcwd()

    per_rank(patches, sim, os, "getpid", lambda context, real: context.pid)
    per_rank(patches, sim, os, "getppid", lambda context, real: context.parent_pid)
    per_rank(patches, sim, os, "putenv", lambda context, real, key, value: None)
    per_rank(patches, sim, os, "unsetenv", lambda context, real, key: None)
    per_rank(patches, sim, os, "chdir", change_directory)
    per_rank(patches, sim, os, "fchdir", change_directory)
    per_rank(patches, sim, os, "urandom", lambda context, real, size: context.random_bytes(size))


def leave_process(sim: Simulation, context: RankContext, error: BaseException | None) -> None:
    """What the interpreter does once a rank's main function is over, in its order.

    An uncaught `error` goes to the `sys.excepthook` that the rank has set, idle pool workers are told to end, the
    threads that are no daemons are waited for, and the `atexit` hooks run, the last one first.
    """
    if error is not None and not isinstance(error, SystemExit) and not _only_prints(sys.excepthook, context):
        _attempt(lambda: sys.excepthook(type(error), error, error.__traceback__))
    _end_pool_workers(sim, context)
    _join_threads(sim, context)
    while context.process.exit_hooks:
        hook, args, kwargs = context.process.exit_hooks.pop()
        _attempt(partial(hook, *args, **kwargs))


def _only_prints(hook: Any, context: RankContext) -> bool:
    """The hook that the rank found, or the one that torch puts around it to print the rank: the report says it."""
    found = context.process.excepthook
    inside = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return hook is found or (getattr(hook, "__module__", "") == c10d.__name__ and found in inside)


def _attempt(hook: Callable[[], Any]) -> None:
    """The interpreter shows what a hook raises, and goes on."""
    try:
        hook()
    except RankEnded:
        raise
    except SystemExit:
        pass
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)


def _end_pool_workers(sim: Simulation, context: RankContext) -> None:
    for worker, jobs in list(pools._threads_queues.items()):
        task = task_of(worker)
        if task is not None and task.owner is context and task.alive:
            pool = worker._args[0]()  # a weak reference to the executor
            if pool is not None:
                pool._shutdown = True
            jobs.put(None)


def _join_threads(sim: Simulation, context: RankContext) -> None:
    for task in context.tasks:  # the list may grow while we wait
        if task is not sim.scheduler.current and not task.daemon:
            sim.scheduler.join(task, Wait("thread", f"its thread {task.name!r}, to end the process"))
