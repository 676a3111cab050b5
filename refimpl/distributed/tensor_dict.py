"""A dictionary with tensors in it, as picklable metadata plus a list of tensors, and back.

Metadata travels on the CPU group, tensors on the group of their device, so that the receiver knows what to allocate
before the first tensor arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a receiver has to allocate in the place of a tensor."""

    shape: tuple[int, ...]
    """Extent of each dimension, in elements."""
    dtype: torch.dtype
    """Element type."""
    device_type: str
    """Device type without an index: each rank has an index of its own."""


Metadata = list[tuple[str, Any]]
"""Key and value in order, each tensor replaced with its `TensorMeta`."""


def split(values: Mapping[str, Any]) -> tuple[Metadata, list[torch.Tensor]]:
    """`values` as metadata and its non-empty tensors in order, contiguous.  Empty tensors need no transfer."""
    metadata: Metadata = []
    tensors: list[torch.Tensor] = []
    for key, value in values.items():
        if not isinstance(value, torch.Tensor):
            metadata.append((key, value))
            continue
        metadata.append((key, TensorMeta(tuple(value.shape), value.dtype, value.device.type)))
        if value.numel():
            tensors.append(value.contiguous())
    return metadata, tensors


def allocate(metadata: Metadata, device: torch.device) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The dictionary that `metadata` describes and its non-empty tensors in order, all values yet unset.

    A tensor that was on the sender's accelerator is allocated on `device`, any other one on the CPU.
    """
    values: dict[str, Any] = {}
    for key, value in metadata:
        if isinstance(value, TensorMeta):
            home = torch.device("cpu") if value.device_type == "cpu" else device
            value = torch.empty(value.shape, dtype=value.dtype, device=home)
        values[key] = value
    return values, [v for v in values.values() if isinstance(v, torch.Tensor) and v.numel()]
