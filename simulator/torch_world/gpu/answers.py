"""What torch.cuda and torch.accelerator say in a rank with simulated GPUs; elsewhere they are the real ones.

Functions that are not in the tables below, and that torch does not build on those that are, raise NotImplementedError
with their name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.cuda.nvtx

from simulator.torch_world.gpu.rank import RankGpus, as_device
from simulator.torch_world.gpu.streams import stream_classes
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

Answer = Callable[..., Any]
CUDA_VERSION = "12.8"
"""What `torch.version.cuda` is on a build without CUDA, while ranks have simulated GPUs."""
_BUILT_ON_OTHERS = (
    "set_device", "device", "device_of", "get_device_name", "get_device_capability", "get_device_properties", "stream",
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
    "max_memory_cached", "set_rng_state_all", "get_rng_state_all", "is_bf16_supported", "is_tf32_supported",
    "memory_summary", "memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached", "nvtx", "amp",
    "get_gencode_flags", "synchronize", "classproperty", "lru_cache", "check_error", "get_sync_debug_mode",
)  # fmt: skip


def _index(gpus: RankGpus, device: Any = None) -> int:
    """The index of a device that is given in any of torch's ways; None: the current one."""
    if device is None or (isinstance(device, int) and device < 0):
        return gpus.current
    found = as_device(device)
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {found}")
    return gpus.current if found.index is None else found.index


def _checked(gpus: RankGpus, device: Any = None) -> int:
    index = _index(gpus, device)
    gpus.check(index)
    return index


def _set_device(gpus: RankGpus, device: Any) -> None:
    if isinstance(device, int) and device < 0:
        return
    gpus.select(_index(gpus, device))
    gpus.was_set = True


def _exchange(gpus: RankGpus, index: int) -> int:
    return gpus.current if index < 0 else gpus.select(index)


def _current(gpus: RankGpus) -> int:
    gpus.initialize()
    return gpus.current


def _properties(gpus: RankGpus, device: Any = None) -> Any:
    gpus.initialize()
    index = _index(gpus, device)
    if not 0 <= index < len(gpus.visible()):
        raise AssertionError("Invalid device id")
    return gpus.properties(index)


def _can_access(gpus: RankGpus, device: Any, peer_device: Any) -> bool:
    """All GPUs of a node reach each other."""
    mine, other = _index(gpus, device), _index(gpus, peer_device)
    for index, name in ((mine, "device"), (other, "peer device")):
        if not 0 <= index < len(gpus.visible()):
            raise AssertionError(f"Invalid {name} id")
    return mine != other


def _memory_stats(gpus: RankGpus, device: Any = None) -> dict[str, Any]:
    return dict(gpus.ledger(_checked(gpus, device)).stats())


def _mem_get_info(gpus: RankGpus, device: Any = None) -> tuple[int, int]:
    index = _checked(gpus, device)
    return gpus.free_bytes(index), gpus.properties(index).total_memory


def _reset_peak(gpus: RankGpus, device: Any = None) -> None:
    gpus.ledger(_checked(gpus, device)).reset_peak()


def _nothing(gpus: RankGpus, *args: Any, **kwargs: Any) -> None:
    """It has no effect that a program could see here."""


def _seed_all(gpus: RankGpus, seed: int) -> None:
    for index in range(len(gpus.visible())):
        gpus.generator(index).manual_seed(int(seed))


def _seed(gpus: RankGpus, seed: int) -> None:
    gpus.generator(gpus.current).manual_seed(int(seed))


def _initial_seed(gpus: RankGpus) -> int:
    return int(gpus.generator(_current(gpus)).initial_seed())


def _get_rng_state(gpus: RankGpus, device: Any = "cuda") -> Any:
    return gpus.generator(_checked(gpus, device)).get_state()


def _set_rng_state(gpus: RankGpus, new_state: Any, device: Any = "cuda") -> None:
    gpus.generator(_index(gpus, device)).set_state(new_state)


def _synchronize(gpus: RankGpus, device: Any = None) -> None:
    if device is not None:
        _checked(gpus, device)
    gpus.initialize()
    gpus.drain()


