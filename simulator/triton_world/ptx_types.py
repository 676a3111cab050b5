"""The types of PTX: how the bits of a register become numbers, and numbers bits again.

A register is an array of unsigned integers, one for each lane. Floating point of 16 bits is computed in float32 and
rounded once, to nearest even, which is exact for one addition, product or comparison.

Source: PTX ISA, "Fundamental Types", "Packed Data Types".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Type:
    """One type.

    Attributes:
        name: as PTX spells it, without the dot.
        kind: `b` (bits), `u`, `s`, `f`, `bf` or `pred`.
        bits: of one element.
        parts: elements packed into one register.
    """

    name: str
    kind: str
    bits: int
    parts: int = 1

    @property
    def width(self) -> int:
        """Bits of a register of this type."""
        return self.bits * self.parts

    @property
    def nbytes(self) -> int:
        return self.width // 8

    @property
    def is_float(self) -> bool:
        return self.kind in ("f", "bf")


def _all_types() -> dict[str, Type]:
    plain = [Type(f"{kind}{bits}", kind, bits) for kind in "bus" for bits in (8, 16, 32, 64)]
    floats = [Type(f"f{bits}", "f", bits) for bits in (16, 32, 64)]
    packed = [Type("f16x2", "f", 16, 2), Type("bf16x2", "bf", 16, 2)]
    return {each.name: each for each in (*plain, *floats, Type("bf16", "bf", 16), *packed, Type("pred", "pred", 1))}


TYPES = _all_types()


def raw_dtype(bits: int) -> np.dtype[Any]:
    """What a register of so many bits is kept as."""
    return np.dtype(bool) if bits == 1 else np.dtype(f"u{bits // 8}")


def decode(raw: Array, of: Type) -> Array:
    """Numbers from the bits: [n], or [n, parts] for a packed type; 16-bit floats as float32."""
    if of.kind in ("b", "u", "pred"):
        return raw
    if of.kind == "s":
        return raw.view(f"i{of.bits // 8}")
    if of.parts > 1:
        return _from_half(np.ascontiguousarray(raw).view("u2").reshape(-1, of.parts), of.kind)
    return _from_half(raw, of.kind) if of.bits == 16 else raw.view(f"f{of.bits // 8}")


def encode(numbers: Array, of: Type) -> Array:
    """The bits of numbers: the opposite of `decode`; integers wrap around."""
    if of.kind == "pred":
        return numbers.astype(bool)
    if not of.is_float:
        dtype = np.dtype(f"{'i' if of.kind == 's' else 'u'}{of.bits // 8}")
        return numbers.astype(dtype, copy=False).view(f"u{of.bits // 8}")
    if of.bits == 16:
        halves = _to_half(numbers.astype(np.float32, copy=False), of.kind)
        return halves.view(f"u{2 * of.parts}").reshape(-1) if of.parts > 1 else halves
    return numbers.astype(f"f{of.bits // 8}", copy=False).view(f"u{of.bits // 8}")


def resize(raw: Array, bits: int, *, signed: bool = False) -> Array:
    """The same value in a register of another width: cut off, or extended by its sign or by zeros."""
    dtype = raw_dtype(bits)
    if raw.dtype == dtype:
        return raw
    if signed and raw.dtype != bool:
        return raw.view(f"i{raw.dtype.itemsize}").astype(f"i{bits // 8}").view(dtype)
    return raw.astype(dtype)


def _from_half(raw: Array, kind: str) -> Array:
    if kind == "bf":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.view(np.float16).astype(np.float32)


def _to_half(numbers: Array, kind: str) -> Array:
    if kind == "f":
        return numbers.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(numbers), np.uint16(0x7FFF), rounded).astype(np.uint16)
