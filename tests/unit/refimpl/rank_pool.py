"""Real processes that run the same body, one rank each; a body that does not end in time fails the test.

A pool is kept for a session because starting a process costs more than most bodies, importing torch above all.
"""

from __future__ import annotations

import itertools
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

Body = Callable[..., None]


def _serve(rank: int, world_size: int, requests: Connection) -> None:
    """One rank: run what is asked for and answer with None or the traceback."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            body, init_method, kwargs = requests.recv()
        except EOFError:
            return
        try:
            body(rank, world_size, init_method, **kwargs)
            requests.send(None)
        except BaseException:
            requests.send(traceback.format_exc())


class RankPool:
    """`world_size` processes; `run` lets each of them run a body and raises what they raised."""

    def __init__(self, world_size: int, folder: Path) -> None:
        self.world_size = world_size
        self._folder = folder
        self._serial = itertools.count()
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def run(self, body: Body, *, timeout_s: float = 60.0, **kwargs: Any) -> None:
        """Run `body(rank, world_size, init_method, **kwargs)` on all ranks.  Raises: AssertionError, TimeoutError."""
        if not self._processes:
            self._start()
        init_method = f"file://{self._folder}/rendezvous{next(self._serial)}"
        for pipe in self._pipes:
            pipe.send((body, init_method, kwargs))
        answers = self._answers(time.monotonic() + timeout_s)
        failures = {rank: answer for rank, answer in answers.items() if answer is not None}
        if failures or len(answers) < self.world_size:
            self.close()  # what the ranks are in now is unknown
        text = "".join(f"rank {rank}: {answer}\n" for rank, answer in sorted(failures.items()))
        assert not failures, f"{body.__name__} failed on {len(failures)} of {self.world_size} ranks\n{text}"
        if len(answers) < self.world_size:
            missing = sorted(set(range(self.world_size)) - answers.keys())
            raise TimeoutError(f"{body.__name__}: ranks {missing} did not end in {timeout_s:g} s")

    def _answers(self, deadline: float) -> dict[int, str | None]:
        """Answers by rank, up to the first failure: ranks that wait for a failed one would never answer."""
        answers: dict[int, str | None] = {}
        rank_of = {id(pipe): rank for rank, pipe in enumerate(self._pipes)}
        while len(answers) < self.world_size and not any(answers.values()):
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = wait(open_pipes, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = rank_of[id(pipe)]
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = "the process died"
        return answers

    def _start(self) -> None:
        context = mp.get_context("spawn")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world_size, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def close(self) -> None:
        """End the processes; the next `run` starts new ones."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=1.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []
