"""A task that looks at something again and again without blocking is taken to poll: now and then the others run."""

from __future__ import annotations

from simulator.torch_world.simulation import Simulation

LOOKS_PER_POLL = 100
"""So many looks in a row are for free."""


def looked(sim: Simulation, text: str, *, changed: bool = True) -> None:
    """The calling task looked at something that others may change.

    Args:
        text: what it looked at, for the report of a loop that never ends.
        changed: False if it surely has to look again: then the others run at once.
    """
    task = sim.scheduler.here()
    if task is None or task.ending is not None:
        return
    task.polls += 1
    if not changed or task.polls >= LOOKS_PER_POLL:
        sim.scheduler.poll(text)
