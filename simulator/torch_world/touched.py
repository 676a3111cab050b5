"""Which bytes of shared memory a tensor covers, and which of them an indexing operation touches.

Bytes are exact, as spans: neighbours merged, in the order of addresses. Only a tensor of more than `SPANS_MAX` separate
pieces (a column of a large matrix) is taken as the whole from its first to its last byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from simulator.memory_records import Span
from simulator.torch_world.operator_watch import takes_apart

if TYPE_CHECKING:
    from simulator.torch_world.device_memory import DeviceMemory

SPANS_MAX = 1 << 14

Offsets = NDArray[np.int64]


def is_shared(memory: DeviceMemory, tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on memory that other ranks can reach."""
    if takes_apart(type(tensor)) or tensor.layout is not torch.strided:
        return False
    with torch._C.DisableTorchFunction():
        block = memory.find(tensor.untyped_storage().data_ptr())
    return block is not None and block.region is not None


def spans_of(memory: DeviceMemory, tensor: torch.Tensor, elements: Offsets | None = None) -> tuple[Span, ...]:
    """The shared bytes of a tensor; () if it has none.

    Args:
        elements: count only these, given by their places in memory: element 0 is the tensor's first.
    """
    if not is_shared(memory, tensor):
        return ()
    with torch._C.DisableTorchFunction():
        address, size, count = tensor.data_ptr(), tensor.element_size(), tensor.numel()
        block = memory.find(address) if count else None
        if block is None or block.region is None:
            return ()
        number, start = block.region.number, address - block.base
        if elements is None and tensor.is_contiguous():
            return ((number, start, start + count * size),)
        pieces, length = _pieces(tensor) if elements is None else (np.unique(elements), 1)
        return tuple((number, start + low * size, start + high * size) for low, high in _runs(pieces, length))


def _pieces(tensor: torch.Tensor) -> tuple[Offsets, int]:
    """Where the contiguous pieces of a tensor begin, in elements from its first one, sorted; and their length."""
    axes = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    length = 1
    while axes and axes[0][0] <= length:
        stride, size = axes.pop(0)
        length += stride * (size - 1)
    starts: Offsets = np.zeros(1, dtype=np.int64)
    for stride, size in reversed(axes):
        starts = (starts[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return np.unique(starts), length


def _runs(starts: Offsets, length: int) -> list[tuple[int, int]]:
    """Sorted pieces of one length, merged: (begin, end)."""
    if not len(starts):
        return []
    breaks = np.flatnonzero(np.diff(starts) > length) + 1
    if len(breaks) >= SPANS_MAX:
        breaks = breaks[:0]
    first, last = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(starts)])) - 1
    return [(int(starts[low]), int(starts[high]) + length) for low, high in zip(first, last, strict=True)]


# -- operations that touch a part of a tensor ------------------------------------------------------------------------

Rest = tuple[Any, ...]


def _reads(op: Any, places: torch.Tensor, rest: Rest, named: dict[str, Any]) -> torch.Tensor:
    """What the operation takes out of `places` are the places that it reads."""
    return torch.as_tensor(op(places, *rest, **named)).reshape(-1)


def _put(op: Any, marks: torch.Tensor, rest: Rest, named: dict[str, Any]) -> Any:
    return marks.index_put_(rest[0], torch.ones((), dtype=torch.bool))


def _mask(op: Any, marks: torch.Tensor, rest: Rest, named: dict[str, Any]) -> Any:
    return marks.masked_fill_(rest[0], True)


def _fill(op: Any, marks: torch.Tensor, rest: Rest, named: dict[str, Any]) -> Any:
    return marks.index_fill_(rest[0], rest[1], True)


def _scatter(op: Any, marks: torch.Tensor, rest: Rest, named: dict[str, Any]) -> Any:
    return marks.scatter_(rest[0], rest[1], True)


READS = ("index", "index_select", "gather", "take", "masked_select", "embedding")
WRITES: dict[str, Callable[[Any, torch.Tensor, Rest, dict[str, Any]], Any]] = {
    "index_put_": _put,
    "_index_put_impl_": _put,
    "masked_fill_": _mask,
    "masked_scatter_": _mask,
    "index_fill_": _fill,
    "index_copy_": _fill,
    "index_add_": _fill,
    "scatter_": _scatter,
    "scatter_add_": _scatter,
    "scatter_reduce_": _scatter,
}


def touched(op: Any, name: str, tensor: torch.Tensor, rest: Rest, named: dict[str, Any]) -> Offsets | None:
    """The elements of `tensor`, its first argument, that an indexing operation reads or writes; None: all of them.

    Args:
        op: the operator, called again on the places of the elements instead of on their values.
        rest, named: its other arguments.
    """
    if name not in READS and name not in WRITES:
        return None
    with torch._C.DisableTorchFunction():
        places = _places(tensor)
        if name in READS:
            return _numpy(_reads(op, places, rest, named))
        marks = torch.zeros(tensor.shape, dtype=torch.bool)
        WRITES[name](op, marks, rest, named)
        return _numpy(places[marks])


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """For each element of a tensor, its place in memory, counted from the first one."""
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return torch.arange(last + 1).as_strided(tensor.shape, tensor.stride())


def _numpy(places: torch.Tensor) -> Offsets:
    found: Offsets = places.reshape(-1).numpy()
    return found


def byte_runs(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """The addresses that a strided tensor covers, as (begin, end), merged as above; () if it has none."""
    if not tensor.numel() or tensor.is_meta:
        return ()
    size, start = tensor.element_size(), tensor.data_ptr()
    if tensor.is_contiguous():
        return ((start, start + tensor.numel() * size),)
    return tuple((start + low * size, start + high * size) for low, high in _runs(*_pieces(tensor)))
