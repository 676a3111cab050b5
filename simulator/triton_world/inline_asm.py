"""`tl.inline_asm_elementwise`: operands to lanes, lanes to results.

An assembly over scalars is run by every thread of the program, one over tensors once for `pack` elements. Elements
narrower than 32 bits are packed into registers of 32.

Not modelled: which elements are packed together (neighbours are; Triton does not say).

Source: Triton's lowering of ElementwiseInlineAsmOp; the order of registers is all of the first operand's, then all of
the second's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.triton_world.errors import NotModelled, PtxError
from simulator.triton_world.lanes import merged, of_threads
from simulator.triton_world.program import Program
from simulator.triton_world.ptx_code import Register
from simulator.triton_world.ptx_compile import Compiled
from simulator.triton_world.ptx_machine import Machine
from simulator.triton_world.ptx_types import Array, resize

REGISTER_BITS = 32


@dataclass(frozen=True, slots=True)
class Result:
    """What an assembly is to return: the NumPy type of an element, and the bits of Triton's type."""

    dtype: np.dtype[np.generic]
    bits: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize


def run_on_threads(
    program: Program, compiled: Compiled, inputs: Sequence[Array], results: Sequence[Result]
) -> list[Array]:
    """Run an assembly over scalars: [1] or, where the threads differ, [threads] for each result."""
    active = program.running_threads()
    values = [of_threads(each, active, program.threads) for each in inputs]
    if compiled.same_on_all and all(each.strides[0] == 0 for each in values):
        active, values = active[:1], [each[:1] for each in values]
    machine = Machine(program, compiled, len(active), active, id(program.stack()))
    rows = _run(machine, compiled, [each.reshape(-1, 1) for each in values], results, 1)
    return [merged(row[:, 0], active, program.threads) for row in rows]


def run_on_elements(
    program: Program,
    compiled: Compiled,
    inputs: Sequence[Array],
    results: Sequence[Result],
    shape: Sequence[int],
    pack: int,
) -> list[Array]:
    """Run an assembly over the elements of tensors of one shape: one array of that shape for each result."""
    count = int(np.prod(shape))
    if count % pack:
        raise NotModelled(f"pack={pack} does not divide {count} elements")
    values = [np.broadcast_to(np.asarray(each), shape).reshape(-1, pack) for each in inputs]
    machine = Machine(program, compiled, count // pack, None, id(program.stack()))
    return [row.reshape(shape) for row in _run(machine, compiled, values, results, pack)]


def _run(
    machine: Machine, compiled: Compiled, inputs: Sequence[Array], results: Sequence[Result], pack: int
) -> list[Array]:
    code = compiled.code
    given = [column for each in inputs for column in _columns(each)]
    wanted = sum(max(1, pack // max(1, REGISTER_BITS // each.bits)) for each in results)
    if len(given) != len(code.inputs) or wanted != len(code.outputs):
        raise PtxError(
            f"the constraints name {len(code.outputs)} results and {len(code.inputs)} operands; "
            f"the call has {wanted} and {len(given)}"
        )
    for register, column in zip(code.inputs, given, strict=True):
        machine.registers[register.slot][...] = _extended(column, register.type.width)
    machine.run()
    outputs = iter(code.outputs)
    return [_result(machine, outputs, each, pack) for each in results]


def _columns(values: Array) -> list[Array]:
    """[lanes, pack] elements as registers, in bits: [lanes] each."""
    size = values.dtype.itemsize
    raw = np.ascontiguousarray(values).view(bool if values.dtype == bool else f"u{size}")
    together = min(raw.shape[1], max(1, REGISTER_BITS // (size * 8)))
    if together > 1:
        raw = np.ascontiguousarray(raw.view(np.uint8) if raw.dtype == bool else raw).view(f"u{size * together}")
    return [raw[:, number] for number in range(raw.shape[1])]


def _result(machine: Machine, outputs: object, result: Result, pack: int) -> Array:
    """[lanes, pack] elements from the registers of one result."""
    together = min(pack, max(1, REGISTER_BITS // max(8, result.bits)))
    columns = []
    for _ in range(max(1, pack // together)):
        register: Register = next(outputs)  # type: ignore[call-overload]
        width = result.nbytes * 8 * together
        columns.append(resize(machine.registers[register.slot], max(8, width)).reshape(-1, 1).view(f"u{result.nbytes}"))
    raw = np.concatenate(columns, axis=1)
    return (raw & 1).astype(bool) if result.dtype == bool else raw.view(result.dtype)


def _extended(column: Array, bits: int) -> Array:
    """An operand in its register. LLVM cuts off or fills up whatever does not fit, a truth value with ones."""
    if column.dtype == bool and bits > 1:
        return np.where(column, ~np.zeros(1, f"u{bits // 8}"), np.zeros(1, f"u{bits // 8}"))
    return resize(column, bits)
