"""What moves and converts values: mov, cvta, cvt.

Not modelled: rounding of floating point other than to nearest even, floating point of 8 bits and fewer, addresses of
spaces other than the global one.

Source: PTX ISA, "Data Movement and Conversion Instructions": mov, cvt, cvta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.triton_world.errors import NotModelled
from simulator.triton_world.ptx_code import Instruction, Vector
from simulator.triton_world.ptx_operation import needs, operation, refuse_others
from simulator.triton_world.ptx_types import TYPES, Array, Type, raw_dtype, resize
from simulator.triton_world.ptx_values import Op, Who, raw_reader, raw_writer, type_of, wrong


def _move(at: Instruction) -> Op:
    refuse_others(at)
    needs(at, 2)
    of = type_of(at)
    into, source = at.operands
    if isinstance(source, Vector):
        return _pack(at, of, source)
    if isinstance(into, Vector):
        return _unpack(at, of, into)
    read, put = raw_reader(at, source, of), raw_writer(at, into, of)
    return lambda machine, who: put(machine, who, read(machine, who))


def _part_type(at: Instruction, of: Type, count: int) -> Type:
    if of.width % count or f"b{of.width // count}" not in TYPES:
        raise wrong(at, f"{count} registers do not fill .{of.name}")
    return TYPES[f"b{of.width // count}"]


def _pack(at: Instruction, of: Type, source: Vector) -> Op:
    part = _part_type(at, of, len(source.parts))
    reads = [raw_reader(at, each, part) for each in source.parts]
    put = raw_writer(at, at.operands[0], of)

    def run(machine: Any, who: Who) -> None:
        whole: Any = 0
        for number, read in enumerate(reads):
            whole = whole | (resize(read(machine, who), of.width) << raw_dtype(of.width).type(number * part.width))
        put(machine, who, whole)

    return run


def _unpack(at: Instruction, of: Type, into: Vector) -> Op:
    part = _part_type(at, of, len(into.parts))
    read = raw_reader(at, at.operands[1], of)
    puts = [raw_writer(at, each, part) for each in into.parts]

    def run(machine: Any, who: Who) -> None:
        whole = read(machine, who)
        pieces = [resize(whole >> whole.dtype.type(n * part.width), part.width) for n in range(len(puts))]
        for put, piece in zip(puts, pieces, strict=True):
            put(machine, who, piece)

    return run


def _cvta(at: Instruction) -> Op:
    """Generic and global addresses are one and the same here."""
    if not {"shared", "local", "const", "param"}.isdisjoint(each.partition("::")[0] for each in at.modifiers):
        raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: only global memory is modelled")
    return operation(at, type_of(at), type_of(at), lambda a: a)


_TO_WHOLE: dict[str, Callable[[Array], Any]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _cvt(at: Instruction) -> Op:
    """`cvt{.rounding}{.sat}.into.of d, a`, and the packed forms with two sources."""
    refuse_others(at, "sat", *_TO_WHOLE)
    if len(at.modifiers) < 2 or at.modifiers[-2] not in TYPES:
        raise wrong(at, "a conversion has two types")
    into, of = TYPES[at.modifiers[-2]], type_of(at)
    if into.parts > 1 and of.parts == 1:
        return operation(at, of, into, lambda a, b: np.stack(np.broadcast_arrays(b, a), axis=1), of, of)
    compute = _conversion(at, into, of)
    if not of.is_float and not into.is_float and "sat" not in at.modifiers:
        read, put = raw_reader(at, at.operands[1], of), raw_writer(at, at.operands[0], into)
        return lambda machine, who: put(
            machine, who, resize(read(machine, who), into.width, signed=of.kind == "s" and into.width > of.width)
        )
    return operation(at, of, into, compute)


def _conversion(at: Instruction, into: Type, of: Type) -> Callable[[Array], Any]:
    rounding = next((_TO_WHOLE[each] for each in at.modifiers if each in _TO_WHOLE), None)
    if into.is_float:
        if rounding is not None:
            return lambda a: rounding(a)
        return (lambda a: np.clip(np.nan_to_num(a, nan=0.0), 0, 1)) if "sat" in at.modifiers else lambda a: a
    limits: Any = np.iinfo(f"{'i' if into.kind == 's' else 'u'}{into.nbytes}")
    if not of.is_float:
        return lambda a: np.clip(a.astype(object), limits.min, limits.max).astype(limits.dtype)
    if rounding is None:
        raise wrong(at, "a conversion from floating point to integer needs its rounding")

    def whole(a: Array) -> Any:
        rounded: Any = np.nan_to_num(rounding(a.astype("f8")), nan=0.0, posinf=np.inf, neginf=-np.inf)
        inside = np.where((rounded > limits.min) & (rounded < limits.max), rounded, 0).astype(limits.dtype)
        inside = np.where(rounded >= limits.max, limits.dtype.type(limits.max), inside)
        return np.where(rounded <= limits.min, limits.dtype.type(limits.min), inside)

    return whole


MAKERS: dict[str, Callable[[Instruction], Op]] = {"mov": _move, "cvta": _cvta, "cvt": _cvt}
