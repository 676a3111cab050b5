"""Instructions to operations that a `Machine` runs; once for each inline assembly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.triton_world.errors import NotModelled, PtxError
from simulator.triton_world.ptx import parse
from simulator.triton_world.ptx_arithmetic import arithmetic
from simulator.triton_world.ptx_code import Address, Code, Instruction, Operand, Register, Special, Target, Vector
from simulator.triton_world.ptx_memory import TOUCHES_MEMORY, memory
from simulator.triton_world.ptx_types import Array
from simulator.triton_world.ptx_values import Branches, Op, Who, wrong

if TYPE_CHECKING:
    from simulator.triton_world.ptx_machine import Machine

_ORDERING = ("acquire", "release", "acq_rel")
_NOBODY: Array = np.arange(0)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Inline assembly ready to run.

    Attributes:
        operations: one for each instruction.
        orders: it has a fence, an acquire or a release, so its own accesses are ordered by it.
        loops: it can branch back.
        same_on_all: it reads no thread number and touches no memory: all threads compute the same from the same.
    """

    code: Code
    operations: tuple[Op, ...]
    orders: bool
    loops: bool
    same_on_all: bool


def compile_asm(asm: str, constraints: str) -> Compiled:
    """Read and prepare inline assembly.

    Raises:
        PtxError: an assembler would refuse it.
        NotModelled: it has an instruction that is not modelled.
    """
    code = parse(asm, constraints)
    operations = tuple(_operation(at, pc, len(code.instructions)) for pc, at in enumerate(code.instructions))
    touches = any(at.opcode in TOUCHES_MEMORY for at in code.instructions)
    reads = any(_reads_special(operand) for at in code.instructions for operand in at.operands)
    return Compiled(
        code,
        operations,
        orders=any(_orders(at) for at in code.instructions),
        loops=any(_branches_back(at, pc) for pc, at in enumerate(code.instructions)),
        same_on_all=not touches and not reads,
    )


def _orders(at: Instruction) -> bool:
    return at.opcode in ("fence", "membar") or not set(_ORDERING).isdisjoint(at.modifiers)


def _branches_back(at: Instruction, pc: int) -> bool:
    return any(isinstance(operand, Target) and operand.index <= pc for operand in at.operands)


def _reads_special(operand: Operand) -> bool:
    if isinstance(operand, Vector):
        return any(_reads_special(part) for part in operand.parts)
    return isinstance(operand, Special)


def _operation(at: Instruction, pc: int, end: int) -> Op:
    if at.opcode == "bra":
        return _branch(at, pc)
    operation = _leave(at, end) or arithmetic(at) or memory(at, pc)
    if operation is None:
        raise NotModelled(
            f"{at.text!r} in line {at.line} of the assembly: the instruction {at.opcode!r} is not modelled"
        )
    if at.opcode not in TOUCHES_MEMORY and any(isinstance(operand, Address) for operand in at.operands):
        raise wrong(at, "an address, where a value is needed")
    return operation if at.guard is None else _guarded(at.guard, at.negated, operation, pc)


def _leave(at: Instruction, end: int) -> Op | None:
    """What ends a thread, or lets it pause."""
    if at.opcode == "ret":
        return lambda machine, who: [(end, who)]
    if at.opcode == "nanosleep":
        return lambda machine, who: None
    if at.opcode != "trap":
        return None

    def trap(machine: Machine, who: Who) -> Branches | None:
        raise PtxError(f"trap, in line {at.line} of the assembly")

    return trap


def _split(guard: Register, negated: bool) -> Callable[[Machine, Who], tuple[Who, Who]]:
    """Divides lanes by a predicate: those for which it holds, and the others."""
    slot = guard.slot

    def split(machine: Machine, who: Who) -> tuple[Who, Who]:
        holds = machine.registers[slot] if who is None else machine.registers[slot][who]
        if negated:
            holds = ~holds
        if holds.all():
            return who, _NOBODY
        lanes = machine.lanes_of(who)
        return (lanes[holds], lanes[~holds]) if holds.any() else (_NOBODY, who)

    return split


def _branch(at: Instruction, pc: int) -> Op:
    target = at.operands[0] if len(at.operands) == 1 else None
    if not isinstance(target, Target):
        raise wrong(at, "a branch needs a label")
    index = target.index
    if at.guard is None:
        return lambda machine, who: [(index, who)]
    split = _split(at.guard, at.negated)

    def run(machine: Machine, who: Who) -> Branches:
        taken, others = split(machine, who)
        return [(index, taken), (pc + 1, others)]

    return run


def _guarded(guard: Register, negated: bool, operation: Op, pc: int) -> Op:
    split = _split(guard, negated)

    def run(machine: Machine, who: Who) -> Branches | None:
        taken, others = split(machine, who)
        if taken is not None and len(taken) == 0:
            return None
        branches = operation(machine, taken)
        return branches if branches is None else [*branches, (pc + 1, others)]

    return run
