"""Inline assembly as data: instructions with their registers and labels resolved."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.triton_world.ptx_types import Type


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register, or an operand `$n`."""

    slot: int
    type: Type


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant; `bits` are those of a float given in hexadecimal, with their number."""

    value: int | float
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, in bytes."""

    base: Register | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """`p|q`, of a comparison with two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: the result is thrown away."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a branch goes: the index of an instruction."""

    index: int


Operand = Register | Immediate | Special | Address | Vector | Negated | Pair | Sink | Target


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: up to the first dot; of `multimem` and `fence.proxy` with what follows.
        modifiers: the rest, in order.
        guard: the predicate that switches it; `negated`: by being false.
        line: in the text of the assembly, from 1.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Parsed inline assembly: `outputs` and `inputs` are slots, in the order of the constraints."""

    instructions: tuple[Instruction, ...]
    registers: tuple[Type, ...]
    outputs: tuple[Register, ...]
    inputs: tuple[Register, ...]
