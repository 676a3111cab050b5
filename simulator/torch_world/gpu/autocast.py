"""`torch.autocast("cuda")` in a rank with simulated GPUs: it casts as torch's autocast of the CPU does.

Not modelled: operators that only one of the two casts, and tensors of the host, which are cast too.
"""

from __future__ import annotations

from typing import Any

import torch

from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def install_autocast(patches: Patches, sim: Simulation) -> None:
    """Let the autocast of CUDA be that of the CPU, with the dtype of CUDA's."""

    def has_gpus() -> bool:
        context = sim.here()
        return context is not None and context.gpus is not None

    kind: Any = torch.amp.autocast_mode.autocast
    real_init = kind.__init__

    def __init__(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type == "cuda" and has_gpus():
            dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            device_type = "cpu"
        real_init(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    patches.set(kind, "__init__", __init__)
    real_enabled: Any = torch.is_autocast_enabled

    def is_autocast_enabled(device_type: str | None = None) -> bool:
        if device_type in (None, "cuda") and has_gpus():
            device_type = "cpu"
        return bool(real_enabled() if device_type is None else real_enabled(device_type))

    patches.set(torch, "is_autocast_enabled", is_autocast_enabled)
