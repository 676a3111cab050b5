"""random and numpy.random: each rank has generators of its own, seeded from the run's seed and its rank.

Not modelled: generators that are made without a seed (`random.Random()` draws from the system, in C), numpy's bit
generators behind its functions, and whoever takes numpy's global generator itself (`numpy.random.mtrand._rand`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation

_NUMPY_FUNCTIONS = {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}
"""Functions that are no methods of numpy's generator, and the methods that do the same."""


def install_randomness(patches: Patches, sim: Simulation) -> None:
    """Replace the functions of `random` and of `numpy.random`."""
    _dispatch(patches, sim, random, _methods(random, random._inst), RankContext.generator)
    numpy_random: Any = import_module("numpy.random")
    names = _methods(numpy_random, numpy_random.mtrand._rand) | _NUMPY_FUNCTIONS
    _dispatch(patches, sim, numpy_random, names, _numpy_generator)


def _numpy_generator(context: RankContext) -> Any:
    if context.numpy_random is None:
        numpy_random: Any = import_module("numpy.random")
        context.numpy_random = numpy_random.RandomState(context.seed % 2**32)
    return context.numpy_random


def _methods(module: ModuleType, shared: Any) -> dict[str, str]:
    """The functions of `module` that are methods of its shared generator."""
    return {name: name for name, value in vars(module).items() if getattr(value, "__self__", None) is shared}


def _dispatch(
    patches: Patches, sim: Simulation, module: ModuleType, names: dict[str, str], own: Callable[[RankContext], Any]
) -> None:
    """Each named function goes to the calling rank's own generator."""

    def of_own(method: str) -> Callable[..., Any]:
        return lambda context, real, *args, **kwargs: getattr(own(context), method)(*args, **kwargs)

    def seed(context: RankContext, real: Any, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if value is not None]
        if not given:  # from the system, in a real process
            args = (int.from_bytes(context.random_bytes(4), "big"),)
        return own(context).seed(*args, **kwargs)

    for name, method in names.items():
        per_rank(patches, sim, module, name, seed if name == "seed" else of_own(method))
