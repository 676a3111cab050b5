"""The world in which simulations run, one after another.

Putting it up and taking it down takes longer than a small run, so whoever runs many keeps it up meanwhile. What a run
leaves behind in modules that the ranks share is there in the next one, as it would be with a stage for each.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from simulator.engine.watchdog import Beside
from simulator.torch_world.affinity import on_one_cpu
from simulator.torch_world.alone import only_simulation
from simulator.torch_world.gpu.install import GpuStage
from simulator.torch_world.install import installed
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import Servers

ONE_CPU_FROM = 256
"""Ranks from which on a run keeps to one CPU."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What `open_stage` gives: a simulation to begin runs on, its stores, its GPUs, and who watches greenlets."""

    sim: Simulation
    servers: Servers
    beside: Beside
    gpus: GpuStage


@contextmanager
def open_stage(ranks: int, *, many_runs: bool = False) -> Iterator[Stage]:
    """While this is open, code in ranks sees the simulation; afterwards all is as it was.

    Args:
        ranks: how many at most take part in a run.
        many_runs: keep to one CPU however few they are, and spare the garbage collector what is there already. It
            would look at all of torch every few runs.

    Raises:
        UsageError: a stage is open in this process already.
    """
    sim = Simulation()
    stage = Stage(sim, Servers(sim), Beside(), GpuStage(sim))
    with only_simulation(), on_one_cpu(many_runs or ranks >= ONE_CPU_FROM), installed(sim, stage.servers):
        try:
            with _frozen_heap() if many_runs else nullcontext():
                yield stage
        finally:
            stage.beside.close()
            stage.gpus.close()


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """While open, the garbage collector leaves alone what exists now (unless the process has frozen some itself)."""
    mine = gc.get_freeze_count() == 0
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()
