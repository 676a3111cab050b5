"""The collectives as data: what must agree between ranks, and how the data moves once all have come.

Each operation has a `signature` (compared between ranks) and a `move` (run once, by the last rank to arrive, on the
tensors of all ranks). Reductions go in group-rank order, so results are the same in every run; the last bits may
differ from those of a ring or a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]

_REDUCERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def op_name(reduce_op: Any) -> str:
    """`SUM`, `AVG`, ... for torch's ReduceOp and its inner enum."""
    return _plain_name(getattr(reduce_op, "op", reduce_op))


@cache
def _plain_name(inner: Any) -> str:
    return str(getattr(inner, "name", inner)).removeprefix("RedOpType.")


@dataclass(frozen=True, slots=True)
class Terms:
    """How a call is made, which need not agree between ranks.

    Attributes:
        limit_s: time-out of this call in virtual seconds, if it has one of its own.
        is_async: the caller gets a handle and waits itself; else, on a device, it runs on the current stream.
    """

    limit_s: float | None = None
    is_async: bool = True


DEFAULT = Terms()


@dataclass(slots=True, eq=False)
class Entry:
    """What one rank brings to a collective.

    Attributes:
        inputs: tensors that are read. outputs: tensors that are written (may be the same).
        reduce: name of the reduction. factor: of PREMUL_SUM.
        root: group rank of the root, or None.
        raw: those tensors whose memory the backend takes as it lies, if it ignores strides.
        terms: how the call is made.
    """

    op: str
    inputs: Tensors
    outputs: Tensors
    reduce: str = ""
    root: int | None = None
    factor: Any = None
    raw: Tensors = ()
    terms: Terms = DEFAULT

    def signature(self) -> dict[str, object]:
        """What all ranks must agree on, by the name that a report shows."""
        facts: dict[str, object] = {"op": self.op}
        if self.reduce:
            facts["reduce op"] = self.reduce
        if self.root is not None:
            facts["root (group rank)"] = self.root
        sizes = self._sizes()
        if sizes:
            facts["dtype"] = sizes[0].dtype
            if not self.op.startswith("all_to_all"):
                facts["elements"] = [t.numel() for t in sizes] if len(sizes) > 1 else sizes[0].numel()
        for tensor in self.raw:
            if not tensor.is_contiguous():
                facts["strides"] = list(tensor.stride())
        return facts

    def _sizes(self) -> Tensors:
        return self.outputs if self.op in ("scatter", "reduce_scatter") else self.inputs

    def scrambled(self) -> Tensor | None:
        """A tensor whose memory has gaps or overlaps (or, where pieces are cut from it, another order)."""
        for tensor in self.raw:
            if not tensor.is_contiguous() and (self.op in ("scatter", "all_to_all_single") or not is_dense(tensor)):
                return tensor
        return None


