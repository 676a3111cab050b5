"""What Mooncake's ranks write into each other's receive buffers, and what each reads out of its own.

A collective is a write by every active rank into the buffers of the active ranks, a signal, and a read: nobody looks at
what the others meant. Each rank has two buffers, used in turn. So ranks whose calls differ read bytes that were meant
otherwise, and a rank that wrote nothing this time is read as what it wrote two calls before.

Not modelled: calls of more than a buffer's share (16 MiB divided by the capacity), which real ones cut up; in which
order writes to one place arrive that are made at one time (here: see `Sent.order`). What
no rank has written reads as zeros; an output that the real backend leaves uninitialised gets all bits set: NaN, or -1.

Source: mooncake-pg's worker and communicator (Mooncake), read; results measured on 0.3.13.post1 (docs/mooncake.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simulator.collectives import Entry, below_torch, reduced

KEPT = 4
"""Calls of each buffer whose bytes are kept."""
KEPT_BYTES_MAX = 1 << 20
"""Of one rank's part in a call; larger ones are not kept, and read as zeros later."""
_PIECEWISE = ("all_to_all", "reduce_scatter", "scatter")
_OWN_PLACE = ("all_reduce", "all_gather", "reduce", "gather", "all_to_all", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Sent:
    """What one slot writes in one call.

    Attributes:
        root: the slot that gives or takes all, or None.
        data: [bytes], uint8: all of it. piece_bytes: what one receiver gets, where they get different pieces.
        at_s: when it writes.
    """

    slot: int
    op: str
    root: int | None
    data: Tensor
    piece_bytes: int
    at_s: float = 0.0

    @property
    def order(self) -> tuple[float, bool, int]:
        """Who writes later overwrites; of those who write at one time, who has no place of its own, down to slot 0."""
        loose = self.op not in _OWN_PLACE
        return self.at_s, loose, -self.slot if loose else self.slot

    def lands(self, receiver: int) -> tuple[int, Tensor] | None:
        """Offset and bytes in the buffer of `receiver`; None: nothing."""
        if self.op in ("broadcast", "scatter"):
            if self.slot != self.root:
                return None
        elif self.op not in _OWN_PLACE or (self.op in ("reduce", "gather") and receiver != self.root):
            return None
        size = self.piece_bytes
        data = self.data[receiver * size : (receiver + 1) * size] if self.op in _PIECEWISE else self.data
        return (self.slot * size if self.op in _OWN_PLACE else 0), data


def _bytes_of(tensors: Sequence[Tensor]) -> Tensor:
    """[bytes], uint8: a copy."""
    flat = [_memory(tensor).view(torch.uint8) for tensor in tensors if tensor.numel()]
    if not flat:
        return torch.zeros(0, dtype=torch.uint8)
    return flat[0].clone() if len(flat) == 1 else torch.cat(flat)


def _memory(tensor: Tensor) -> Tensor:
    """[elements]: the memory from the tensor's first element on, whatever its strides."""
    whole = tensor.detach()
    return whole.view(-1) if whole.is_contiguous() else whole.as_strided((whole.numel(),), (1,))


def _write(target: Tensor, source: Tensor) -> None:
    """[elements], contiguous, into the memory of `target`, whatever its strides."""
    if target.numel():
        _memory(target.data).copy_(source.reshape(-1))


def size_of(entry: Entry) -> int:
    """Bytes of one rank's piece, as the caller counts them."""
    tensors = entry.outputs if entry.op in ("scatter", "reduce_scatter") else entry.inputs
    return tensors[0].numel() * tensors[0].element_size() if tensors else 0


def sent(entry: Entry, slot: int, at_s: float = 0.0) -> Sent:
    """What `slot` writes, as it is now."""
    with below_torch():
        gives = entry.op != "barrier" and not (entry.op in ("broadcast", "scatter") and entry.root != slot)
        op = "all_to_all" if entry.op == "all_to_all_single" else entry.op
        return Sent(slot, op, entry.root, _bytes_of(entry.inputs if gives else ()), size_of(entry), at_s)


class Wire:
    """The two buffers of every rank of a group, as what was written into them."""

    def __init__(self) -> None:
        self._kept: tuple[deque[list[Sent]], deque[list[Sent]]] = (deque(maxlen=KEPT), deque(maxlen=KEPT))

    def keep(self, parity: int, writes: Iterable[Sent]) -> None:
        """A call is over: its bytes stay where they are."""
        self._kept[parity].append([write for write in writes if write.data.numel() <= KEPT_BYTES_MAX])

    def contents(self, parity: int, receiver: int, writes: Sequence[Sent], length: int) -> Tensor:
        """[length], uint8: the start of a receiver's buffer, after `writes`."""
        buffer = torch.zeros(length, dtype=torch.uint8)
        for call in (*self._kept[parity], writes):
            for write in sorted(call, key=lambda write: write.order):
                found = write.lands(receiver)
                if found is not None and found[0] < length:
                    data = found[1][: length - found[0]]
                    buffer[found[0] : found[0] + data.numel()] = data
        return buffer

    def read(
        self, parity: int, entry: Entry, slot: int, writes: Sequence[Sent], active: Collection[int], size: int
    ) -> None:
        """Give `slot` the outputs of its call.

        Args:
            active: the slots that count. size: the world size when it called.
        """
        if not entry.outputs or (entry.op in ("reduce", "gather") and entry.root != slot):
            return
        with below_torch():
            piece = size_of(entry)
            whole = entry.op in ("broadcast", "scatter")
            buffer = self.contents(parity, slot, writes, piece if whole else piece * size)
            pieces = [buffer[start : start + piece] for start in range(0, max(buffer.numel(), 1), max(piece, 1))]
            _read(entry, slot, pieces, active, size)


def _read(entry: Entry, slot: int, pieces: Sequence[Tensor], active: Collection[int], size: int) -> None:
    if entry.reduce:
        like = entry.outputs[0]
        places = [place for place in range(min(size, len(pieces))) if place in active]
        parts = [_as(pieces[place], like).reshape(-1) for place in places]
        _write(like, reduced(parts, entry.reduce) if parts else torch.zeros(like.numel(), dtype=like.dtype))
        return
    if entry.op in ("broadcast", "scatter"):
        _write(entry.outputs[0], _as(pieces[0], entry.outputs[0]))
        return
    in_one = len({tensor.untyped_storage().data_ptr() for tensor in entry.outputs}) < len(entry.outputs)
    for place, target in enumerate(entry.outputs):
        if entry.op != "all_gather" or place in active:
            if place < len(pieces):
                target.data.copy_(_as(pieces[place], target))
        elif not in_one:
            target.data.copy_(uninitialised(target))


def _as(data: Tensor, like: Tensor) -> Tensor:
    """Bytes as a tensor of the dtype and shape of `like`."""
    if not like.numel():
        return torch.zeros_like(like)
    return data.clone().view(like.dtype).reshape(like.shape)


def uninitialised(like: Tensor) -> Tensor:
    """What stands for memory that nobody has written: all bits set, for bools False."""
    if like.dtype is torch.bool:
        return torch.zeros_like(like)
    filled = torch.full((like.numel() * like.element_size(),), 255, dtype=torch.uint8)
    return _as(filled, like)
