"""Copies between host memory and simulated GPUs, with gradients that travel back."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from simulator.torch_world.gpu.place import device_of
from simulator.torch_world.gpu.rank import RankGpus


class _Move(torch.autograd.Function):
    """A copy on another device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, gpus: RankGpus, tensor: Tensor, device: torch.device, pinned: bool) -> Tensor:
        ctx.gpus, ctx.source = gpus, device_of(tensor)
        return _copied(gpus, tensor, device, pinned)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, moved(ctx.gpus, gradient, ctx.source), None, None


def moved(gpus: RankGpus, tensor: Tensor, device: torch.device, *, pinned: bool = False) -> Tensor:
    """`tensor` on `device`, which has its index: itself, if it is there, or a copy."""
    if device == device_of(tensor) and not pinned:
        return tensor
    if tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Move.apply(gpus, tensor, device, pinned)  # type: ignore[no-untyped-call]
        return result
    return _copied(gpus, tensor, device, pinned)


def _copied(gpus: RankGpus, tensor: Tensor, device: torch.device, pinned: bool) -> Tensor:
    lazy = is_lazy(tensor)  # it refuses what is no question about its place
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass() if lazy else nullcontext():
        return gpus.place(tensor.detach().clone(), device, pinned=pinned)
