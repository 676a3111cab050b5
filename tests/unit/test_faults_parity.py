"""What a killed rank does to real processes is what it does to simulated ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator import simulate

pytestmark = pytest.mark.gloo

BODY = '''
import time
from datetime import timedelta
import torch
import torch.distributed as dist


def collective(rank, strike):
    """Three ranks; rank 2 dies in its second all_reduce."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    x = torch.ones(1)
    dist.all_reduce(x)
    strike(2)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        texts = ("Connection closed by peer", "Connection reset by peer")  # real gloo: it depends on what was unread
        return "lost a peer" if any(text in str(error) for text in texts) else str(error)
    return x.item()


def store(rank, strike):
    """Rank 0 dies with its store: who waits, and who asks then."""
    kept = dist.TCPStore("127.0.0.1", PORT, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
    kept.add("here", 1)
    while rank == 0 and int(kept.get("here")) < 3:
        time.sleep(0.05)
    if rank == 0:
        time.sleep(1)
    strike(0)
    if rank == 2:
        time.sleep(3)
    told = []
    for call in (lambda: kept.get("never"), lambda: kept.set("a", "b"), lambda: kept.add("n", 1)):
        try:
            told.append(repr(call()))
        except Exception as error:
            told.append(f"{type(error).__name__}: {str(error)[:40]}")
    return told
'''
MAIN = """
import os, signal, sys
def strike(who):
    if who == int(os.environ["RANK"]):
        os.kill(os.getpid(), signal.SIGKILL)
print(repr(globals()[sys.argv[1]](int(os.environ["RANK"]), strike)), flush=True)
os._exit(0)
"""


def real(name: str, port: int, folder: Path) -> dict[int, Any]:
    """What three real processes print, or their exit codes."""
    script = folder / f"{name}.py"
    script.write_text(BODY.replace("PORT", str(port)) + MAIN)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), name],
            env={**os.environ, **address, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(3)
    ]
    printed = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    return {number: printed[number] or rank.returncode for number, rank in enumerate(ranks)}


def simulated(name: str, fault: str) -> dict[int, Any]:
    """The same of simulated ranks, which a fault kills."""
    names: dict[str, Any] = {"PORT": 29517}
    exec(compile(BODY, "body.py", "exec"), names)
    outcome = simulate(lambda rank: repr(names[name](rank, lambda who: None)), 3, faults=[fault])
    return {rank: outcome.results.get(rank, record.exit_code) for rank, record in sorted(outcome.ranks.items())}


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "fault", "dead"),
    [("collective", "kill rank=2 at=all_reduce#2", 2), ("store", "kill rank=0 at=1s", 0)],
)
def test_peers_of_a_killed_rank_get_what_real_ones_get(name: str, fault: str, dead: int, tmp_path: Path) -> None:
    """On gloo, in a collective; and from a TCPStore whose server is gone. The exit code is that of SIGKILL."""
    expected = real(name, free_port(), tmp_path)
    assert expected[dead] == -signal.SIGKILL
    assert simulated(name, fault) == expected
