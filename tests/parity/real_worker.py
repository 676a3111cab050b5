"""One real rank: a process that runs program after program over gloo, and says how each one ended.

A rank that returns stays connected until all have ended, so what its peers wait for is not confused with its end. A
rank that raises ends its process, as a real one would, and its peers find their connections closed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.nn.functional  # here, since its default arguments are WORLD as it is at the import
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers

from tests.parity.program import Program


@dataclass(frozen=True, slots=True)
class Job:
    """A program and how it is run.

    Attributes:
        deadline_s: wall seconds after which a rank that has not ended counts as hung.
        group_timeout_s: default time-out of groups and stores; None: torch's own.
        detail: with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    """

    program: Program
    deadline_s: float = 10.0
    group_timeout_s: float | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        status: `ok`, `error`, `died` (killed by a signal, such as gloo's abort), or `hung`.
        value: what `main` returned.
        error: `Type: first line`.
        lines: lines of the program in the traceback, the innermost first.
        after_s: wall seconds since the start.
    """

    status: str
    value: Any = None
    error: str = ""
    lines: tuple[int, ...] = ()
    after_s: float = 0.0


def serve(rank: int, requests: Connection) -> None:
    """Run what is asked for until the other end is gone."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    clean = dict(os.environ)
    while True:
        job, store_path = requests.recv()
        threads = threading.active_count()
        _prepare(rank, job, store_path)
        end = _run(rank, job)
        requests.send(end)
        if end.status != "ok" or threading.active_count() > threads:
            return
        requests.recv()  # all have ended
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(clean)


def be_quiet() -> None:
    """Drop what torch warns of, and what gloo says before it aborts."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _prepare(rank: int, job: Job, store_path: str) -> None:
    """What a launcher gives a rank; `env://` leads to a store in a file, which needs no connection of its own."""
    size = job.program.world_size
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))

    def rendezvous(url: str, **options: Any) -> Iterator[tuple[dist.Store, int, int]]:
        yield dist.FileStore(store_path, -1), rank, size

    _rendezvous_handlers["env"] = rendezvous
    dist.set_debug_level(dist.DebugLevel.DETAIL if job.detail else dist.DebugLevel.OFF)
    seconds = 1800.0 if job.group_timeout_s is None else job.group_timeout_s
    c10d.default_pg_timeout = timedelta(seconds=seconds)
    torch.manual_seed(0)


def _run(rank: int, job: Job) -> RankEnd:
    start = time.monotonic()
    try:
        value = job.program.main()(rank, job.program.world_size)
    except BaseException as error:
        lines = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == job.program.file]
        text = f"{type(error).__name__}: {_first_line(str(error))}"
        return RankEnd("error", None, text, tuple(reversed(lines)), time.monotonic() - start)
    return RankEnd("ok", value, after_s=time.monotonic() - start)


def _first_line(text: str) -> str:
    return re.sub(r"\[[^\]]*\.(cc|cpp|h):\d+\] ?", "", text.strip().split("\n", 1)[0])
