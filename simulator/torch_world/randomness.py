"""random and numpy.random: each rank has generators of its own, seeded from the run's seed and its rank.

A function that was imported by name (`from random import choice`) before the run keeps the process's generator.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def install_randomness(patches: Patches, sim: Simulation) -> None:
    """Replace the functions of `random` and, if it is loaded, of `numpy.random`."""
    _dispatch(patches, sim, random, random._inst, RankContext.generator)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        _dispatch(patches, sim, numpy_random, numpy_random.mtrand._rand, _numpy_generator)


def _numpy_generator(context: RankContext) -> Any:
    if context.numpy_random is None:
        context.numpy_random = sys.modules["numpy.random"].RandomState(context.seed % 2**32)
    return context.numpy_random


def _dispatch(
    patches: Patches, sim: Simulation, module: ModuleType, shared: Any, own: Callable[[RankContext], Any]
) -> None:
    """Each function of `module` that is a method of `shared` goes to the calling rank's own generator instead."""

    def redirected(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            return real(*args, **kwargs) if context is None else getattr(own(context), name)(*args, **kwargs)

        call.__name__ = name
        return call

    for name, value in list(vars(module).items()):
        if getattr(value, "__self__", None) is shared:
            patches.set(module, name, redirected(name, value))
