"""What a backend checks before it starts a collective, with its own texts.

The order of the checks is that of ProcessGroupGloo.cpp; the other backends check the same here, and raise their own
type of error. Errors of data types come later, when the collective runs (see `run_error`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simulator.backends import BITWISE, BackendModel
from simulator.collectives import Entry

_NAMES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int8: "Char", torch.uint8: "Byte", torch.bool: "Bool", torch.int16: "Short", torch.int32: "Int",
    torch.int64: "Long",
}  # fmt: skip
_TAKES_COMPLEX = ("broadcast", "all_reduce", "reduce", "reduce_scatter")


def scalar_name(dtype: torch.dtype) -> str:
    """C++'s name of a dtype: `Float`, `Long`, ..."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch.").title())


class Arguments:
    """The checks of one group of `size` ranks."""

    def __init__(self, model: BackendModel, size: int) -> None:
        self._model = model
        self.size = size

    def refuse(self, op: str, text: str) -> Exception:
        return self._model.refuse(op, text)

    def root(self, op: str, root: int) -> None:
        if not 0 <= root < self.size:
            raise self.refuse(op, f"invalid root rank: {root}")

    def not_empty(self, op: str, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            raise self.refuse(op, "requires non-empty tensor list")

    def dense(self, op: str, tensors: Sequence[Tensor]) -> None:
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise self.refuse(op, "only supports dense tensors")
        self.contiguous(tensors)

    def contiguous(self, tensors: Sequence[Tensor]) -> None:
        """Only where the backend refuses strides (NCCL)."""
        if self._model.strides == "refuse" and not all(_contiguous_in_its_format(tensor) for tensor in tensors):
            raise ValueError("Tensors must be contiguous")

    def one_dtype(self, op: str, tensors: Sequence[Tensor]) -> None:
        if any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
            raise self.refuse(op, "tensors must all have the same type")

    def alike(self, op: str, tensors: Sequence[Tensor], like: Tensor) -> None:
        """The same dtype and, where the backend insists on it, shape (else as many elements)."""
        for index, tensor in enumerate(tensors):
            if tensor.dtype is not like.dtype:
                expected, got = scalar_name(like.dtype), scalar_name(tensor.dtype)
                raise self.refuse(op, f"invalid tensor type at index {index} (expected {expected}, got {got})")
            same = tensor.shape == like.shape if self._model.equal_shapes else tensor.numel() == like.numel()
            if not same:
                raise self.refuse(
                    op, f"invalid tensor size at index {index} (expected {_shape(like)}, got {_shape(tensor)})"
                )

    def lists(self, op: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        """all_gather: for each input a list of one output per rank, all of the same kind."""
        if not inputs:
            raise self.refuse(op, "requires non-empty input tensor list")
        for index, row in enumerate(outputs):
            if len(row) != self.size:
                raise self.refuse(
                    op,
                    f"invalid output tensor list at index {index} (expected length {self.size}, got {len(row)})",
                )
        self.dense(op, inputs)
        for row, tensor in zip(outputs, inputs, strict=True):
            self.alike(op, row, tensor)

    def coalesced_lists(self, op: str, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        """all_gather_coalesced: for each rank a list of one output per input."""
        if not inputs:
            raise self.refuse(op, "requires non-empty input tensor list")
        if len(outputs) != self.size:
            raise self.refuse(op, "output lists should be equal to world size")
        for row in outputs:
            if len(row) != len(inputs):
                raise self.refuse(op, f"invalid output size: (expected length {len(inputs)}, got {len(row)})")
            for index, (output, source) in enumerate(zip(row, inputs, strict=True)):
                if output.shape != source.shape:
                    raise self.refuse(
                        op,
                        f"invalid size of output tensor at index {index} (expected length {_shape(source)}, "
                        f"got {_shape(output)})",
                    )
                self.alike(op, [output], source)
        self.dense(op, inputs)

    def rooted_list(self, op: str, here: bool, rows: Sequence[Tensor], like: Tensor, side: str) -> None:
        """gather's outputs, scatter's inputs: one per rank on the root, none elsewhere. `side`: input or output."""
        if not here:
            if rows:
                raise self.refuse(op, f"requires empty {side} on non-root")
            return
        if len(rows) != self.size:
            raise self.refuse(
                op,
                f"Incorrect {side} list size {len(rows)}. {side.capitalize()} list size should be {self.size}, same "
                "as size of the process group.",
            )
        self.alike(op, rows, like)

    def reduce_scatter_list(self, inputs: Sequence[Tensor]) -> None:
        if len(inputs) != self.size:
            raise self._model.error("invalid input tensor list size, must be world size")

    def reduce_scatter_single(self, output: Tensor, source: Tensor) -> None:
        """The output is one of `size` equal parts of the input: by rows, or by elements."""
        if output.dtype is not source.dtype:
            sides = f"{output.dtype} vs. {source.dtype}"
            raise self._model.error(
                f"Check failed: outputTensors[i].dtype() == inputTensors[i].dtype() ({sides})."
            )  # fmt: skip
        self.contiguous([output, source])
        if not self._model.equal_shapes:
            if source.numel() != output.numel() * self.size:
                raise self._model.error("input tensor must be the same size as output size times world size")
            return
        if not output.dim() or not source.dim():
            raise self._model.error("reduce_scatter_tensor of a tensor without dimensions (real gloo crashes here)")
        rows, wanted = output.shape[0] * self.size, source.shape[0]
        if rows != wanted:
            raise self._model.error(f"Check failed: outputShape[0] * worldSize == inputShape[0] ({rows} vs. {wanted}).")
        for mine, theirs in zip(output.shape[1:], source.shape[1:], strict=False):
            if mine != theirs:
                raise self._model.error(f"Check failed: outputShape[i] == inputShape[i] ({mine} vs. {theirs}).")

    def all_gather_single(self, output: Tensor, source: Tensor) -> None:
        """The sizes, where the backend counts elements; else the chunks are checked as lists."""
        self.contiguous([output, source])
        if not self._model.equal_shapes and output.numel() != source.numel() * self.size:
            raise self._model.error("output tensor size must be equal to world_size times input tensor size")

    def all_to_all_lists(self, op: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        if op in self._model.refused_ops:
            raise RuntimeError(f"Backend {self._model.name} does not support {op}")
        for side, tensors in (("input", inputs), ("output", outputs)):
            if len(tensors) != self.size:
                raise self.refuse(op, f"{side} tensor list size {len(tensors)} does not match world size {self.size}")
        self.dense(op, [*inputs, *outputs])
        if not self._model.equal_shapes:
            return
        self.alike(op, inputs, inputs[0])
        self.alike(op, outputs, outputs[0])
        if inputs[0].dtype is not outputs[0].dtype:
            raise self.refuse(op, "input and output tensors must have the same type")
        if inputs[0].shape != outputs[0].shape:
            raise self.refuse(op, "input and output tensors must have the same size")

    def message(self, tensors: Sequence[Tensor], tag: int, what: str, peer: int, here: int) -> None:
        """A send or receive with group rank `peer`."""
        if len(tensors) != 1:
            raise RuntimeError(f"ProcessGroup{self._model.title}::send takes a single tensor")
        if not tensors[0].is_contiguous():
            self.contiguous(tensors)
            raise self._model.error("input tensor has to be contiguous")
        if tensors[0].is_sparse:
            raise self._model.error("input tensor has to be dense")
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        if not 0 <= peer < self.size:
            raise self._model.error(
                f"[{self._model.name}] {what} group rank {peer}, but the group has ranks 0 to {self.size - 1} "
                "(real gloo crashes here)"
            )
        if peer == here and not self._model.self_messages:
            raise self._model.error(
                f"[{self._model.name}] Pair is not connected: {what} group rank {peer}, the rank itself"
            )


def run_error(model: BackendModel, entry: Entry) -> Exception | None:
    """What every rank of the collective gets when it runs: a dtype or reduction that the backend does not have."""
    tensors = [*entry.inputs, *entry.outputs]
    if not tensors:
        return None
    dtype = tensors[0].dtype
    known = model.dtypes is None or dtype in model.dtypes
    if not known and not (dtype.is_complex and entry.op in _TAKES_COMPLEX):
        return model.bad_dtype(dtype)
    if not entry.reduce:
        return None
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if entry.reduce in BITWISE and not whole:
        return RuntimeError(f"Cannot use ReduceOp.{entry.reduce} with non-integral dtype")
    if entry.reduce == "AVG" and whole and model.name == "gloo":
        return RuntimeError(f"result type Float can't be cast to the desired output type {scalar_name(dtype)}")
    if model.name == "mooncake" and dtype is torch.float16:
        return RuntimeError(f"[mooncake] {entry.op}: reductions of {dtype} are not supported")
    return None


def _contiguous_in_its_format(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (
        (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d))
    )


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
