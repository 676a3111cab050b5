"""What torch.distributed itself sees of an accelerator and of NCCL, on a machine that has none.

`init_process_group("nccl", device_id=...)` and `split_group` ask torch.accelerator for a device, and refuse on a CPU
build. In a rank, those two get the answer of a node with its GPUs; all other callers, the user's code among them, get
the real answer, and all tensors stay on the CPU. `torch.cuda.synchronize` waits for what the rank's `nccl` groups do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.cuda import nccl
from torch.distributed import distributed_c10d as c10d

from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation

_CALLERS = ("init_process_group", "split_group")
NCCL_VERSION = (2, 27, 5)
"""What the simulated NCCL says it is, where there is no real one."""


def _synchronize(context: RankContext, real: Any, device: Any = None) -> Any:
    """Wait for all streams of the simulated device; a rank without one gets the real answer."""
    return real(device) if context.device is None else context.device.drain()


def install_accelerator(patches: Patches, sim: Simulation) -> None:
    """Replace what these two functions ask torch.accelerator."""

    def asks(frame: FrameType | None) -> RankContext | None:
        """The rank, if the question comes from one of the two and is about NCCL."""
        if frame is None or frame.f_globals is not vars(c10d) or frame.f_code.co_name not in _CALLERS:
            return None
        backend = frame.f_locals.get("backend")
        asked_for_nccl = backend is None or "nccl" in str(backend)
        return sim.here() if asked_for_nccl else None

    def answer(name: str, given: Callable[[RankContext], Any]) -> None:
        real = getattr(torch.accelerator, name)

        def reply(*args: Any, **kwargs: Any) -> Any:
            context = asks(sys._getframe(1))
            return real(*args, **kwargs) if context is None else given(context)

        patches.set(torch.accelerator, name, reply)

    real_version: Callable[[], Any] = nccl.version

    def version() -> Any:
        """torch asks for it in the report of any error on NCCL."""
        return NCCL_VERSION if sim.here() is not None and not hasattr(torch._C, "_nccl_version") else real_version()

    patches.set(nccl, "version", version)
    for module in (torch.cuda, torch.accelerator):
        if hasattr(module, "synchronize"):
            per_rank(patches, sim, module, "synchronize", _synchronize)
    answer("is_available", lambda context: True)
    answer("current_accelerator", lambda context: torch.device("cuda"))
    answer("device_count", lambda context: context.node.gpus)
