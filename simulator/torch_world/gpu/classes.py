"""Classes of torch that name a kind of device: `torch.Generator`, `torch.cuda.FloatTensor` and its like.

What they make in a rank with simulated GPUs is a plain generator or tensor that counts as one of the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from simulator.torch_world.gpu.place import is_on_gpu
from simulator.torch_world.gpu.rank import GpuGenerator, as_device
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

_TENSORS = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")


class _OfMany(type):
    """Instances are told by what they are, not by their class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return bool(cls.has(instance))  # type: ignore[attr-defined]


def install_classes(patches: Patches, sim: Simulation) -> None:
    """Replace them."""
    patches.set(torch, "Generator", _generator(sim))
    for name in _TENSORS:
        if hasattr(torch.cuda, f"{name}Tensor"):
            patches.set(torch.cuda, f"{name}Tensor", _tensor_class(sim, f"{name}Tensor"))
    patches.set(torch.cuda, "default_generators", _Generators(sim, torch.cuda.default_generators))


class _Generators:
    """`torch.cuda.default_generators`: those of the rank that asks."""

    def __init__(self, sim: Simulation, real: Any) -> None:
        self._sim, self._real = sim, real

    def __getitem__(self, index: int) -> Any:
        context = self._sim.here()
        if context is None or context.gpus is None:
            return self._real[index]
        if not -len(self) <= index < len(self):
            raise IndexError("tuple index out of range")
        return context.gpus.generator(index % len(self))

    def __len__(self) -> int:
        context = self._sim.here()
        return len(self._real) if context is None or context.gpus is None else len(context.gpus.visible())


def _generator(sim: Simulation) -> type:
    real: Any = torch.Generator

    class Generator(metaclass=_OfMany):
        def __new__(cls, device: Any = "cpu") -> Any:
            context, wanted = sim.here(), as_device(device)
            if wanted.type != "cuda" or context is None or context.gpus is None:
                return real(device)
            return GpuGenerator(context.gpus.resolve(wanted).index or 0)

        @staticmethod
        def has(instance: Any) -> bool:
            return isinstance(instance, real)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator


def _tensor_class(sim: Simulation, name: str) -> type:
    host: Any = getattr(torch, name)
    real: Any = getattr(torch.cuda, name)

    class GpuTensor(metaclass=_OfMany):
        dtype = host.dtype

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            context = sim.here()
            if context is None or context.gpus is None:
                return real(*args, **kwargs)
            return context.gpus.place(host(*args), context.gpus.resolve(torch.device("cuda")))

        @staticmethod
        def has(instance: Any) -> bool:
            return is_on_gpu(instance) and instance.dtype is host.dtype

    GpuTensor.__module__, GpuTensor.__name__, GpuTensor.__qualname__ = "torch.cuda", name, name
    return GpuTensor
