"""Reading and writing the operands of an instruction, for all lanes or for some.

`Who` names lanes: None for all of them, or an array of their numbers, ascending.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.triton_world.errors import PtxError
from simulator.triton_world.ptx_code import Immediate, Instruction, Negated, Operand, Register, Sink, Special, Vector
from simulator.triton_world.ptx_types import TYPES, Array, Type, decode, encode, raw_dtype, resize

if TYPE_CHECKING:
    from simulator.triton_world.ptx_machine import Machine

Who = Array | None
Branches = list[tuple[int, Who]]
Op = Callable[["Machine", Who], "Branches | None"]
Read = Callable[["Machine", Who], Array]
Write = Callable[["Machine", Who, Array], None]


def wrong(at: Instruction, what: str) -> PtxError:
    """The error for an instruction that an assembler would refuse."""
    return PtxError(f"line {at.line} of the assembly, {at.text!r}: {what}")


def type_of(at: Instruction) -> Type:
    """The type at the end of the opcode."""
    if not at.modifiers or at.modifiers[-1] not in TYPES:
        raise wrong(at, "it does not end in a type")
    return TYPES[at.modifiers[-1]]


def raw_reader(at: Instruction, operand: Operand, of: Type) -> Read:
    """The bits of an operand in the width of `of`: [lanes], or [1] for a constant."""
    if isinstance(operand, Register):
        return _register_reader(operand, of.width)
    if isinstance(operand, Immediate):
        value = _constant(operand, of)
        return lambda machine, who: value
    if isinstance(operand, Special):
        name, width = operand.name, of.width
        return lambda machine, who: resize(machine.special(at, name, who), width)
    if isinstance(operand, Negated):
        inner = _register_reader(operand.register, of.width)
        return lambda machine, who: ~inner(machine, who)
    raise wrong(at, "an operand cannot be read")


def reader(at: Instruction, operand: Operand, of: Type) -> Read:
    """The numbers of an operand."""
    raw = raw_reader(at, operand, of)
    return raw if of.kind in ("b", "u", "pred") else lambda machine, who: decode(raw(machine, who), of)


def _register_reader(register: Register, width: int) -> Read:
    slot = register.slot

    def read(machine: Machine, who: Who) -> Array:
        values = machine.registers[slot] if who is None else machine.registers[slot][who]
        return resize(values, width)

    return read


def _constant(of_text: Immediate, of: Type) -> Array:
    value: Any = of_text.value
    if of.kind == "pred":
        return np.array([value != 0])
    if isinstance(value, float) and not of.is_float:
        return np.array([value], np.dtype(f"f{of_text.bits // 8 or 4}")).view(raw_dtype(of_text.bits or 32))
    if of.is_float:
        return encode(np.full((1, of.parts) if of.parts > 1 else 1, float(value)), of)
    return np.array([int(value) % (1 << of.width)], raw_dtype(of.width))


def raw_writer(at: Instruction, operand: Operand, of: Type) -> Write:
    """Puts bits of type `of` into a register, which may be wider."""
    if isinstance(operand, Sink):
        return lambda machine, who, raw: None
    if not isinstance(operand, Register):
        raise wrong(at, "its result is no register")
    slot, width, signed = operand.slot, operand.type.width, of.kind == "s"
    if width < of.width:
        raise wrong(at, f"a register of {width} bits is too narrow for .{of.name}")

    def write(machine: Machine, who: Who, raw: Array) -> None:
        machine.registers[slot][... if who is None else who] = resize(raw, width, signed=signed)

    return write


def writer(at: Instruction, operand: Operand, of: Type) -> Write:
    """Puts numbers into a register."""
    put = raw_writer(at, operand, of)
    return lambda machine, who, numbers: put(machine, who, encode(numbers, of))


def vector_reader(at: Instruction, operand: Operand, of: Type, count: int) -> Read:
    """The bits of `count` registers in braces (or of one): [lanes, count], [1, count] for constants."""
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    if len(parts) != count:
        raise wrong(at, f"{len(parts)} registers, where {count} are needed")
    reads = [raw_reader(at, part, of) for part in parts]

    def read(machine: Machine, who: Who) -> Array:
        return np.stack(np.broadcast_arrays(*(each(machine, who) for each in reads)), axis=1)

    return read


def vector_writer(at: Instruction, operand: Operand, of: Type, count: int) -> Write:
    """Spreads [lanes, count] over `count` registers in braces (or one)."""
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    if len(parts) != count:
        raise wrong(at, f"{len(parts)} registers, where {count} are needed")
    writes = [raw_writer(at, part, of) for part in parts]

    def write(machine: Machine, who: Who, raw: Array) -> None:
        for number, each in enumerate(writes):
            each(machine, who, raw[:, number])

    return write
