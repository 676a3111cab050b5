"""The world in which simulations run, one after another.

Putting it up and taking it down takes longer than a small run, so whoever runs many keeps it up meanwhile. What a run
leaves behind in modules that the ranks share is there in the next one, as it would be with a stage for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from simulator.engine.watchdog import Beside
from simulator.torch_world.affinity import on_one_cpu
from simulator.torch_world.alone import only_simulation
from simulator.torch_world.install import installed
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import Servers

ONE_CPU_FROM = 256
"""Ranks from which on a run keeps to one CPU."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What `open_stage` gives: a simulation to begin runs on, its stores, and who watches greenlets."""

    sim: Simulation
    servers: Servers
    beside: Beside


@contextmanager
def open_stage(ranks: int, *, one_cpu: bool = False) -> Iterator[Stage]:
    """While this is open, code in ranks sees the simulation; afterwards all is as it was.

    Args:
        ranks: how many at most take part in a run.
        one_cpu: keep to one CPU however few they are: pays for many small runs.

    Raises:
        UsageError: a stage is open in this process already.
    """
    sim = Simulation()
    stage = Stage(sim, Servers(sim), Beside())
    with only_simulation(), on_one_cpu(one_cpu or ranks >= ONE_CPU_FROM), installed(sim, stage.servers):
        try:
            yield stage
        finally:
            stage.beside.close()
