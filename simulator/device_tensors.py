"""Operators on tensors that a device has not computed yet go to its current stream; reading one makes the host wait.

There is no simulated accelerator: a tensor counts as one of the device while an operation on the current stream of its
rank will still read or write its storage. An operator that touches such a storage gets outputs at once (their shapes
come from a run on meta tensors), and runs later, in stream order. Views are made at once. The host waits for the
current stream where it reads (`item`, `tolist`, `cpu`, `numpy`, printing, a comparison in an `if`), and also, unlike
the real one, in front of operators that are random, change the size of a tensor, write to `out=`, or are not torch's.

Not modelled: other threads of the rank that have issued nothing themselves; they read without waiting.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_map_only

if TYPE_CHECKING:
    from simulator.device import Device

_READS = frozenset(
    getattr(Tensor, name)
    for name in ("tolist", "numpy", "__array__", "cpu", "__repr__", "__format__", "__reduce_ex__", "__deepcopy__",
                 "__dlpack__", "untyped_storage", "storage", "share_memory_")
    if hasattr(Tensor, name)
)  # fmt: skip
_TO = Tensor.to
_HOST_TAGS = (torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view)
_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_KINDS_MAX = 4096
"""Kinds of calls whose shapes are kept."""
_STAND_INS = "torch._subclasses"
"""Where tensors come from that stand for others while torch traces: its own modes, below ours, know what to do."""
_MACHINERY = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.FUNCTIONAL)
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def storage_keys(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Identities of the storages behind `tensors`; a tensor without one (sparse, meta) has none."""
    held = [t for t in tensors if t.layout is torch.strided and not t.is_meta]
    with torch._C.DisableTorchFunction():
        return tuple(dict.fromkeys(t.untyped_storage()._cdata for t in held))


@contextmanager
def below_everything() -> Iterator[None]:
    """Compute what was dispatched already: no autograd, no version counters, no casts, no modes."""
    with (
        torch.no_grad(),
        torch._C._DisableAutocast(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._AutoDispatchBelowADInplaceOrView(),
    ):
        yield


def _is_traced() -> bool:
    """Torch's own machinery looks on, and does not compute."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _MACHINERY)


class _Computation:
    """An operator that runs when its turn has come. `targets` get what it returns."""

    def __init__(self, device: Device, func: Any, args: Any, kwargs: Any, targets: Sequence[Tensor]) -> None:
        self._device = device
        self._call = (func, args, kwargs)
        self._targets = targets

    def begin(self, finished: Callable[[], None]) -> None:
        func, args, kwargs = self._call
        try:
            with below_everything():
                results = [r for r in tree_flatten(func(*args, **kwargs))[0] if isinstance(r, Tensor)]
                for target, result in zip(self._targets, results, strict=False):
                    target.data.copy_(result)
        except Exception as error:
            self._device.failed(error)
        finished()

    def awaited(self) -> Any:
        raise AssertionError("a computation waits for nothing")


class _Deferral(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Decides about each operator, below autograd."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._shapes = _Shapes()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, which takes seconds, to keep it away from here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = self._device
        if types and any(kind not in _PLAIN for kind in types):
            stand_in = any(kind.__module__.startswith(_STAND_INS) for kind in types)
            return func(*args, **kwargs) if stand_in else NotImplemented
        functional = func.namespace == "_c10d_functional"
        if (device.streams.idle and not functional) or _is_traced():
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        if functional and not any(tensor.is_meta for tensor in tensors):
            with self:  # what it does with tensors comes here again, and then its collective is called
                return func.redispatch(_CPU, *args, **kwargs)
        if not device.touches(tensors):
            return func(*args, **kwargs)
        return self._on_device(func, args, kwargs, tensors)

    def _on_device(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        if _is_view(func):
            return func(*args, **kwargs)
        returned = None if _needs_host(func, tensors) else self._shapes.outputs(func, args, kwargs)
        if returned is None:
            self._device.synchronize()
            return func(*args, **kwargs)
        value, fresh = returned
        work = _Computation(self._device, func, args, kwargs, fresh)
        self._device.compute(work, [*tensors, *fresh])
        return value


class _Reads(TorchFunctionMode):
    """Catches what reads a tensor's memory without an operator."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        real = getattr(func, "stands_for", func)
        if not self._device.streams.idle and (real in _READS or (real is _TO and _to_host(args, kwargs))):
            tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if type(leaf) in _PLAIN]
            if self._device.touches(tensors):
                self._device.synchronize()
        return func(*args, **kwargs)


