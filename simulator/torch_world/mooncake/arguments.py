"""What Mooncake checks before it starts a call, in its own words (measured; read in its adapter and communicator)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from simulator.arguments import Arguments
from simulator.backends import BackendModel
from simulator.collectives import Entry

CALLS = {
    "all_reduce": "AllReduce", "broadcast": "Broadcast", "reduce": "Reduce", "all_gather": "AllGather",
    "gather": "Gather", "scatter": "Scatter", "reduce_scatter": "ReduceScatter", "all_to_all": "AllToAll",
    "barrier": "BarrierCpu", "send": "Send", "recv": "Recv",
}  # fmt: skip
_REDUCES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool)
_REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX")


def failed(op: str, kind: str, text: str) -> RuntimeError:
    """The error of a call: `op` as the simulator names it, or as Mooncake does."""
    return RuntimeError(f"mooncakePg{CALLS.get(op, op)} failed: {kind}: {text}")


def check_reduction(entry: Entry) -> None:
    """Refuse what Mooncake cannot reduce.

    Raises:
        RuntimeError: with its words.
    """
    if not entry.reduce:
        return
    if entry.reduce == "AVG":
        raise failed(entry.op, "operation not supported", "average reduction is not supported")
    if entry.reduce not in _REDUCTIONS:
        raise RuntimeError(f"Unsupported Mooncake PG op: {chr(getattr(ReduceOp, entry.reduce).value)}")
    if entry.inputs and entry.inputs[0].dtype not in _REDUCES:
        raise failed(entry.op, "operation not supported", "reduction datatype is not supported")


class MooncakeArguments(Arguments):
    """The checks of one group.

    Args:
        size: the world size, which lists of tensors must have.
        capacity: slots of the group, among which a root must be.
    """

    def __init__(self, model: BackendModel, size: int, capacity: int) -> None:
        super().__init__(model, size)
        self._capacity = capacity

    def root(self, op: str, root: int) -> None:
        if not 0 <= root < self._capacity:
            raise failed(op, "invalid argument", f"{op} root is out of range")

    def not_empty(self, op: str, tensors: Sequence[Tensor]) -> None:
        if op == "allreduce_coalesced":
            raise self._missing(op)
        if len(tensors) != 1:
            raise RuntimeError("Expecting one tensor only but got multiple.")

    def dense(self, op: str, tensors: Sequence[Tensor]) -> None:
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    def lists(self, op: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        for row, tensor in zip(outputs, inputs, strict=True):
            self._peers(row, tensor)

    def all_gather_single(self, output: Tensor, source: Tensor) -> None:
        """Nobody compares the sizes."""
        if output.dtype is not source.dtype:
            raise RuntimeError("Input and output tensors must have the same dtype")
        for name, tensor in (("Input", source), ("Output", output)):
            if not tensor.is_contiguous():
                raise RuntimeError(f"{name} tensor must be contiguous")

    def reduce_scatter_single(self, output: Tensor, source: Tensor) -> None:
        self.all_gather_single(output, source)

    def coalesced_lists(self, op: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        raise self._missing(op)

    def rooted_list(self, op: str, here: bool, rows: Sequence[Tensor], like: Tensor, side: str) -> None:
        if here:
            self._peers(rows, like)

    def reduce_scatter_list(self, inputs: Sequence[Tensor]) -> None:
        raise self._missing("reduce_scatter")

    def all_to_all_lists(self, op: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        if not inputs or not outputs:
            raise RuntimeError("alltoall requires non-empty Tensor lists")
        self._peers(outputs, inputs[0])
        self._peers(inputs, inputs[0])

    def _peers(self, tensors: Sequence[Tensor], like: Tensor) -> None:
        if len(tensors) != self.size:
            raise RuntimeError("Tensor list size must match active group size")
        if any(tensor.dtype is not like.dtype for tensor in tensors):
            raise RuntimeError("All peer tensors must have the same dtype")
        if any(tensor.numel() != like.numel() for tensor in tensors):
            raise RuntimeError("All peer tensors must have the same number of elements")

    def _missing(self, op: str) -> RuntimeError:
        return RuntimeError(f"Backend mooncake does not support {op}")

    def message(self, tensors: Sequence[Tensor], tag: int, what: str, peer: int, here: int) -> None:
        if len(tensors) != 1:
            raise RuntimeError("Expecting one tensor only but got multiple.")
        op = what.partition(" ")[0]
        if not 0 <= peer < self._capacity:
            raise failed(op, "invalid argument", f"P2P {op} peer is out of range")
