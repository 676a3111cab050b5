"""Instructions that touch memory or order it: ld, st, atom, red, multimem, fence, membar, bar.

Not modelled: any space but the global one, caches and their hints, `.nc`, asynchronous copies and barriers in memory
(cp, mbarrier, red.async), the proxies that `fence.proxy` orders.

Source: PTX ISA, "Data Movement and Conversion", "Parallel Synchronization and Communication", "Operand Costs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.triton_world.atomics import Change, combine, merge
from simulator.triton_world.errors import NotModelled
from simulator.triton_world.how import How
from simulator.triton_world.ptx_code import Address, Instruction, Register, Sink
from simulator.triton_world.ptx_types import TYPES
from simulator.triton_world.ptx_values import (
    Branches,
    Op,
    Read,
    Who,
    raw_reader,
    raw_writer,
    type_of,
    vector_reader,
    vector_writer,
    wrong,
)

if TYPE_CHECKING:
    from simulator.triton_world.ptx_machine import Machine

_ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
_SCOPES = {"cta": "cta", "cluster": "cta", "gpu": "gpu", "sys": "sys"}
_CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "noftz")
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas")


class _Form:
    """The modifiers of a memory instruction, sorted out."""

    def __init__(
        self, at: Instruction, orders: tuple[str, ...], default: How, operations: tuple[str, ...] = ()
    ) -> None:
        self.at = at
        self.type = type_of(at)
        self.count = 1
        self.operation = ""
        named: list[str] = []
        scope = ""
        for each in at.modifiers[:-1]:
            if each in _VECTORS:
                self.count = _VECTORS[each]
            elif each in _SCOPES:
                scope = _SCOPES[each]
            elif each in orders:
                named.append(each)
            elif each in operations:
                self.operation = each
            elif not self._changes_nothing(each):
                raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: .{each} is not modelled")
        self.how = self._how(named, scope, default)
        self.hinted = any("cache_hint" in each for each in at.modifiers)

    def _changes_nothing(self, modifier: str) -> bool:
        space = modifier.partition("::")[0]
        return modifier in _CACHES or modifier == "global" or space in ("L1", "L2", "acc")

    def _how(self, named: list[str], scope: str, default: How) -> How:
        if not named:
            return How(default.order, scope or default.scope) if default.is_strong else default
        if named[0] == "weak":
            return How()
        if named[0] in ("volatile", "mmio"):
            return How("relaxed", "sys")
        if not scope and not default.is_strong:
            raise wrong(self.at, f".{named[0]} needs a scope")
        return How(named[0], scope or default.scope)

    def operands(self, *counts: int) -> tuple[Any, ...]:
        operands = self.at.operands[:-1] if self.hinted else self.at.operands
        if len(operands) not in counts:
            raise wrong(self.at, f"{len(operands)} operands, where {counts[0]} are needed")
        return operands

    def address(self, operand: Any) -> Read:
        if not isinstance(operand, Address):
            raise wrong(self.at, "an address stands in brackets")
        base, offset = raw_reader(self.at, operand.base, TYPES["u64"]), np.uint64(operand.offset % (1 << 64))
        if isinstance(operand.base, Register) and operand.base.type.width != 64:
            raise wrong(self.at, "an address has 64 bits")
        return lambda machine, who: np.broadcast_to(base(machine, who) + offset, machine.count_of(who))


def memory(at: Instruction, pc: int) -> Op | None:
    """The operation of an instruction at `pc`; None if it has nothing to do with memory."""
    make = _MAKERS.get(at.opcode)
    return None if make is None else make(at, pc)


def _load(at: Instruction, pc: int) -> Op:
    form = _Form(at, ("weak", "relaxed", "acquire", "volatile", "mmio"), How())
    into, source = form.operands(2)
    address, put = form.address(source), vector_writer(at, into, form.type, form.count)
    size, count, how = form.type.nbytes, form.count, form.how

    def run(machine: Machine, who: Who) -> Branches | None:
        addresses = address(machine, who)
        values = machine.load(addresses, size, count, how)
        put(machine, who, values)
        return machine.looked(pc, who, addresses, values, how)

    return run


def _store(at: Instruction, pc: int) -> Op:
    form = _Form(at, ("weak", "relaxed", "release", "volatile", "mmio"), How())
    into, source = form.operands(2)
    address, read = form.address(into), vector_reader(at, source, form.type, form.count)
    how, count = form.how, form.count

    def run(machine: Machine, who: Who) -> None:
        addresses = address(machine, who)
        values = np.broadcast_to(read(machine, who), (len(addresses), count))
        machine.store(addresses, values, how)

    return run


def _atomic(at: Instruction, pc: int) -> Op:
    """`atom` and `red`: lane by lane, since each changes what the next one finds."""
    form = _Form(at, ("relaxed", "acquire", "release", "acq_rel"), How("relaxed", "gpu"), _ATOMIC)
    if not form.operation or form.count > 1:
        raise NotModelled(f"{at.text!r} in line {at.line} of the assembly is not modelled")
    swaps = form.operation == "cas"
    result: Any = Sink()
    if at.opcode == "atom":
        result, into, *values = form.operands(4 if swaps else 3)
    else:
        into, *values = form.operands(3 if swaps else 2)
    address, put = form.address(into), raw_writer(at, result, form.type)
    reads = [raw_reader(at, value, form.type) for value in values]
    change = _change(at, form)

    def run(machine: Machine, who: Who) -> Branches | None:
        addresses = address(machine, who)
        given = [np.broadcast_to(read(machine, who), len(addresses)) for read in reads]
        found, branches = machine.atomic(pc, who, addresses, change, given, form.how)
        put(machine, who, found)
        return branches

    return run


def _change(at: Instruction, form: _Form) -> Change:
    return combine(form.operation, form.type, lambda text: wrong(at, text))


def _multimem_store(at: Instruction, pc: int) -> Op:
    form = _Form(at, ("weak", "relaxed", "release"), How())
    into, source = form.operands(2)
    address, read = form.address(into), vector_reader(at, source, form.type, form.count)
    _fits_multimem(form)

    def run(machine: Machine, who: Who) -> None:
        addresses = address(machine, who)
        machine.store(addresses, np.broadcast_to(read(machine, who), (len(addresses), form.count)), form.how, True)

    return run


def _multimem_reduce(at: Instruction, pc: int) -> Op:
    form = _Form(at, ("relaxed", "release"), How("relaxed", "sys"), _ATOMIC[:6])
    into, source = form.operands(2)
    address, read = form.address(into), vector_reader(at, source, form.type, form.count)
    _fits_multimem(form)
    change = _change(at, form)

    def run(machine: Machine, who: Who) -> None:
        addresses = address(machine, who)
        values = np.broadcast_to(read(machine, who), (len(addresses), form.count))
        machine.reduce(addresses, change, values, form.how)

    return run


def _multimem_load(at: Instruction, pc: int) -> Op:
    form = _Form(at, ("weak", "relaxed", "acquire"), How(), _ATOMIC[:6])
    into, source = form.operands(2)
    address, put = form.address(source), vector_writer(at, into, form.type, form.count)
    _fits_multimem(form)
    wide = "acc::f32" in at.modifiers
    together = merge(form.operation, form.type, lambda text: wrong(at, text), wide=wide)

    def run(machine: Machine, who: Who) -> Branches | None:
        addresses = address(machine, who)
        values = machine.load_reduced(addresses, form.type.nbytes, form.count, together, form.how)
        put(machine, who, values)
        return machine.looked(pc, who, addresses, values, form.how)

    return run


def _fits_multimem(form: _Form) -> None:
    if form.type.is_float and form.type.width * form.count not in (32, 64, 128):
        raise wrong(form.at, f"type and vector make {form.type.width * form.count} bits; 32, 64 or 128 are allowed")


def _fence(at: Instruction, pc: int) -> Op:
    if "proxy" in at.modifiers:
        return lambda machine, who: None
    order, scope = "acq_rel", ""
    for each in at.modifiers:
        if each in _SCOPES:
            scope = _SCOPES[each]
        elif each in ("sc", "acq_rel", "acquire", "release"):
            order = "sc" if each == "sc" else "acq_rel"
        else:
            raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: .{each} is not modelled")
    if not scope:
        raise wrong(at, "a fence needs a scope")
    return lambda machine, who: machine.fence(order, scope)


def _membar(at: Instruction, pc: int) -> Op:
    """The older name of `fence.sc`."""
    scopes = {"cta": "cta", "gl": "gpu", "sys": "sys"}
    if len(at.modifiers) != 1 or at.modifiers[0] not in scopes:
        raise wrong(at, "give .cta, .gl or .sys")
    scope = scopes[at.modifiers[0]]
    return lambda machine, who: machine.fence("sc", scope)


def _barrier(at: Instruction, pc: int) -> Op:
    """All threads of the program; barrier 0, as Triton has no other."""
    modifiers = [each for each in at.modifiers if each not in ("cta", "aligned")]
    if modifiers != ["sync"] or len(at.operands) != 1 or getattr(at.operands[0], "value", None) != 0:
        raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: only `bar.sync 0` is modelled")
    return lambda machine, who: machine.meet(at, pc, who)


_MAKERS: dict[str, Callable[[Instruction, int], Op]] = {
    "ld": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "multimem.st": _multimem_store,
    "multimem.red": _multimem_reduce,
    "multimem.ld_reduce": _multimem_load,
    "fence": _fence,
    "membar": _membar,
    "bar": _barrier,
    "barrier": _barrier,
}
TOUCHES_MEMORY = tuple(_MAKERS)
