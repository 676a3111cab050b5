"""What a rendezvous returns: one rank's view of the buffers and signal pads of all ranks of a group.

Tensors that it gives lie on the peers' memory itself. Names, checks and texts are torch's; `device` is the CPU.

Not modelled: a pad that grew by `set_signal_pad_size` after it was allocated. torch believes the new size; here what
lies beyond the pad is refused.

Source: torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp, CUDASymmetricMemory.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from simulator.records import GroupView
from simulator.torch_world.device_memory import Block
from simulator.torch_world.host_order import await_stream
from simulator.torch_world.signal_pad import Signals, Step
from simulator.torch_world.symmetric_space import WORD, Allocation, bare, space_of, tensor_on

if TYPE_CHECKING:
    from simulator.torch_world.simulation import Simulation


class SymmetricHandle:
    """The memory of a group, as one of its ranks sees it.

    Args:
        peers: the allocations of all ranks, in group-rank order.
        multicast: the range of addresses that stands for all buffers, if there is one.
    """

    def __init__(
        self, sim: Simulation, view: GroupView, rank: int, peers: Sequence[Allocation], multicast: Block | None
    ) -> None:
        self._sim = sim
        self._view = view
        self._peers = tuple(peers)
        self._multicast = multicast
        self._mine = self._peers[rank]
        self.rank = rank
        self.world_size = len(self._peers)
        self.buffer_ptrs = [peer.buffer.base for peer in self._peers]
        self.signal_pad_ptrs = [peer.pad.base for peer in self._peers]
        self._tables = [self._table(self.buffer_ptrs), self._table(self.signal_pad_ptrs)]
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (table.data_ptr() for table in self._tables)
        self.buffer_size = self._mine.nbytes
        self.offset = 0
        self.device = torch.device("cpu")

    def _table(self, addresses: list[int]) -> torch.Tensor:
        with bare():
            table = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        self._sim.memory.add_private(table)
        return table

    @property
    def multicast_ptr(self) -> int:
        """Address of all buffers at once; 0 where there is no multicast."""
        return 0 if self._multicast is None else self._multicast.base

    @property
    def signal_pad_size(self) -> int:
        """Bytes, as configured now; torch asks no pad for its size."""
        context = self._sim.here()
        return self._mine.pad.nbytes if context is None else space_of(context).pad_bytes

    def __repr__(self) -> str:
        return f"<symmetric memory of group {self._view.label!r}, rank {self.rank} of {self.world_size} (simulated)>"

    # -- tensors on the memory of a rank -----------------------------------------------------------------------------

    def get_buffer(self, rank: int, sizes: Any, dtype: torch.dtype, storage_offset: int = 0) -> torch.Tensor:
        """A contiguous tensor on the buffer of group rank `rank`, from element `storage_offset` on.

        Raises:
            RuntimeError: no such rank, or the buffer ends before the tensor does.
        """
        peer, shape = self._peer(rank), _shape(sizes)
        offset = storage_offset * dtype.itemsize
        needed = offset + prod(shape) * dtype.itemsize
        if offset < 0 or needed > self.buffer_size:
            raise RuntimeError(
                f"SymmetricMemory::get_buffer: the requested size ({needed} bytes) exceeds the allocated size "
                f"({self.buffer_size} bytes)"
            )
        return tensor_on(peer.buffer, shape, dtype, offset)

    def get_remote_tensor(self, peer: int, sizes: Any, dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the buffer of group rank `peer`, from where this rank's own tensor begins."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self, rank: int, sizes: Any = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> torch.Tensor:
        """A tensor on the signal pad of group rank `rank`; all of it, as uint32, by default.

        Raises:
            RuntimeError: no such rank, or the pad ends before the tensor does.
        """
        peer, kind = self._peer(rank), dtype or torch.uint32
        shape = _shape(sizes) or (self.signal_pad_size // kind.itemsize,)
        offset = storage_offset * kind.itemsize
        needed = offset + prod(shape) * kind.itemsize
        if offset < 0 or needed > min(self.signal_pad_size, peer.pad.nbytes):
            self._note_pad("get_signal_pad", needed, f"a tensor up to byte {needed}")
            raise RuntimeError(
                f"SymmetricMemory::get_signal_pad: the requested size ({needed} bytes) exceeds the allocated size "
                f"({min(self.signal_pad_size, peer.pad.nbytes)} bytes)"
            )
        return tensor_on(peer.pad, shape, kind, offset)

    def _peer(self, rank: int) -> Allocation:
        if not 0 <= rank < self.world_size:
            raise RuntimeError(f"rank must be in [0, {self.world_size}) (got {rank})")
        return self._peers[rank]

    # -- signals -----------------------------------------------------------------------------------------------------

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Put a signal to every peer, and take one from each.

        Raises:
            RuntimeError: no such channel, or a peer did not come within `timeout_ms` (the real kernel traps then).
        """
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._check_channel("barrier", channel)
        steps = [[self._put(peer, channel), self._take(peer, channel)] for peer in others]
        self._exchange("barrier", channel, steps, timeout_ms)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Put a signal to group rank `dst_rank`, once it has taken the one before."""
        self._check_channel("put_signal", channel)
        self._peer(dst_rank)
        self._exchange("put_signal", channel, [[self._put(dst_rank, channel)]], timeout_ms)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Take the signal that group rank `src_rank` puts."""
        self._check_channel("wait_signal", channel)
        self._peer(src_rank)
        self._exchange("wait_signal", channel, [[self._take(src_rank, channel)]], timeout_ms)

    def _put(self, peer: int, channel: int) -> Step:
        return self._step(self._peers[peer], self.rank, channel, True, self._peers[peer].rank)

    def _take(self, peer: int, channel: int) -> Step:
        return self._step(self._mine, peer, channel, False, self._peers[peer].rank)

    def _step(self, pad: Allocation, owner: int, channel: int, puts: bool, peer: int) -> Step:
        region = pad.pad.region
        assert region is not None
        place = f"slot of rank {self._peers[owner].rank} in channel {channel} of the {region.label}"
        return Step(pad, channel * self.world_size + owner, puts, peer, place)

    def _exchange(self, call: str, channel: int, steps: Sequence[Sequence[Step]], timeout_ms: int) -> None:
        op = f"{call}(channel={channel}) on group '{self._view.label}'"
        self._sim.log("signal", call, self._view.label, f"channel={channel}")
        await_stream(self._sim)
        signals = Signals(self._sim, op, self._view.ranks, self._sim.sites.capture(1))
        late = signals.exchange(steps, timeout_ms / 1000 if timeout_ms else None)
        if late is not None:
            done = "send signal to" if late.puts else "receive signal from"
            peer = self._view.ranks.index(late.peer)
            text = f"rank {self.rank} failed to {done} rank {peer} on channel {channel} after {timeout_ms} milliseconds"
            self._sim.note("timeout", text, stack=self._sim.sites.capture(1), group=self._view, doing=op)
            raise RuntimeError(f"CUDASymmetricMemory::{call}: {text} (the kernel traps)")

    def _check_channel(self, call: str, channel: int) -> None:
        if channel < 0:
            raise RuntimeError(
                f"channel for barrier(), put_signal() and wait_signal() must be non-negative (got {channel})"
            )
        channels = min(self.signal_pad_size, self._mine.pad.nbytes) // (WORD * self.world_size)
        if channel >= channels:
            self._note_pad(call, (channel + 1) * self.world_size * WORD, f"channel {channel}")
            raise RuntimeError(
                "The maximum supported channel for barrier(), put_signal() and wait_signal() is "
                f"{channels - 1} (got {channel})"
            )

    def _note_pad(self, call: str, needed: int, what: str) -> None:
        self._sim.note(
            "small_pad",
            f"{call} needs {what} of the signal pads of group '{self._view.label}'",
            stack=self._sim.sites.capture(1),
            group=self._view,
            call=call,
            what=what,
            needed=needed,
            has=self._mine.pad.nbytes,
            configured=self.signal_pad_size,
        )


def _shape(sizes: Any) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