def _to_host(args: Any, kwargs: Any) -> bool:
    """A copy to the CPU that blocks."""
    named = [arg for arg in (*args[1:], kwargs.get("device")) if isinstance(arg, str | torch.device)]
    return any(torch.device(arg).type == "cpu" for arg in named) and not kwargs.get("non_blocking", False)


def _is_view(func: Any) -> bool:
    infos = [ret.alias_info for ret in func._schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def _writes(func: Any) -> list[Any]:
    return [arg for arg in func._schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]


def _needs_host(func: Any, tensors: list[Tensor]) -> bool:
    if func.namespace not in ("aten", "prims") or any(tag in func.tags for tag in _HOST_TAGS):
        return True
    if any(arg.kwarg_only for arg in _writes(func)) or func._schema.name in ("aten::set_", "aten::resize_"):
        return True
    masks = torch.Tag.dynamic_output_shape in func.tags and (
        func._schema.name != "aten::index" or any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
    )
    return masks or any(t.layout is not torch.strided or t.is_meta for t in tensors)


class _Shapes:
    """What operators return, as far as the host can say it: learnt from one run on meta tensors for a kind of call."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def outputs(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Tensor]] | None:
        """What `func` returns, its memory not filled yet, and the new tensors in it. None: it cannot be said."""
        shapes = self._shapes(func, args, kwargs)
        if shapes is None:
            return None
        returns = func._schema.returns
        if not returns or returns[0].alias_info is not None:
            return (args[0] if returns else None), []
        with below_everything():
            fresh = [
                torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device="cpu") for shape in shapes[0]
            ]
        return shapes[1].unflatten(fresh), fresh

    def _shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        key = (func, spec, *map(_kind, leaves))
        try:
            return self._known[key]
        except KeyError:
            pass
        except TypeError:
            return _on_meta(func, args, kwargs)
        if len(self._known) >= _KINDS_MAX:
            self._known.clear()
        found = self._known[key] = _on_meta(func, args, kwargs)
        return found


def _kind(leaf: Any) -> Any:
    """What a result's shape may depend on."""
    return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), leaf)


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Tensors like those that `func` returns, and how they are nested. None: it cannot be said."""
    returns = func._schema.returns
    if len(returns) > 1 and any(ret.alias_info is not None for ret in returns):
        return None
    try:
        with below_everything():
            leaves, spec = tree_flatten(func(*_as_meta(args), **_as_meta(kwargs)))
    except Exception:
        return None
    whole = all(isinstance(leaf, Tensor) for leaf in leaves) if returns else True
    return (leaves if returns else [], spec) if whole else None


def _as_meta(arguments: Any) -> Any:
    def meta(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    def named(argument: Any) -> Any:
        return torch.device("meta") if isinstance(argument, torch.device) else argument

    return tree_map_only(torch.device, named, tree_map_only(Tensor, meta, arguments))


class Modes:
    """Puts the two modes below those of the user, on each thread of the rank that uses the device."""

    def __init__(self, device: Device) -> None:
        self._deferral, self._reads = _Deferral(device), _Reads(device)
        self._on: dict[int, None] = {}

    def enter(self) -> None:
        thread = _thread.get_ident()
        if thread not in self._on:
            self._on[thread] = None
            _put_back([self._deferral, *_take_dispatch()], torch._C._push_on_torch_dispatch_stack)
            _put_back([self._reads, *_take_function()], torch._C._push_on_torch_function_stack)

    def leave(self) -> None:
        """On the calling thread."""
        if self._on.pop(_thread.get_ident(), self) is None:
            _put_back([m for m in _take_dispatch() if m is not self._deferral], torch._C._push_on_torch_dispatch_stack)
            _put_back([m for m in _take_function() if m is not self._reads], torch._C._push_on_torch_function_stack)


def _take_dispatch() -> list[Any]:
    """All of the user's modes off the stack, lowest first; those of torch's own machinery lie apart."""
    users = [mode for mode in _get_current_dispatch_mode_stack() if getattr(mode, "_mode_key", None) is None]
    return [torch._C._pop_torch_dispatch_stack(None) for _ in users][::-1]


def _take_function() -> list[Any]:
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())][::-1]


def _put_back(modes: Sequence[Any], push: Callable[[Any], None]) -> None:
    for mode in modes:
        push(mode)
