"""One name, two meanings: in a rank the simulation's, elsewhere what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def per_rank(patches: Patches, sim: Simulation, target: Any, name: str, answer: Callable[..., Any]) -> None:
    """In a rank `target.name(...)` is `answer(context, real, ...)`; outside the ranks it is what it was."""
    real = getattr(target, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        context = sim.here()
        return real(*args, **kwargs) if context is None else answer(context, real, *args, **kwargs)

    call.__name__ = name
    patches.set(target, name, call)
