"""A workspace for the kernel in the symmetric memory of a process group, and the vote on whether to use it.

Whether a rank can take part is something it finds out alone: symmetric memory may be missing, or a peer out of reach.
What is done then is decided together: a rank that took another path than its peers would leave them waiting.

Source: `torch.distributed._symmetric_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from refimpl.kernels.workspace import CHUNK, WORD, Workspace

if TYPE_CHECKING:
    from refimpl.distributed.group import GroupCoordinator


@dataclass(frozen=True, slots=True)
class Offer:
    """What one rank could do: `buffer` is None and `reason` says why not, or the buffer is there."""

    buffer: torch.Tensor | None
    reason: str = ""


def build_workspace(group: GroupCoordinator, capacity: int) -> tuple[Workspace | None, str]:
    """A workspace with buffers of at least `capacity` bytes on the devices of the group.  Collective over the group.

    Returns the workspace, or None and the reason: the same choice on all ranks.  They vote on the CPU group: whether
    all could allocate, since a rendezvous that one rank does not join never ends; then whether each reaches all peers.
    """
    offer = _allocate(group, -(-capacity // CHUNK) * CHUNK)
    if not _all_agree(group, offer.buffer is not None):
        return None, offer.reason or "another rank has no symmetric memory"
    assert offer.buffer is not None
    handle, reason = _exchange(offer.buffer, group)
    if not _all_agree(group, handle is not None):
        return None, reason or "another rank does not reach all of its peers"
    multicast = int(handle.multicast_ptr)
    return _workspace(handle, offer.buffer, multicast if _all_agree(group, multicast != 0) else 0), ""


def _allocate(group: GroupCoordinator, nbytes: int) -> Offer:
    if find_spec("triton") is None:
        return Offer(None, "Triton is not installed: pip install 'hangcheck[kernels]'")
    try:
        return Offer(symm_mem.empty(nbytes, dtype=torch.uint8, device=group.device))
    except (RuntimeError, NotImplementedError, ImportError) as error:
        return Offer(None, f"no symmetric memory on {group.device}: {str(error).splitlines()[0]}")


def _exchange(buffer: torch.Tensor, group: GroupCoordinator) -> tuple[Any, str]:
    """The handle, or None and the reason.  A rendezvous fails on all ranks of a group that spans nodes."""
    try:
        handle = symm_mem.rendezvous(buffer, group.device_group)
    except RuntimeError as error:
        return None, f"no rendezvous: {str(error).splitlines()[0]}"
    reason = _out_of_reach(handle)
    return (None, reason) if reason else (handle, "")


def _out_of_reach(handle: Any) -> str:
    missing = [rank for rank, address in enumerate(handle.buffer_ptrs) if not address]
    if missing:
        return f"the buffers of group ranks {missing} are out of reach"
    needed = WORD * int(handle.world_size)
    if handle.signal_pad_size < needed:
        return f"the signal pad has {handle.signal_pad_size} bytes, and {needed} are needed"
    return ""


def _workspace(handle: Any, buffer: torch.Tensor, multicast: int) -> Workspace:
    return Workspace(
        rank=int(handle.rank),
        world=int(handle.world_size),
        buffer=buffer,
        buffers=int(handle.buffer_ptrs_dev),
        pads=int(handle.signal_pad_ptrs_dev),
        multicast=multicast,
        pad_bytes=int(handle.signal_pad_size),
        keep=handle,
    )


def _all_agree(group: GroupCoordinator, mine: bool) -> bool:
    vote = torch.tensor([int(mine)], dtype=torch.int32)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN, group=group.cpu_group)
    return bool(vote.item())
