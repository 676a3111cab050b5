"""os, socket, platform, signal: what a rank sees of its process and its host."""

from __future__ import annotations

import os
import platform
import signal
import socket
from collections.abc import Callable
from typing import Any

from simulator.engine.errors import RankEnded
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def install_process(patches: Patches, sim: Simulation) -> None:
    """Replace pids, host names, process exit and what only a main thread may do."""

    def per_rank(target: Any, name: str, answer: Callable[..., Any]) -> None:
        real = getattr(target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            return real(*args, **kwargs) if context is None else answer(context, real, *args, **kwargs)

        call.__name__ = name
        patches.set(target, name, call)

    per_rank(os, "getpid", lambda context, real: context.pid)
    per_rank(os, "getppid", lambda context, real: context.parent_pid)
    per_rank(os, "putenv", lambda context, real, key, value: None)
    per_rank(os, "unsetenv", lambda context, real, key: None)
    per_rank(os, "_exit", lambda context, real, code: sim.end_rank(context, RankEnded("exit", code)))
    per_rank(os, "abort", lambda context, real: sim.end_rank(context, RankEnded("crash", -signal.SIGABRT)))
    per_rank(os, "kill", lambda context, real, pid, number: _kill(sim, context, pid, number))
    per_rank(os, "chdir", _chdir)
    per_rank(socket, "gethostname", lambda context, real: context.node.host)
    per_rank(socket, "getfqdn", lambda context, real, name="": name or context.node.host)
    per_rank(socket, "gethostbyname", lambda context, real, host: _address(sim, context, real, host))
    per_rank(platform, "node", lambda context, real: context.node.host)
    per_rank(os, "uname", lambda context, real: _uname(context, real()))
    per_rank(signal, "signal", lambda context, real, number, handler: signal.SIG_DFL)


def _kill(sim: Simulation, context: Any, pid: int, number: int) -> None:
    for other in sim.contexts.values():
        if other.pid == pid:
            if number == 0:
                if other.ended:
                    raise ProcessLookupError(3, "No such process")
                return
            sim.end_rank(other, RankEnded("crash", -number))
            return
    raise ProcessLookupError(3, "No such process")


def _chdir(context: Any, real: Callable[[Any], None], path: Any) -> None:
    real(path)
    context.saved["cwd"] = os.getcwd()


def _address(sim: Simulation, context: Any, real: Callable[[str], str], host: str) -> str:
    for node in sim.nodes:
        if host == node.host:
            return f"10.0.0.{node.number + 1}"
    return "127.0.0.1" if host == "localhost" else real(host)


def _uname(context: Any, real: Any) -> Any:
    return os.uname_result((real.sysname, context.node.host, real.release, real.version, real.machine))
