"""Sees each torch operator of a rank with simulated GPUs: its results stay on the device of what it was given.

A dispatch mode on each thread of the rank, below those of the user and above those that defer operators, so it sees
what autograd does too. An operator on tensors of two devices raises torch's text. A CPU tensor of no dimensions goes
with any device, and so does memory that torch's C++ code has made for itself.

Not modelled: operators of sparse tensors; the few that take some arguments from the host (`_HOST_TOO`) are not checked;
the name of the C++ wrapper in the text may differ by an underscore.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from simulator.torch_world.gpu.place import (
    HOST,
    UNSETTLED,
    Mark,
    has_place,
    is_on_gpu,
    is_plain,
    is_strided,
    mark_of,
    not_strided,
    put,
    tensors_among,
)
from simulator.torch_world.gpu.rank import RankGpus
from simulator.torch_world.operands import operands
from simulator.torch_world.operator_watch import OperatorWatch, is_ours, takes_apart

_HOST_TOO = frozenset(
    ("copy_", "_to_copy", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "_pack_padded_sequence",
     "_pad_packed_sequence", "tensor_split", "set_", "lift", "lift_fresh", "is_same_size", "_foreach_copy_",
     "_has_compatible_shallow_copy_type", "split_with_sizes_copy", "_amp_update_scale_")
)  # fmt: skip
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd")
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
_INDEXED = ("index", "_unsafe_index")


class GpuOperators(OperatorWatch):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    def __init__(self, gpus: RankGpus) -> None:
        super().__init__()
        self._gpus = gpus
        self._written: dict[Any, tuple[tuple[int, str], ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(takes_apart, types)) and all(map(is_ours, _get_current_dispatch_mode_stack())):
            return NotImplemented  # a subclass takes it apart, and its parts come here
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        asked = kwargs.get("device")
        if asked is not None and asked.type == "cuda":
            return self._on_gpu(func, args, kwargs, self._gpus.resolve(asked))
        if func.overloadpacket.__name__ in _READS and is_on_gpu(args[0]):
            self._gpus.await_stream()
        given = tensors_among((*args, *kwargs.values()))
        mark = self._common(func, given, args, kwargs) if given else UNSETTLED
        if mark is not None and mark.device is not None and torch.Tag.nondeterministic_seeded in func.tags:
            with self._gpus.random_numbers(mark.device):
                result = func(*args, **kwargs)
        elif func.namespace in _COLLECTIVES and given:
            with self:  # what it makes for the collective is to be marked before the collective is called
                result = func.redispatch(_CPU, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if mark is not None:
            self._settle(func, result, given, mark)
        return result

    def _on_gpu(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """A new tensor that is asked for on a GPU."""
        kwargs = {**kwargs, "device": HOST}
        kwargs.pop("pin_memory", None)
        if func.overloadpacket.__name__ == "_to_copy" and has_place(args[0]):
            kwargs.pop("device")
        result = func(*args, **kwargs)
        if is_plain(result) and not is_strided(result):
            raise not_strided(result)
        for tensor in tensors_among((result,)):
            self._gpus.place(tensor, device)
        return result

    def _settle(self, func: Any, result: Any, given: list[Tensor], mark: Mark) -> None:
        """Results in memory of their own are where the operands are; so is memory that was not settled yet."""
        results = tensors_among(result if isinstance(result, list | tuple) else (result,))
        name = func.overloadpacket.__name__
        for tensor in results:
            known = mark_of(tensor)
            unsettled = known is UNSETTLED and mark is not UNSETTLED and not name.startswith("copy_")
            fresh = known is None and not any(tensor is each for each in given)
            if (fresh and not _shares_host_memory(tensor, given)) or unsettled:
                if mark.device is None:
                    put(tensor, mark)
                else:
                    self._gpus.place(tensor, mark.device)

    def _common(self, func: Any, given: list[Tensor], args: Any, kwargs: Any) -> Mark | None:
        """The mark that results get: of the GPU that all operands are on, None on the host.

        Raises:
            RuntimeError: they are on several devices.
        """
        on: Mark | None = None
        host, unsettled = None, False
        for tensor in given:
            mark = mark_of(tensor)
            if mark is None or mark.device is HOST:
                host = tensor if tensor.dim() and host is None else host
            elif mark.device is None:
                unsettled = True
            elif on is None or on.device == mark.device:
                on = mark
            elif not _takes_several(func):
                raise _mixed(func, args, kwargs)
        if on is None:
            return UNSETTLED if unsettled and host is None else None
        name = func.overloadpacket.__name__
        if host is not None and not _takes_several(func):
            if name not in _INDEXED:
                raise _mixed(func, args, kwargs)
            if mark_of(args[0]) is None:
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        if name in ("copy_", "_to_copy"):
            return mark_of(args[0])
        return on


def _shares_host_memory(tensor: Tensor, given: list[Tensor]) -> bool:
    """A view of a tensor on the host, from an operator that was given tensors of a GPU too."""
    address = tensor.data_ptr() if tensor.numel() else 0
    return any(
        mark_of(each) is None and address and each.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        for each in given
    )


def _takes_several(func: Any) -> bool:
    return func.overloadpacket.__name__ in _HOST_TOO or func.namespace != "aten"


def _mixed(func: Any, args: Any, kwargs: Any) -> RuntimeError:
    """torch's text: that of a pointwise operator, or the one that names the argument."""
    named = []
    for operand in operands(func):
        value = args[operand.place] if operand.place < len(args) else kwargs.get(operand.name)
        for tensor in tensors_among((value,)):
            mark = mark_of(tensor)
            named.append((operand.name, HOST if mark is None or mark.device is None else mark.device))
    first = named[0][1] if named else HOST
    other = next(((name, device) for name, device in named if device != first), ("", HOST))
    if torch.Tag.pointwise in func.tags:
        pair = sorted((str(first), str(other[1])), key=lambda device: device == "cpu")
        return RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {pair[0]} and {pair[1]}!"
        )
    overload = "" if func._overloadname == "default" else f"_{func._overloadname}"
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {other[0]} is on {other[1]}, different from other "
        f"tensors on {first} (when checking argument in method wrapper_CUDA_{func.overloadpacket.__name__}{overload})"
    )