def is_dense(tensor: Tensor) -> bool:
    """Each place of the tensor's memory holds one element: it is contiguous, if perhaps in another order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def reduced(tensors: Tensors, name: str, factor: Any = None) -> Tensor:
    """All tensors reduced into a new one, in the order given."""
    scaled = [t * factor for t in tensors] if name == "PREMUL_SUM" else tensors
    total = scaled[0].clone()
    for other in scaled[1:]:
        total = _REDUCERS[name](total, _shaped(other, total))
    if name == "AVG":
        size = len(tensors)
        whole = not (total.is_floating_point() or total.is_complex())
        total = total.div(size, rounding_mode="trunc") if whole else total / size
    return total


def _put(target: Tensor, source: Tensor) -> None:
    """Write below autograd: `.data` has a version counter of its own."""
    if target.is_sparse:
        target.copy_(source)
    elif target is not source:
        target.data.copy_(_shaped(source, target))


def _shaped(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.is_sparse or tensor.shape == like.shape else tensor.reshape(like.shape)


def _all_reduce(entries: Sequence[Entry]) -> None:
    for column in zip(*(entry.inputs for entry in entries), strict=True):
        total = reduced(column, entries[0].reduce, entries[0].factor)
        for target in column:
            _put(target, total)


def _reduce(entries: Sequence[Entry]) -> None:
    root = entries[0].root or 0
    for index, target in enumerate(entries[root].outputs):
        _put(target, reduced([e.inputs[index] for e in entries], entries[0].reduce, entries[0].factor))


def _broadcast(entries: Sequence[Entry]) -> None:
    sources = entries[entries[0].root or 0].inputs
    for entry in entries:
        for target, source in zip(entry.outputs, sources, strict=True):
            _put(target, source)


def _all_gather(entries: Sequence[Entry]) -> None:
    """inputs: k tensors a rank; outputs: k lists of one tensor a rank, flattened."""
    size = len(entries)
    brought = [[t.clone() for t in entry.inputs] for entry in entries]
    for entry in entries:
        for position, target in enumerate(entry.outputs):
            _put(target, brought[position % size][position // size])


def _gather(entries: Sequence[Entry]) -> None:
    brought = [entry.inputs[0].clone() for entry in entries]
    for target, source in zip(entries[entries[0].root or 0].outputs, brought, strict=True):
        _put(target, source)


def _scatter(entries: Sequence[Entry]) -> None:
    brought = [tensor.clone() for tensor in entries[entries[0].root or 0].inputs]
    for source, entry in zip(brought, entries, strict=True):
        _put(entry.outputs[0], source)


def _reduce_scatter(entries: Sequence[Entry]) -> None:
    """inputs: k lists of one chunk a rank, flattened; outputs: k tensors, which may lie within the inputs."""
    size = len(entries)
    name, factor = entries[0].reduce, entries[0].factor
    totals = [reduced(column, name, factor) for column in zip(*(e.inputs for e in entries), strict=True)]
    for position, total in enumerate(totals):
        _put(entries[position % size].outputs[position // size], total)


def _all_to_all(entries: Sequence[Entry]) -> None:
    brought = [[t.clone() for t in entry.inputs] for entry in entries]
    for rank, entry in enumerate(entries):
        for peer, target in enumerate(entry.outputs):
            _put(target, brought[peer][rank])


MOVES: dict[str, Callable[[Sequence[Entry]], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all,
}


WITHOUT_DATA = ("barrier", "connect", "split")


def move(entries: Sequence[Entry]) -> None:
    """Run the collective on the tensors of all ranks, in group-rank order."""
    if entries[0].op not in WITHOUT_DATA:
        with below_torch():
            MOVES[entries[0].op](entries)


@contextmanager
def below_torch() -> Iterator[None]:
    """Move data as a backend does: no autograd, and no function or dispatch mode of the rank that happens to run."""
    with torch.inference_mode(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def deliver(target: Tensor, source: Tensor) -> None:
    """Copy a message."""
    with below_torch():
        _put(target, source)


def split_rows(tensor: Tensor, sizes: Sequence[int], group_size: int) -> list[Tensor]:
    """The part of an all_to_all_single's tensor for each peer; no sizes: equal parts.

    Raises:
        RuntimeError: the sizes do not fit, with torch's texts (c10d/Utils.hpp).
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % group_size or not tensor.dim():
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        sizes = [rows // group_size] * group_size
    if len(sizes) != group_size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(sizes) != rows:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return list(tensor.detach().split_with_sizes(list(sizes)))


def split_disagreement(entries: Sequence[Entry]) -> tuple[int, int, int, int] | None:
    """The first (sender, receiver, elements sent, elements expected) that differ in an all_to_all."""
    for sender, source in enumerate(entries):
        for receiver, target in enumerate(entries):
            sent, expected = source.inputs[receiver].numel(), target.outputs[sender].numel()
            if sent != expected:
                return sender, receiver, sent, expected
    return None
