"""Tensors of simulated GPUs that are pickled, sent as objects, or saved: they come back on the GPU of that number.

A package in torch's registry of storages, which pickling, `torch.save` and `torch.load` ask for the place of each.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.serialization

from simulator.torch_world.gpu.place import Mark
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

_FIRST = 0
"""Before torch's own packages, the first of which is 10."""


def install_saving(patches: Patches, sim: Simulation) -> None:
    """Add the package."""

    def tag(storage: Any) -> str | None:
        mark = _untyped(storage).__dict__.get("simulated_place")
        return None if mark is None or mark.device is None or mark.device.type != "cuda" else str(mark.device)

    def restore(storage: Any, location: Any) -> Any:
        context = sim.here()
        if context is None or context.gpus is None or not str(location).startswith("cuda"):
            return None
        gpus, wanted = context.gpus, torch.device(location)
        index = gpus.current if wanted.index is None else wanted.index
        if index >= len(gpus.visible()):
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {index} but torch.cuda.device_count() is "
                f"{len(gpus.visible())}. Please use torch.load with map_location to map your storages to an existing "
                "device."
            )
        held = _untyped(storage)
        held.simulated_place = Mark(torch.device("cuda", index), gpus.ledger(index), held.nbytes())
        return storage

    registry = vars(torch.serialization)["_package_registry"]
    patches.set(torch.serialization, "_package_registry", [(_FIRST, tag, restore), *registry])


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)
