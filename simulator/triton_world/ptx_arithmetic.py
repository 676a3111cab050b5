"""What instructions compute: no memory, no control flow.

Not modelled: the exact rounding of `fma` (it is computed in float64 and rounded once more), flush-to-zero, and the
approximate functions.

Source: PTX ISA, "Integer Arithmetic", "Floating Point", "Comparison and Selection", "Logic and Shift".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.triton_world import ptx_moves
from simulator.triton_world.ptx_code import Instruction, Pair, Sink
from simulator.triton_world.ptx_operation import needs, operation, refuse_others
from simulator.triton_world.ptx_types import TYPES, Array, Type, raw_dtype
from simulator.triton_world.ptx_values import Op, Who, raw_reader, raw_writer, reader, type_of, wrong


def arithmetic(at: Instruction) -> Op | None:
    """The operation of an instruction; None if it does not compute."""
    make = _MAKERS.get(at.opcode) or ptx_moves.MAKERS.get(at.opcode)
    return None if make is None else make(at)


# -- one type --------------------------------------------------------------------------------------------------------


def _binary(whole: Callable[..., Any], floating: Callable[..., Any] | None = None) -> Callable[[Instruction], Op]:
    def make(at: Instruction) -> Op:
        refuse_others(at)
        of = type_of(at)
        if of.is_float and floating is None:
            raise wrong(at, "it takes no floating point")
        compute = floating if of.is_float and floating is not None else whole
        return operation(at, of, of, compute, of, of)

    return make


def _unary(whole: Callable[..., Any]) -> Callable[[Instruction], Op]:
    def make(at: Instruction) -> Op:
        refuse_others(at)
        return operation(at, type_of(at), type_of(at), whole)

    return make


def _quotient(a: Array, b: Array) -> Any:
    """Rounded towards zero; all bits set where `b` is 0, as the hardware has it."""
    safe = np.where(b == 0, np.ones_like(b), b)
    whole = a // safe
    whole = whole + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(whole.dtype)
    return np.where(b == 0, ~np.zeros_like(whole), whole)


def _remainder(a: Array, b: Array) -> Any:
    return np.where(b == 0, a, a - _quotient(a, b) * b)


def _shift(at: Instruction) -> Op:
    refuse_others(at)
    of = type_of(at)
    left, limit = at.opcode == "shl", of.width

    def compute(a: Array, by: Array) -> Any:
        inside = np.minimum(by, limit - 1).astype(a.dtype)
        shifted = a << inside if left else a >> inside
        return shifted if not left and of.kind == "s" else np.where(by >= limit, np.zeros_like(shifted), shifted)

    return operation(at, of, of, compute, of, TYPES["u32"])


# -- products --------------------------------------------------------------------------------------------------------


def _product(at: Instruction) -> Op:
    """`mul`, `mad`, `fma`: the low half, the high half, or all of it."""
    refuse_others(at, "wide", "hi")
    of = type_of(at)
    into = TYPES[f"{of.kind}{of.bits * 2}"] if "wide" in at.modifiers else of
    compute = _multiply(of, into, high="hi" in at.modifiers)
    if at.opcode == "mul":
        return operation(at, of, into, compute, of, of)
    if of.is_float:
        return operation(at, of, into, lambda a, b, c: a.astype("f8") * b + c, of, of, of)
    return operation(at, of, into, lambda a, b, c: compute(a, b).astype(c.dtype, copy=False) + c, of, of, into)


def _multiply(of: Type, into: Type, *, high: bool) -> Callable[[Array, Array], Any]:
    if into is not of:
        wide = np.dtype(f"{'i' if of.kind == 's' else 'u'}{into.nbytes}")
        return lambda a, b: a.astype(wide) * b.astype(wide)
    if not high:
        return lambda a, b: a * b

    def upper(a: Array, b: Array) -> Any:
        whole: Any = a.astype(object) * b.astype(object)
        return ((whole >> of.bits) & ((1 << of.bits) - 1)).astype(raw_dtype(of.bits)).view(a.dtype)

    return upper


# -- comparison ------------------------------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_JOIN: dict[str, Callable[[Array, Array], Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _setp(at: Instruction) -> Op:
    """`setp.cmp{.bool}.type p{|q}, a, b{, c}`."""
    refuse_others(at, *_COMPARE, *_JOIN, *(f"{each}u" for each in ("eq", "ne", "lt", "le", "gt", "ge")), "num", "nan")
    of, pred = type_of(at), TYPES["pred"]
    compare, join = _comparison(at, of), next((_JOIN[each] for each in at.modifiers if each in _JOIN), None)
    needs(at, 3 if join is None else 4)
    result = at.operands[0]
    first, second = (result.first, result.second) if isinstance(result, Pair) else (result, Sink())
    put, put_opposite = raw_writer(at, first, pred), raw_writer(at, second, pred)
    left, right = reader(at, at.operands[1], of), reader(at, at.operands[2], of)
    third = None if join is None else raw_reader(at, at.operands[3], pred)

    def run(machine: Any, who: Who) -> None:
        holds = compare(left(machine, who), right(machine, who))
        opposite = ~holds
        if join is not None and third is not None:
            other = third(machine, who)
            holds, opposite = join(holds, other), join(opposite, other)
        put(machine, who, holds)
        put_opposite(machine, who, opposite)

    return run


def _comparison(at: Instruction, of: Type) -> Callable[[Array, Array], Any]:
    name = at.modifiers[0]
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    unordered = name.endswith("u") and name[:-1] in _COMPARE
    compare = _COMPARE.get(name[:-1] if unordered else name)
    if compare is None:
        raise wrong(at, f".{name} is no comparison")
    if not of.is_float:
        return compare
    if unordered:
        return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


def _select(at: Instruction) -> Op:
    refuse_others(at)
    of = type_of(at)
    return operation(at, of, of, lambda a, b, c: np.where(c, a, b), of, of, TYPES["pred"])


_MAKERS: dict[str, Callable[[Instruction], Op]] = {
    "add": _binary(np.add, np.add),
    "sub": _binary(np.subtract, np.subtract),
    "min": _binary(np.minimum, np.fmin),
    "max": _binary(np.maximum, np.fmax),
    "div": _binary(_quotient, np.divide),
    "rem": _binary(_remainder),
    "and": _binary(np.bitwise_and),
    "or": _binary(np.bitwise_or),
    "xor": _binary(np.bitwise_xor),
    "not": _unary(np.invert),
    "neg": _unary(np.negative),
    "abs": _unary(np.abs),
    "shl": _shift,
    "shr": _shift,
    "mul": _product,
    "mad": _product,
    "fma": _product,
    "setp": _setp,
    "selp": _select,
}
