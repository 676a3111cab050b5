"""What a tensor of a rank says of its device, and how it is moved: `device`, `is_cuda`, `to`, `cuda`, `cpu` and others.

Replaced on the class torch.Tensor, so that they hold on every thread and below torch's own Python functions. Tensors
that are no plain ones (subclasses, fake tensors) keep torch's own; what they are made of is plain. Under a function
mode torch calls a method by its name, and so these a second time: each does nothing to what it has done already.

Not modelled: `storage.device`; arrays and buffers that were made before a tensor was moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simulator.torch_world.gpu.factories import is_traced, made
from simulator.torch_world.gpu.move import moved
from simulator.torch_world.gpu.place import (
    Mark,
    device_of,
    has_place,
    is_on_gpu,
    is_plain,
    is_strided,
    mark_of,
    not_strided,
    put,
)
from simulator.torch_world.gpu.rank import RankGpus, as_device
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

Method = Callable[..., Any]
NEW = ("new_tensor", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
SPARSE = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc", "to_mkldnn")
_TO_NUMPY = "can't convert {} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def install_tensors(patches: Patches, sim: Simulation) -> None:
    """Replace the methods and properties."""
    _properties(patches)

    def replace(name: str, answer: Callable[..., Any]) -> None:
        real = getattr(Tensor, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            if context is None or context.gpus is None or not is_plain(self) or is_traced():
                return real(self, *args, **kwargs)
            return answer(context.gpus, real, self, args, kwargs)

        method.__name__, method.__doc__ = name, real.__doc__
        vars(method)["stands_for"] = real
        patches.set(Tensor, name, method)

    for name in NEW:
        replace(name, _new)
    for name in SPARSE:
        replace(name, _sparse)
    for name, answer in (
        ("to", _to), ("cuda", _cuda), ("cpu", _cpu), ("get_device", _get_device), ("type", _type),
        ("numpy", _numpy), ("__array__", _numpy), ("pin_memory", _pin), ("is_pinned", _is_pinned),
        ("record_stream", _record_stream), ("__deepcopy__", _deepcopy),
    ):  # fmt: skip
        replace(name, answer)
    _wrappers(patches, sim)


def _properties(patches: Patches) -> None:
    kind: Any = Tensor
    real_device, real_cuda, real_cpu = (getattr(kind, name).__get__ for name in ("device", "is_cuda", "is_cpu"))

    def device(self: Tensor) -> torch.device:
        if is_on_gpu(self) or is_plain(self):
            return device_of(self)
        found: torch.device = real_device(self)
        return found

    def is_cuda(self: Tensor) -> bool:
        return is_on_gpu(self) or real_cuda(self)

    def is_cpu(self: Tensor) -> bool:
        return not is_on_gpu(self) and real_cpu(self)

    for name, answer in (("device", device), ("is_cuda", is_cuda), ("is_cpu", is_cpu)):
        patches.set(Tensor, name, property(answer))


def _wrappers(patches: Patches, sim: Simulation) -> None:
    """Tensors that wrap others (DTensor) are made for a device, and have no memory."""
    real: Any = Tensor._make_wrapper_subclass

    def _make_wrapper_subclass(*args: Any, **kwargs: Any) -> Any:
        context, asked = sim.here(), kwargs.get("device")
        wanted = None if asked is None or context is None or context.gpus is None else as_device(asked)
        if wanted is None or wanted.type != "cuda" or is_traced():
            return real(*args, **kwargs)
        wrapper = real(*args, **{**kwargs, "device": "cpu"})
        put(wrapper, Mark(context.gpus.resolve(wanted)))  # type: ignore[union-attr]
        return wrapper

    patches.set(Tensor, "_make_wrapper_subclass", staticmethod(_make_wrapper_subclass))


# -- moving ------------------------------------------------------------------------------------------------------------


def _cpu(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    if not is_on_gpu(tensor):
        return real(tensor, *args, **kwargs)
    gpus.await_stream()
    return _formatted(moved(gpus, tensor, torch.device("cpu")), kwargs.get("memory_format"))


def _to(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    device, dtype, non_blocking, layout, copy = _asked(gpus, args, kwargs)
    if not has_place(tensor):
        if device is not None and device.type == "cuda":
            device = _host_of(tensor)
        return real(tensor, device, dtype, non_blocking, copy) if device or dtype else real(tensor, *args, **kwargs)
    if device is not None and device.type not in ("cpu", "cuda"):
        return real(tensor, *args, **kwargs)
    if device is not None and device.type == "cpu" and is_on_gpu(tensor) and not non_blocking:
        gpus.await_stream()
    result = tensor
    if device is not None and device != device_of(tensor):
        result, copy = moved(gpus, tensor, device), False
    if (dtype is None or dtype == tensor.dtype) and not copy:
        return _formatted(result, layout)
    named = {} if layout is None else {"memory_format": layout}
    return real(result, result.dtype if dtype is None else dtype, copy=copy, **named)


def _host_of(tensor: Tensor) -> torch.device:
    """Where a tensor without memory may be: torch has its own text for those of the meta device.

    Raises:
        NotImplementedError: it is sparse.
    """
    if not is_strided(tensor):
        raise not_strided(tensor)
    return torch.device("cpu")


def _formatted(tensor: Tensor, layout: Any) -> Tensor:
    return tensor if layout in (None, torch.preserve_format) else tensor.contiguous(memory_format=layout)


def _asked(gpus: RankGpus, args: Any, kwargs: Any) -> tuple[Any, Any, bool, Any, bool]:
    """(device, dtype, non_blocking, memory format, copy) of a call of `to`."""
    kwargs = dict(kwargs)
    copy, rest = bool(kwargs.pop("copy", False)), list(args)
    other = rest[0] if rest and isinstance(rest[0], Tensor) else kwargs.pop("other", None)
    if other is not None:
        rest = [other.device, other.dtype, *[each for each in args if each is not other]]
    place = 2 if rest and isinstance(rest[0], torch.dtype) else 3
    if len(rest) > place:
        copy = bool(rest.pop(place))
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*rest, **kwargs)
    return None if device is None else gpus.resolve(device), dtype, non_blocking, layout, copy


def _cuda(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    asked = args[0] if args else kwargs.get("device")
    device = gpus.resolve(torch.device("cuda") if asked is None else as_device(asked))
    if device.type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device: {device}")
    if not has_place(tensor):
        return tensor.to(_host_of(tensor))
    return _formatted(moved(gpus, tensor, device), kwargs.get("memory_format"))


def _new(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    """Where `tensor` is, unless another device is given."""
    asked = kwargs.get("device")
    if not has_place(tensor) and asked is None:
        return real(tensor, *args, **kwargs)
    device = device_of(tensor) if asked is None else as_device(asked)
    if device.type not in ("cpu", "cuda"):
        return real(tensor, *args, **kwargs)
    return made(gpus, real, (tensor, *args), {**kwargs, "device": device}, device)


def _type(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    """`x.type()` has the device in its name; `x.type(t)` goes to the device of `t`."""
    asked = args[0] if args else kwargs.get("dtype")
    if asked is None:
        name: str = real(tensor)
        return name.replace("torch.", "torch.cuda.", 1) if is_on_gpu(tensor) else name
    if isinstance(asked, torch.dtype):
        return real(tensor, *args, **kwargs)
    text = asked if isinstance(asked, str) else f"{asked.__module__}.{asked.__name__}"
    kind, _, name = text.rpartition(".")
    device = torch.device("cuda" if kind == "torch.cuda" else "cpu")
    there = tensor if device.type == device_of(tensor).type else moved(gpus, tensor, gpus.resolve(device))
    return there.to(getattr(torch, name).dtype)


# -- questions and the rest --------------------------------------------------------------------------------------------


def _get_device(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    return device_of(tensor).index if is_on_gpu(tensor) else real(tensor)


def _numpy(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    if is_on_gpu(tensor) and not kwargs.get("force"):
        raise TypeError(_TO_NUMPY.format(device_of(tensor)))
    return real(tensor, *args, **kwargs)


def _pin(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    if is_on_gpu(tensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    if _is_pinned(gpus, real, tensor, (), {}):
        return tensor
    return moved(gpus, tensor, torch.device("cpu"), pinned=True)


def _is_pinned(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    mark = mark_of(tensor) if has_place(tensor) else None
    return mark is not None and mark.pinned


def _sparse(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    """Another layout, which has no place on a GPU."""
    result = real(tensor, *args, **kwargs)
    if is_on_gpu(tensor):
        raise not_strided(result)
    return result


def _record_stream(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    """Nothing to do: no memory is used again while somebody holds on to it."""
    return None if is_on_gpu(tensor) else real(tensor, *args, **kwargs)


def _deepcopy(gpus: RankGpus, real: Method, tensor: Tensor, args: Any, kwargs: Any) -> Any:
    result = real(tensor, *args, **kwargs)
    if is_on_gpu(tensor) and not is_on_gpu(result):
        gpus.place(result, device_of(tensor))
    return result
