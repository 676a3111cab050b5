"""Process groups of ranks with simulated GPUs: which devices a backend takes, and which GPU a rank brings to `nccl`.

Follows torch's ProcessGroup.hpp (a backend for each type of device) and NCCL's init.cc: a communicator is made at its
first use, and refuses two of its ranks on one GPU. A rank without simulated GPUs is not concerned.

Not modelled: a rank that uses one group on several of its GPUs; the first one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.engine.site import Stack
from simulator.torch_world.gpu.place import device_of, mark_of

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
_TAKES = {"gloo": (CPU, CUDA), "nccl": (CUDA,), "mooncake": (CUDA,)}


@dataclass(frozen=True, slots=True)
class Claim:
    """The GPU that a rank brings to a communicator: `place` is (node, number on the node).

    Attributes:
        index: as the rank counts. was_set: it has chosen a device, or named this one.
    """

    rank: int
    place: tuple[int, int]
    index: int
    was_set: bool
    stack: Stack


def devices_of(group: SimProcessGroup) -> list[torch.device]:
    """The types of devices that a group has a backend for."""
    context = group.sim.here()
    if context is None or context.gpus is None:
        return [CPU]
    if group.gpu_half is not None:
        return [CPU, CUDA]
    return list(_TAKES.get(group.comm.view.backend, (CPU,)))


def check_devices(group: SimProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Raise what torch or NCCL raises for the devices of the tensors of a call.

    Raises:
        RuntimeError: the group has no backend for one of them.
        DistBackendError: another rank of the communicator has brought the same GPU.
    """
    context = group.sim.here()
    if context is None or context.gpus is None or not group.model.on_device:
        return
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_meta and mark_of(tensor) is None:
            raise RuntimeError("No backend type associated with device type cpu")
    if group.global_rank not in group.comm.claims:
        device = device_of(tensors[0]) if tensors else group.bound_device_id
        _claim(group, context.gpus, device)


def _claim(group: SimProcessGroup, gpus: Any, device: torch.device | None) -> None:
    found = CUDA if device is None or device.type != "cuda" else device
    index = gpus.current if found.index is None else found.index
    stack = group.sim.sites.capture(2)
    claim = Claim(group.global_rank, gpus.physical(index), index, gpus.was_set or index != 0, stack)
    claims = group.comm.claims
    claims[claim.rank] = claim
    other = next((each for each in claims.values() if each.place == claim.place and each.rank != claim.rank), None)
    if other is not None:
        group.sim.note(
            "duplicate_gpu", "two ranks on one GPU", stack=stack, group=group.comm.view, mine=claim, other=other
        )
        raise _duplicate(claim, other, group.comm.view.ranks)


def _duplicate(mine: Claim, other: Claim, ranks: tuple[int, ...]) -> Exception:
    first, second = ranks.index(mine.rank), ranks.index(other.rank)
    return dist.DistBackendError(
        "NCCL error in: ProcessGroupNCCL.cpp, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        f"Duplicate GPU detected : rank {first} and rank {second} both on CUDA device {(mine.place[1] + 1) << 12:x}"
    )
