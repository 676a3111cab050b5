"""Where trials run: in this process, in others of this machine, or wherever an executor takes them.

    explore(work, 4, schedules=10_000, executor=Client(address).get_executor())

Any `concurrent.futures.Executor` will do. What comes back has the order in which it was asked for, so the number of
workers makes no difference to the result. Two trials never run at once in one process, whose state they replace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context

from simulator.engine.errors import UsageError
from simulator.exploration.program import Program, why_it_stays
from simulator.exploration.trial import Numbered, Trial, run_chunk

CHUNK = 16
"""Trials that travel together: a stage is put up once for all of them."""
SCHEDULES_PER_WORKER = 100
"""A process takes seconds to start, so it must be worth it."""

Chunk = Sequence[Numbered]
OnDone = Callable[[Sequence[Trial]], None]


def run_trials(
    program: Program, numbered: Chunk, *, look: bool, executor: Executor | None, on_done: OnDone
) -> list[Trial]:
    """All trials, in the order of `numbered`. `on_done` gets them bit by bit.

    Raises:
        UsageError: a worker process died.
    """
    chunks = [numbered[start : start + CHUNK] for start in range(0, len(numbered), CHUNK)]
    if executor is None:
        results: Iterator[list[Trial]] = (run_chunk(program, chunk, look) for chunk in chunks)
    else:
        results = _elsewhere(program, chunks, look, executor)
    trials: list[Trial] = []
    for some in results:
        trials += some
        on_done(some)
    return trials


def _elsewhere(program: Program, chunks: Sequence[Chunk], look: bool, executor: Executor) -> Iterator[list[Trial]]:
    futures = [executor.submit(run_chunk, program, chunk, look) for chunk in chunks]
    try:
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise UsageError(
            "a worker process died: the program ends its process in C code, or needs more memory than there is; "
            "workers=1 runs it in this process"
        ) from None
    finally:
        for future in futures:
            future.cancel()


@contextmanager
def workers_for(program: Program, schedules: int, workers: int | None) -> Iterator[tuple[Executor | None, str]]:
    """Processes on this machine, None if it is not worth it; and a note where it would have been, but cannot be.

    Args:
        workers: how many; None: as many as there are CPUs, but one for each 100 schedules at most.
    """
    wanted = workers or min(os.cpu_count() or 1, schedules // SCHEDULES_PER_WORKER)
    reason = why_it_stays(program) if wanted > 1 else ""
    if wanted <= 1 or reason:
        yield None, f"all schedules run in one process: {reason}" if reason else ""
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn"), initializer=_settle) as pool:
        yield pool, ""


def _settle() -> None:
    """One trial keeps one CPU busy."""
    import torch

    torch.set_num_threads(1)
