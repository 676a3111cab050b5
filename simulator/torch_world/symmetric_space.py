"""The symmetric memory that a rank has allocated: buffers, each with a signal pad of its own.

A buffer is a CPU tensor, 128-byte aligned; its pad is zero, its contents are a fixed pattern (all bits set: NaN for
every floating type), so that a program which reads what nobody wrote does the same in every run.

Not modelled: memory pools (a buffer is an allocation of its own), and freeing: memory stays until the run ends.

Source: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu and SymmetricMemory.cpp, for sizes and texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulator.engine.carrier import GreenletCarrier
from simulator.engine.errors import UsageError
from simulator.torch_world.context import RankContext
from simulator.torch_world.device_memory import Block
from simulator.torch_world.memory_watch import MemoryWatch

if TYPE_CHECKING:
    from simulator.torch_world.simulation import Simulation

ALIGNMENT = 128
DEFAULT_PAD_BYTES = 32 * 72 * 4
"""32 channels, 72 ranks (the largest NVLink domain), one 32-bit word each."""
WORD = 4
_UNWRITTEN = 0xFF

Bytes = NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Allocation:
    """One buffer of one rank, and its signal pad.

    Attributes:
        rank: global rank of the owner.
        words: the 32-bit words of the pad.
        device: as it was asked for with an index (`cuda:1`); empty if without one.
        group_name: torch's name of the group that it was allocated for, if one was given.
        handles: what a rendezvous gave, by torch's name of the group.
        tensor: a weak reference to the tensor of a persistent allocation.
    """

    rank: int
    nbytes: int
    buffer: Block
    pad: Block
    words: NDArray[np.uint32]
    device: str
    group_name: str | None
    handles: dict[str, Any] = field(default_factory=dict)
    tensor: Any = None


@dataclass(slots=True, eq=False)
class Space:
    """The symmetric memory of one rank.

    Attributes:
        pad_bytes: size of the signal pads of buffers that are allocated from now on.
        by_address: address of a buffer to its allocation.
        by_id: persistent allocations.
        stores, workspaces: what torch's module keeps for each group, by torch's name of the group.
    """

    pad_bytes: int = DEFAULT_PAD_BYTES
    by_address: dict[int, Allocation] = field(default_factory=dict)
    by_id: dict[int, Allocation] = field(default_factory=dict)
    stores: dict[str, Any] = field(default_factory=dict)
    workspaces: dict[str, Any] = field(default_factory=dict)

    def of(self, tensor: torch.Tensor) -> Allocation | None:
        """The allocation on which `tensor` lies; None if it is ordinary memory."""
        if not self.by_address:
            return None
        with torch._C.DisableTorchFunction():
            return self.by_address.get(tensor.untyped_storage().data_ptr())


def space_of(context: RankContext) -> Space:
    """The symmetric memory of a rank."""
    if context.symmetric is None:
        context.symmetric = Space()
    space: Space = context.symmetric
    return space


def allocate(
    sim: Simulation,
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    group_name: str | None,
    alloc_id: int | None,
) -> torch.Tensor:
    """What `_SymmetricMemory.empty_strided_p2p` returns: a tensor on new memory, or on that of an earlier `alloc_id`.

    Raises:
        UsageError: the ranks are greenlets, which share the thread that the watch over torch operations is tied to.
        RuntimeError: the tensor of an earlier call with this `alloc_id` is still there, or had another size.
    """
    context = sim.must_be_here("symmetric memory")
    _refuse(sim, context, device)
    space, nbytes = space_of(context), prod(sizes) * dtype.itemsize
    found = None if alloc_id is None else space.by_id.get(alloc_id)
    if found is None:
        found = _new(sim, context, nbytes, device, group_name)
    elif not found.tensor.expired():
        raise RuntimeError(
            "SymmetricMemory::empty_strided_p2p_persistent: can not allocate with "
            f"alloc_id == {alloc_id} because a previous allocation with the same alloc_id is still active."
        )
    elif found.nbytes != nbytes:
        raise RuntimeError(
            f"SymmetricMemory::empty_strided_p2p_persistent: requested allocation size ({nbytes}) is different from "
            f"the size of a previous allocation with the same alloc_id {found.nbytes}"
        )
    tensor = tensor_on(found.buffer, sizes, dtype, 0, strides)
    if alloc_id is not None:
        space.by_id[alloc_id] = found
        found.tensor = vars(torch._C)["_WeakTensorRef"](tensor)
    return tensor


def _refuse(sim: Simulation, context: RankContext, device: torch.device) -> None:
    task = sim.scheduler.here()
    if task is not None and isinstance(task.carrier, GreenletCarrier):
        raise UsageError("symmetric memory needs a thread for each rank: use carrier='thread' (the default)")
    if device.type not in ("cuda", "cpu"):
        raise RuntimeError(f"SymmetricMemory does not support device type {device.type}")
    backend = context.env.get(b"TORCH_SYMMMEM", b"CUDA").decode()
    if backend != "CUDA":
        raise RuntimeError(f"TORCH_SYMMMEM={backend}: the simulator models the backend CUDA only")


def _new(
    sim: Simulation, context: RankContext, nbytes: int, device: torch.device, group_name: str | None
) -> Allocation:
    space = space_of(context)
    stack = sim.sites.capture(1)
    pad = _aligned(-(-space.pad_bytes // WORD) * WORD, 0)
    number = len(space.by_address) + 1
    mark = "" if number == 1 else f" #{number}"
    owner = f"{mark} of rank {context.rank}"
    buffer = sim.memory.add(context.rank, "buffer", _bare(_aligned(nbytes, _UNWRITTEN)), f"buffer{owner}", stack)
    pad_block = sim.memory.add(context.rank, "pad", _bare(pad), f"signal pad{owner}", stack)
    if context.gpus is not None:
        for block in (buffer, pad_block):
            context.gpus.share(block.keep)
    index = "" if device.index is None else str(device)
    found = Allocation(context.rank, nbytes, buffer, pad_block, pad.view(np.uint32), index, group_name)
    space.by_address[buffer.base] = found
    if context.watch is None:
        context.watch = MemoryWatch(sim, context)
        task = sim.scheduler.here()
        assert task is not None
        context.watch.attend(task.number)
    return found


def _aligned(nbytes: int, value: int) -> Bytes:
    """New bytes. One word at least, so that each has an address of its own."""
    size = max(nbytes, WORD)
    whole = np.full(size + ALIGNMENT, value, dtype=np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]


@contextmanager
def bare() -> Iterator[None]:
    """Make tensors as C++ does: whatever modes the calling code has entered."""
    with torch.inference_mode(False), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _bare(memory: Bytes) -> torch.Tensor:
    with bare():
        return torch.from_numpy(memory)


def tensor_on(
    block: Block, sizes: Sequence[int], dtype: torch.dtype, offset_bytes: int, strides: Sequence[int] | None = None
) -> torch.Tensor:
    """A tensor on the memory of `block`. All tensors on a block have one storage."""
    with bare():
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        steps = torch.empty(tuple(sizes), device="meta").stride() if strides is None else tuple(strides)
        return tensor.set_(block.keep.untyped_storage(), offset_bytes // dtype.itemsize, tuple(sizes), steps)
