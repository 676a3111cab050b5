"""Runs of which the log of memory is kept, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import simulator.run
from simulator import Limits, Outcome, simulate
from simulator.memory_records import Access, MemoryLog


@contextmanager
def kept_logs() -> Iterator[list[MemoryLog]]:
    """The logs of the runs inside, in order. A run lets go of its own."""
    logs: list[MemoryLog] = []
    real = simulator.run.diagnose

    def diagnose(records: Any, facts: Any) -> Any:
        logs.append(records.memory)
        return real(records, facts)

    simulator.run.diagnose = diagnose  # type: ignore[assignment]
    try:
        yield logs
    finally:
        simulator.run.diagnose = real


def run(body: Any, ranks: int, **options: Any) -> tuple[Outcome, MemoryLog]:
    """Simulate, and keep the log. Torch may import much at a first call, on a busy machine."""
    with kept_logs() as logs:
        outcome = simulate(body, ranks, limits=Limits(spin_wall_s=100), **options)
    return outcome, logs[-1]


def accesses(log: MemoryLog, kind: str = "buffer") -> list[tuple[int, str, tuple[tuple[int, int, int], ...]]]:
    """Rank, kind of access, (rank of the owner, first byte, end byte) of each access to regions of `kind`, in order."""
    found = []
    for event in log.events:
        if isinstance(event, Access) and log.regions[event.spans[0][0]].kind == kind:
            spans = tuple((log.regions[number].rank, start, stop) for number, start, stop in event.spans)
            found.append((log.actors[event.actor].rank, event.kind, spans))
    return found


def start(*sizes: int, backend: str = "gloo", **options: Any) -> tuple[torch.Tensor, Any]:
    """A buffer of the calling rank, and its handle on WORLD."""
    if not dist.is_initialized():
        dist.init_process_group(backend)
    buffer = symm_mem.empty(*sizes, **{"device": "cuda", **options})
    return buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)
