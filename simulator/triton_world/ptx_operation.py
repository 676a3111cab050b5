"""What the makers of operations have in common: modifiers, numbers of operands, the plain form of an instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.triton_world.errors import NotModelled
from simulator.triton_world.ptx_code import Instruction
from simulator.triton_world.ptx_types import TYPES, Type
from simulator.triton_world.ptx_values import Op, reader, writer, wrong

_IGNORED = ("rn", "ftz", "approx", "full", "uni", "to", "global", "lo")
"""Modifiers that change nothing here; those that would are refused where they occur."""


def refuse_others(at: Instruction, *known: str) -> None:
    """
    Raises:
        NotModelled: the instruction has a modifier that means something, and is not among `known`.
    """
    for each in at.modifiers:
        if each not in TYPES and each not in _IGNORED and each not in known:
            raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: .{each} is not modelled")


def needs(at: Instruction, count: int) -> None:
    """
    Raises:
        PtxError: the instruction has another number of operands.
    """
    if len(at.operands) != count:
        raise wrong(at, f"{len(at.operands)} operands, where {count} are needed")


def operation(at: Instruction, of: Type, into: Type, compute: Callable[..., Any], *types: Type) -> Op:
    """Compute a result of type `into` from operands of `types`, or from one of type `of`."""
    needs(at, 1 + (len(types) or 1))
    reads = [reader(at, operand, each) for operand, each in zip(at.operands[1:], types or (of,), strict=True)]
    put = writer(at, at.operands[0], into)
    if len(reads) == 2:
        left, right = reads
        return lambda machine, who: put(machine, who, compute(left(machine, who), right(machine, who)))
    return lambda machine, who: put(machine, who, compute(*(read(machine, who) for read in reads)))