CUDA: dict[str, Answer] = {
    "is_available": lambda gpus: len(gpus.visible()) > 0,
    "device_count": lambda gpus: len(gpus.visible()),
    "current_device": _current,
    "set_device": _set_device,
    "_exchange_device": _exchange,
    "_maybe_exchange_device": _exchange,
    "is_initialized": lambda gpus: gpus.initialized,
    "init": lambda gpus: gpus.initialize(),
    "_lazy_init": lambda gpus: gpus.initialize(),
    "_lazy_call": lambda gpus, callable, **kwargs: callable(),
    "synchronize": _synchronize,
    "get_device_properties": _properties,
    "can_device_access_peer": _can_access,
    "get_arch_list": lambda gpus: ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
    "is_bf16_supported": lambda gpus, including_emulation=True: True,
    "is_current_stream_capturing": lambda gpus: False,
    "current_stream": lambda gpus, device=None: gpus.streams.current(_checked(gpus, device)),
    "default_stream": lambda gpus, device=None: gpus.streams.default(_checked(gpus, device)),
    "set_stream": lambda gpus, stream: None if stream is None else gpus.streams.select(stream),
    "ipc_collect": _nothing,
    "empty_cache": _nothing,
    "_sleep": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "set_sync_debug_mode": _nothing,
    "reset_accumulated_memory_stats": _nothing,
    "reset_peak_memory_stats": _reset_peak,
    "memory_stats": _memory_stats,
    "mem_get_info": _mem_get_info,
    "get_allocator_backend": lambda gpus: "native",
    "manual_seed": _seed,
    "manual_seed_all": _seed_all,
    "seed": lambda gpus: _seed(gpus, torch.seed()),
    "seed_all": lambda gpus: _seed_all(gpus, torch.seed()),
    "initial_seed": _initial_seed,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
}
ACCELERATOR: dict[str, Answer] = {
    "is_available": CUDA["is_available"],
    "device_count": CUDA["device_count"],
    "current_accelerator": lambda gpus, check_available=False: torch.device("cuda"),
    "current_device_index": _current,
    "current_device_idx": _current,
    "set_device_index": _set_device,
    "set_device_idx": _set_device,
    "current_stream": CUDA["current_stream"],
    "set_stream": CUDA["set_stream"],
    "synchronize": _synchronize,
    "empty_cache": _nothing,
    "empty_host_cache": _nothing,
    "memory_stats": _memory_stats,
    "memory_allocated": lambda gpus, device=None: gpus.ledger(_checked(gpus, device)).allocated,
    "max_memory_allocated": lambda gpus, device=None: gpus.ledger(_checked(gpus, device)).peak,
    "memory_reserved": lambda gpus, device=None: gpus.ledger(_checked(gpus, device)).allocated,
    "max_memory_reserved": lambda gpus, device=None: gpus.ledger(_checked(gpus, device)).peak,
    "get_memory_info": _mem_get_info,
    "reset_peak_memory_stats": _reset_peak,
    "reset_accumulated_memory_stats": _nothing,
}
C: dict[str, Answer] = {
    "_accelerator_exchangeDevice": _exchange,
    "_accelerator_maybeExchangeDevice": _exchange,
    "_accelerator_getDeviceIndex": _current,
    "_accelerator_setDeviceIndex": _set_device,
    "_get_accelerator": lambda gpus, check=None: torch.device("cuda"),
    "_accelerator_getAccelerator": lambda gpus: torch.device("cuda"),
    "_accelerator_synchronizeDevice": _synchronize,
}
CLASSES = ("CUDAGraph", "graph", "MemPool", "ExternalStream", "CUDAPluggableAllocator", "GreenContext")
_SUBMODULES = ("memory", "random", "streams", "graphs")


class _Ranges:
    """In place of the C library of NVTX: ranges and marks go nowhere."""

    def __getattr__(self, name: str) -> Answer:
        return lambda *args, **kwargs: 0


def install_answers(patches: Patches, sim: Simulation) -> None:
    """Replace the functions of both modules."""
    modules = [torch.cuda, *(getattr(torch.cuda, name) for name in _SUBMODULES)]
    for module in modules:
        for name, answer in CUDA.items():
            if name in vars(module):
                _replace(patches, sim, module, name, answer)
        for name, value in list(vars(module).items()):
            if _is_unknown(module, name, value):
                _replace(patches, sim, module, name, _refusal(f"torch.cuda.{name}"))
    for name, answer in ACCELERATOR.items():
        if hasattr(torch.accelerator, name):
            _replace(patches, sim, torch.accelerator, name, answer)
    for name, answer in C.items():
        if hasattr(torch._C, name):
            _replace(patches, sim, torch._C, name, answer)
    _install_classes(patches, sim, modules)
    patches.set(torch.cuda.nvtx, "_nvtx", _Ranges())
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", CUDA_VERSION)


def _is_unknown(module: ModuleType, name: str, value: Any) -> bool:
    known = name in CUDA or name in _BUILT_ON_OTHERS or name.startswith("_")
    return isinstance(value, FunctionType) and value.__module__.startswith("torch.cuda") and not known


def _replace(patches: Patches, sim: Simulation, module: Any, name: str, answer: Answer) -> None:
    real = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        context = sim.here()
        gpus = None if context is None else context.gpus
        return real(*args, **kwargs) if gpus is None else answer(gpus, *args, **kwargs)

    call.__name__, call.__doc__ = name, real.__doc__
    patches.set(module, name, call)


def _refusal(name: str) -> Answer:
    def refuse(gpus: RankGpus, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name} is not modelled by the simulated accelerator (see docs/limits.md)")

    return refuse


def _install_classes(patches: Patches, sim: Simulation, modules: list[Any]) -> None:
    stream, event = stream_classes(sim)
    for module in modules:
        for name, kind in (("Stream", stream), ("Event", event)):
            if name in vars(module):
                patches.set(module, name, kind)
        for name in CLASSES:
            real = vars(module).get(name)
            if isinstance(real, type):
                patches.set(module, name, _refused_class(sim, real))


def _refused_class(sim: Simulation, real: type) -> type:
    """A class that no rank with simulated GPUs can make."""

    class Refused(real):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            if context is not None and context.gpus is not None:
                _refusal(f"torch.cuda.{real.__name__}")(context.gpus)
            return super().__new__(cls, *args, **kwargs)

    Refused.__name__, Refused.__qualname__, Refused.__module__ = real.__name__, real.__qualname__, real.__module__
    return Refused
