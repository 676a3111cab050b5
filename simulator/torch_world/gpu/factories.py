"""The functions of torch that make tensors: with a GPU as `device`, they make CPU memory that counts as being there.

Replaced under their names in `torch`, so that code below torch's own Python functions gets them too. The default
device of the thread (`torch.set_default_device`, `with torch.device(...)`) counts as given.

Not modelled: functions that were taken into a table or a default argument before the simulation; sparse and nested
tensors on a GPU, which are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import DeviceContext

from simulator.torch_world.gpu.move import moved
from simulator.torch_world.gpu.place import UNSETTLED, has_place, is_plain, is_strided, mark_of, not_strided, put
from simulator.torch_world.gpu.rank import RankGpus, as_device
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

MAKERS = (
    "empty", "empty_permuted", "empty_strided", "empty_quantized", "ones", "zeros", "full", "eye", "arange", "range",
    "linspace", "logspace", "rand", "randn", "randint", "randperm", "tensor", "scalar_tensor", "tril_indices",
    "triu_indices", "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
    "normal", "complex", "polar", "from_file", "frombuffer",
)  # fmt: skip
LIKE = ("empty_like", "ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like")
TAKERS = ("as_tensor", "asarray")
REFUSED = ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor",
           "sparse_compressed_tensor")  # fmt: skip
_RANDOM = ("rand", "normal")
FROM_FFT = ("fftfreq", "rfftfreq")


def default_device() -> torch.device | None:
    """The default device of the calling thread, if it has set one."""
    for number in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(number)
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def is_traced() -> bool:
    """torch's own machinery (fake tensors) is on: it knows devices itself."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def install_factories(patches: Patches, sim: Simulation) -> None:
    """Replace what makes tensors."""

    def replace(module: Any, name: str, build: Callable[..., Any]) -> None:
        real = getattr(module, name, None)
        if real is None:
            return

        def make(*args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            if context is None or context.gpus is None or is_traced():
                return real(*args, **kwargs)
            return build(context.gpus, real, args, kwargs)

        make.__name__, make.__doc__ = name, real.__doc__
        patches.set(module, name, make)
        _known_to_torchscript(patches, make, real)

    for name in MAKERS:
        replace(torch, name, _new)
    for name in FROM_FFT:
        replace(torch.fft, name, _new)
    for name in LIKE:
        replace(torch, name, _like)
    for name in TAKERS:
        replace(torch, name, _take)
    for name in REFUSED:
        replace(torch, name, _refuse)


def _known_to_torchscript(patches: Patches, made: Any, real: Any) -> None:
    """TorchScript knows builtin functions by their identity."""
    from torch.jit import _builtins

    table: dict[int, str] = vars(_builtins)["_get_builtin_table"]()
    if id(real) in table:
        patches.set_item(table, id(made), table[id(real)])


def _new(gpus: RankGpus, real: Any, args: Any, kwargs: Any) -> Any:
    asked = kwargs.get("device")
    device = default_device() if asked is None else as_device(asked)
    if kwargs.get("out") is not None or not (device is None or device.type in ("cpu", "cuda")):
        return real(*args, **kwargs)
    if asked is None and _takes_operands(args):
        return real(*args, **kwargs)
    return made(gpus, real, args, kwargs, torch.device("cpu") if device is None else device)


def _takes_operands(args: Any) -> bool:
    """`normal`, `complex` and `polar` make tensors where their operands are."""
    return bool(args) and any(isinstance(arg, Tensor) and arg.dim() for arg in args[:2])


def made(gpus: RankGpus, real: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
    """What `real` makes, on `device`.

    Raises:
        RuntimeError: a generator of another kind of device; pinned memory on a GPU.
    """
    device, pinned = gpus.resolve(device), bool(kwargs.get("pin_memory"))
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{generator.device.type}'")
    if pinned and device.type == "cuda":
        raise RuntimeError("Only dense CPU tensors can be pinned")
    plain = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    random = device if real.__name__.startswith(_RANDOM) and generator is None else torch.device("cpu")
    with gpus.random_numbers(random):
        result = real(*args, **plain, device="cpu") if _has_device(kwargs, device) else real(*args, **plain)
    if has_place(result):
        gpus.place(result, device, pinned=pinned)
    return result


def _has_device(kwargs: Any, device: torch.device) -> bool:
    """Whether to say that memory is made on the CPU, as a default device may be another."""
    return "device" in kwargs or device.type == "cuda"


def _like(gpus: RankGpus, real: Any, args: Any, kwargs: Any) -> Any:
    """Where its model is, unless another device is given."""
    asked = kwargs.get("device")
    if not args or not has_place(args[0]) or (asked is None and not kwargs.get("pin_memory")):
        return real(*args, **kwargs)
    device = args[0].device if asked is None else as_device(asked)
    return made(gpus, real, args, kwargs, device) if device.type in ("cpu", "cuda") else real(*args, **kwargs)


def _take(gpus: RankGpus, real: Any, args: Any, kwargs: Any) -> Any:
    """A tensor of what is given, which keeps its memory where it can."""
    asked = kwargs.get("device")
    device = None if asked is None else as_device(asked)
    source = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    if isinstance(source, Tensor):
        if device is not None and device.type == "cuda" and is_plain(source) and not is_strided(source):
            raise not_strided(source)
        if device is None or not has_place(source):
            return real(*args, **kwargs)
        result = real(*args, **{**kwargs, "device": None})
        return moved(gpus, result, gpus.resolve(device)) if device.type in ("cpu", "cuda") else result.to(device)
    device = default_device() if device is None else device
    if device is None or device.type != "cuda":
        result = real(*args, **kwargs)
        if has_place(result) and mark_of(result) is UNSETTLED:
            put(result, None)
        return result
    result = real(*args, **{**kwargs, "device": "cpu"})
    return moved(gpus, result, gpus.resolve(device))


def _refuse(gpus: RankGpus, real: Any, args: Any, kwargs: Any) -> Any:
    asked = kwargs.get("device")
    device = default_device() if asked is None else as_device(asked)
    if device is not None and device.type == "cuda":
        raise NotImplementedError(f"torch.{real.__name__} on a simulated GPU is not modelled: use device='cpu'")
    return real(*args, **kwargs)
