"""signal, os.kill: ranks can signal each other and themselves.

Not modelled: a handler that another rank's signal would interrupt the rank with (the default action is taken, unless
the handler is SIG_IGN), timers (`alarm`, `setitimer` never fire), masks. To stop a process is refused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from simulator.engine.errors import RankEnded
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation

SIGABRT = int(signal.SIGABRT)
SIGKILL = int(signal.SIGKILL)
_NO_HARM = frozenset((0, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH))
_STOPS = frozenset((signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
_FRESH = {int(signal.SIGINT): signal.default_int_handler, int(signal.SIGPIPE): signal.SIG_IGN}
_CANNOT_BE_HANDLED = (signal.SIGKILL, signal.SIGSTOP)


def install_signals(patches: Patches, sim: Simulation) -> None:
    """Each rank has handlers of its own; the real process keeps its own."""

    def kill(context: RankContext, real: Any, pid: int, number: int, /) -> None:
        others = _group_of(sim, context, -pid) if pid <= 0 else [c for c in sim.contexts.values() if c.pid == pid]
        others = [other for other in others if not other.ended]
        if not others:
            raise ProcessLookupError(3, "No such process")
        for other in sorted(others, key=lambda other: other is context):
            _deliver(sim, context, other, int(number))

    answers: dict[str, Callable[..., Any]] = {
        "signal": _set_handler,
        "getsignal": lambda context, real, number: _handler(context, number),
        "raise_signal": lambda context, real, number: kill(context, real, context.pid, number),
        "set_wakeup_fd": lambda context, real, fd, warn_on_full_buffer=True: -1,
        "siginterrupt": lambda context, real, number, flag: None,
        "alarm": lambda context, real, seconds: 0,
        "setitimer": lambda context, real, which, seconds, interval=0.0: (0.0, 0.0),
    }
    for name, answer in answers.items():
        per_rank(patches, sim, signal, name, answer)
    per_rank(patches, sim, os, "kill", kill)
    per_rank(patches, sim, os, "killpg", lambda context, real, group, number: kill(context, real, -group, number))
    for name in ("getpgid", "getpgrp", "getsid"):
        per_rank(patches, sim, os, name, lambda context, real, pid=0: context.parent_pid)


def _group_of(sim: Simulation, context: RankContext, group: int) -> list[RankContext]:
    """The ranks of one node are one process group, led by what launched them."""
    wanted = group or context.parent_pid
    return [other for other in sim.contexts.values() if other.parent_pid == wanted]


def _deliver(sim: Simulation, sender: RankContext, to: RankContext, number: int) -> None:
    handler = _handler(to, number) if number else None
    if number in _NO_HARM or handler is signal.SIG_IGN:
        return
    if callable(handler) and to is sender and number not in _CANNOT_BE_HANDLED:
        handler(number, None)
        return
    if number in _STOPS:
        raise NotImplementedError(
            f"{signal.Signals(number).name} to rank {to.rank}: stopping a process is not modelled; the "
            "faults 'slow' and 'cut' make a rank late or unreachable"
        )
    sim.end_rank(to, RankEnded("crash", -number))


def _handler(context: RankContext, number: int) -> Any:
    return context.process.handlers.get(int(number), _FRESH.get(int(number), signal.SIG_DFL))


def _set_handler(context: RankContext, real: Any, number: int, handler: Any, /) -> Any:
    if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
        raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
    if not 1 <= number < signal.NSIG:
        raise ValueError("signal number out of range")
    if number in _CANNOT_BE_HANDLED:
        raise OSError(22, "Invalid argument")
    before = _handler(context, number)
    context.process.handlers[int(number)] = handler
    return before
