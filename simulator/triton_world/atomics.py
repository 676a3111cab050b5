"""What atomic operations make of the value that they find, in bits.

Source: PTX ISA, "atom": `inc` and `dec` wrap at their operand; floating point is added in its own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from simulator.triton_world.ptx_types import Array, Type, decode, encode

Change = Callable[..., Any]
"""From the bits that were there and the bits of the operands to the bits that are there afterwards."""

Merge = Callable[[Sequence[Array]], Array]
"""From the bits of several places to those of their reduction."""

_WHOLE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, np.zeros_like(old), old + np.ones_like(old)),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - np.ones_like(old)),
}
_FLOAT: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "min": np.fmin, "max": np.fmax}


def combine(operation: str, of: Type, fail: Callable[[str], Exception]) -> Change:
    """The change that an operation makes to values of a type.

    Raises:
        what `fail` makes: there is no such operation on that type.
    """
    if operation == "exch":
        return lambda old, new: new
    if operation == "cas":
        return lambda old, expected, new: np.where(old == expected, new, old)
    change = (_FLOAT if of.is_float else _WHOLE).get(operation)
    if change is None:
        raise fail(f".{operation} does not work on .{of.name}")
    return lambda old, given: encode(change(decode(old, of), decode(given, of)), of)


def merge(operation: str, of: Type, fail: Callable[[str], Exception], *, wide: bool) -> Merge:
    """What the values of all members make together, in their order.

    Args:
        wide: floating point is rounded once, in the end, and not after each step.
    """
    change = combine(operation, of, fail)
    if not (wide and of.is_float):
        return lambda parts: reduce(change, parts)
    step = _FLOAT[operation]
    return lambda parts: encode(reduce(step, [decode(part, of) for part in parts]), of)
