"""The arrays behind Triton's values: scalars and blocks, masks, bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.triton_world.lanes import Lanes
from simulator.triton_world.ptx_types import Array


def is_scalar(pointers: Array) -> bool:
    """Whether it is no block. A block of one element along one axis is taken for a scalar."""
    return (pointers.size == 1 and pointers.ndim < 2) or isinstance(pointers, Lanes)


def of_first_thread(values: Array, pointers: Array) -> Array:
    """Thread 0's value, where the pointer is a scalar."""
    flat = np.asarray(values)
    return flat.reshape(-1)[:1] if is_scalar(pointers) else flat


def wanted_of(mask: Any, pointers: Array) -> Array:
    """[of the pointers] which elements are wanted; block pointers of Triton 3.6 come with a bare array."""
    if mask is None:
        return np.ones(pointers.shape, bool)
    given = mask if isinstance(mask, np.ndarray) else np.asarray(mask.data)
    return np.asarray(np.broadcast_to(given, pointers.shape), bool)


def operand(handle: Any, pointers: Array, wanted: Array, dtype: np.dtype[Any]) -> Array:
    """The bits of the wanted elements of what is stored through `pointers`."""
    values = np.broadcast_to(of_first_thread(handle.data, pointers), wanted.shape)[wanted]
    return bits_of(values.astype(dtype, copy=False))


def bits_of(values: Array) -> Array:
    """The same as unsigned integers."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def values_of(raw: Array, dtype: np.dtype[Any]) -> Array:
    """The opposite of `bits_of`."""
    return raw.astype(bool) if dtype.kind == "b" else raw.view(dtype)


def as_lanes(values: Array, pointers: Array) -> Array:
    """What was loaded through pointers that differ between threads differs, too."""
    return values.view(Lanes) if isinstance(pointers, Lanes) else values
