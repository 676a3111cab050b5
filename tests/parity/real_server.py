"""Forks real ranks: has torch imported and does nothing else, so that a new rank costs a few milliseconds.

    python -m tests.parity.real_server SOCKET [MODULE ...]

It imports the modules, so that no rank has to. It reads its orders from stdin, one a line: `start LANE RANK` forks a
rank, which connects to the socket and says which one it is; `stop LANE` kills the ranks of a lane. At the end of stdin
it kills all, and ends.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Client

from tests.parity.real_worker import be_quiet, serve

LOOK_S = 1.0


def main(socket: str, modules: list[str]) -> None:
    """Take orders until there are no more."""
    be_quiet()
    for module in modules:
        importlib.import_module(module)
    children: dict[str, list[int]] = {}
    for line in sys.stdin:
        order, lane, *rank = line.split()
        if order == "start":
            children.setdefault(lane, []).append(_forked(socket, int(lane), int(rank[0])))
        else:
            _stop(children.pop(lane, []))
    for pids in children.values():
        _stop(pids)


def _forked(socket: str, lane: int, rank: int) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(0)
        threading.Thread(target=_end_with, args=(server,), daemon=True).start()
        requests = Client(socket)
        requests.send((lane, rank))
        try:
            serve(rank, requests)
        finally:
            os._exit(1)
    return pid


def _end_with(server: int) -> None:
    """A rank does not outlive the server, even one that was killed."""
    while os.getppid() == server:
        time.sleep(LOOK_S)
    os._exit(1)


def _stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
