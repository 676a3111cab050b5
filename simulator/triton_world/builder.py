"""The builder behind the operations of `triton.language` while a simulated rank runs a kernel.

Arithmetic is that of Triton's interpreter. What touches memory, orders it or asks for the program's number goes to the
program that the calling task runs.

A scalar is an array of one element; one that differs between threads is `lanes.Lanes`.

Not modelled: external functions (`tl.extern_elementwise`, libdevice, NVSHMEM), device-side descriptors' hardware path.

Source of where a CTA barrier stands around an atomic operation: the PTX that Triton 3.6 to 3.9 makes for sm_90. A
result that is used goes through shared memory, with a barrier behind, if one thread or a few had it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.triton_world import triton_api
from simulator.triton_world.atomics import combine
from simulator.triton_world.errors import NotModelled, PtxError
from simulator.triton_world.handles import as_lanes, bits_of, is_scalar, of_first_thread, values_of, wanted_of
from simulator.triton_world.how import How
from simulator.triton_world.inline_asm import Result, run_on_elements, run_on_threads
from simulator.triton_world.lanes import Lanes, as_scalar
from simulator.triton_world.program import Program
from simulator.triton_world.ptx_types import TYPES, Array, resize

if TYPE_CHECKING:
    from simulator.triton_world.world import TritonWorld


class _Results:
    """What `create_inline_asm` returns."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def get_result(self, number: int) -> Any:
        return self._handles[number]


class KernelBuilder(triton_api.InterpreterBuilder):  # type: ignore[misc]
    """Triton's interpreting builder, for many programs at once."""

    def __init__(self, world: TritonWorld) -> None:
        self._world = world
        super().__init__()
        self._debug_options = replace(self.__dict__["options"], debug=True)
        self._options = replace(self.__dict__.pop("options"), sanitize_overflow=False)

    @property
    def _program(self) -> Program:
        return self._world.program_here()

    @property
    def options(self) -> Any:
        """With device asserts, and so with checks for overflow, if the launch wants them."""
        program = self._world.program()
        return self._debug_options if program is not None and program.launch.debug else self._options

    @options.setter
    def options(self, value: Any) -> None:
        self.__dict__["options"] = value

    @property
    def grid_idx(self) -> tuple[int, int, int]:
        return self._program.ids

    @property
    def grid_dim(self) -> tuple[int, int, int]:
        return self._program.grid

    # -- loads and stores --------------------------------------------------------------------------------------------

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *hints: Any, **named: Any) -> Any:
        """Every plain load, of a scalar, a block, a block pointer or a descriptor; the last hint says volatile."""
        volatile = named.get("is_volatile", hints[-1] if hints else False)
        return self._load(ptrs, mask, other, How("relaxed", "sys") if volatile else How())

    def _load(self, ptrs: Any, mask: Any, other: Any, how: How) -> Any:
        element = ptrs.get_element_ty()
        dtype = triton_api.numpy_dtype(element)
        out = np.zeros(ptrs.data.shape, dtype)
        if other is not None:
            out[...] = other.data
        program = self._program
        wanted = wanted_of(mask, ptrs.data)
        if isinstance(ptrs.data, Lanes) and program.active is not None:
            wanted = wanted & np.isin(np.arange(program.threads), program.active)
        addresses = np.asarray(ptrs.data)[wanted]
        if len(addresses):
            raw = program.port.load(addresses, dtype.itemsize, 1, how)
            out[wanted] = values_of(raw[:, 0], dtype)
            self._note_read(program, addresses, raw, how)
        return triton_api.TensorHandle(as_lanes(out, ptrs.data), element)

    def _note_read(self, program: Program, addresses: Array, raw: Array, how: How) -> None:
        place = id(program.stack())
        if how.is_strong:
            program.looked(place, addresses, raw)
        else:
            program.read_weakly(place, addresses, raw)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *hints: Any, **named: Any) -> None:
        """Every plain store; that of a scalar is made by thread 0."""
        self._store(ptrs, value, mask, How(by_one_lane=is_scalar(ptrs.data)))

    def _store(self, ptrs: Any, value: Any, mask: Any, how: How) -> None:
        program = self._program
        pointers = self._of_thread_zero(program, ptrs.data, "a store of a scalar")
        dtype = triton_api.numpy_dtype(ptrs.get_element_ty())
        wanted = wanted_of(mask, pointers)
        addresses = np.asarray(pointers)[wanted]
        if not len(addresses):
            return
        values = np.broadcast_to(of_first_thread(value.data, ptrs.data), pointers.shape)[wanted].astype(
            dtype, copy=False
        )
        if program.port.store(addresses, bits_of(values).reshape(-1, 1), how):
            program.all_moved()

    def _of_thread_zero(self, program: Program, pointers: Array, what: str) -> Array:
        """Triton lets thread 0 do what there is one of: its pointer.

        Raises:
            NotModelled: it does not take this branch.
        """
        if is_scalar(pointers) and program.active is not None and 0 not in program.active:
            raise NotModelled(f"{what}, which thread 0 makes, in a branch that thread 0 does not take")
        return of_first_thread(pointers, pointers)

    # -- atomic operations -------------------------------------------------------------------------------------------

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        """`tl.atomic_cas`."""
        return self._atomic("cas", ptr, [cmp, val], None, sem, scope)

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """All other atomic operations."""
        if rmwOp not in triton_api.OPERATIONS:
            raise NotModelled(f"the atomic operation {rmwOp}")
        return self._atomic(triton_api.OPERATIONS[rmwOp], ptr, [val], mask, sem, scope)

    def _atomic(self, operation: str, ptr: Any, values: Sequence[Any], mask: Any, sem: Any, scope: Any) -> Any:
        program = self._program
        what = f"an atomic operation ({operation})"
        pointers = self._of_thread_zero(program, ptr.data, f"{what} on a scalar")
        order = triton_api.ORDERS[sem]
        if triton_api.BARRIERS_AROUND_ATOMICS and order in ("release", "acq_rel"):
            self._barrier(program, what)
        of = TYPES[triton_api.ptx_type(values[0].dtype)]
        change = combine(operation, of, NotModelled)
        wanted = wanted_of(mask, pointers)
        addresses = np.asarray(pointers)[wanted]
        dtype = triton_api.numpy_dtype(values[0].dtype)
        given = [
            bits_of(np.broadcast_to(of_first_thread(v.data, ptr.data), pointers.shape)[wanted].astype(dtype))
            for v in values
        ]
        how = How(order, triton_api.SCOPES[scope], by_one_lane=True)
        found, changed = np.zeros(len(addresses), f"u{dtype.itemsize}"), False
        for at, address in enumerate(addresses.tolist()):
            old, did = program.port.update(address, change, [each[at : at + 1] for each in given], how)
            found[at], changed = old[0], changed or did
        if self._barrier_behind(program, order, pointers):
            self._barrier(program, what)
        program.looked(id(program.stack()), addresses, found, changed=changed)
        out = np.zeros(pointers.shape, dtype)
        out[wanted] = values_of(found, dtype)
        return triton_api.TensorHandle(out, values[-1].dtype.scalar)

    def _barrier_behind(self, program: Program, order: str, pointers: Array) -> bool:
        if triton_api.BARRIERS_AROUND_ATOMICS and order in ("acquire", "acq_rel"):
            return True
        return pointers.size < program.threads and not self._world.is_unused(program.stack())

    def _barrier(self, program: Program, what: str) -> None:
        program.all_threads(f"{what}, which Triton surrounds with barriers,")
        program.port.barrier()

    def create_atomic_load(self, ptr: Any, mask: Any, sem: Any, scope: Any) -> Any:
        """`tl.atomic_load`: one thread loads, and a barrier lets the others have it."""
        how = How(triton_api.ORDERS[sem], triton_api.SCOPES[scope], by_one_lane=True)
        out = self._load(ptr, mask, None, how)
        self._barrier(self._program, "an atomic load")
        return out

    def create_atomic_store(self, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> None:
        """`tl.atomic_store`: a barrier, if it releases, and one thread stores."""
        order = triton_api.ORDERS[sem]
        if order == "release":
            self._barrier(self._program, "an atomic store")
        self._store(ptr, val, mask, How(order, triton_api.SCOPES[scope], by_one_lane=True))

    def create_atomic_poll(self, ptr: Any, expected: Any, timeout_ns: Any, sem: Any, scope: Any) -> Any:
        """`tl.atomic_poll`: look until every element has what is expected, or until the time is over."""
        program = self._program
        how = How(triton_api.ORDERS[sem], triton_api.SCOPES[scope], by_one_lane=True)
        scheduler = self._world.sim.scheduler
        limit = getattr(timeout_ns, "data", None)  # without a limit, Triton gives an empty value of its compiler
        until = None if limit is None else float(scheduler.env.now) + int(np.ravel(limit)[0]) / 1e9
        pointers = np.asarray(ptr.data)
        wanted = bits_of(np.broadcast_to(np.asarray(expected.data), pointers.shape)).reshape(-1)
        while True:
            found = program.port.load(pointers.reshape(-1), wanted.dtype.itemsize, 1, how)[:, 0]
            left = None if until is None else until - float(scheduler.env.now)
            if (found == wanted).all() or (left is not None and left <= 0):
                break
            missing = {
                int(a): v.tobytes() for a, v, w in zip(pointers.reshape(-1), found, wanted, strict=True) if v != w
            }
            program.polls.again("atomic_poll", found.tobytes(), missing)
            program.wait([program.polls], seconds=left)
        program.polls.moved()
        self._barrier(program, "an atomic poll")
        return triton_api.TensorHandle((found == wanted).reshape(pointers.shape), triton_api.int1)

    def create_barrier(self) -> None:
        """`tl.debug_barrier`."""
        program = self._program
        program.all_threads("tl.debug_barrier")
        program.port.barrier()

    # -- inline assembly ---------------------------------------------------------------------------------------------

    def create_inline_asm(
        self, inlineAsm: str, constraints: str, values: Sequence[Any], type: Sequence[Any], isPure: bool, pack: int
    ) -> _Results:
        """`tl.inline_asm_elementwise`."""
        compiled = self._world.compiled(inlineAsm, constraints)
        dtypes = [each.scalar for each in type]
        results = [Result(triton_api.numpy_dtype(each), int(each.primitive_bitwidth)) for each in dtypes]
        inputs = [each.data for each in values]
        if not isinstance(type[0], triton_api.block_type):
            if pack != 1:
                raise PtxError(f"pack={pack} for scalars")
            out = run_on_threads(self._program, compiled, inputs, results)
        else:
            inputs = [as_scalar(each, "an operand of an assembly over a tensor") for each in inputs]
            shape = tuple(int(each) for each in type[0].shape)
            out = run_on_elements(self._program, compiled, inputs, results, shape, int(pack))
        return _Results([triton_api.TensorHandle(*each) for each in zip(out, dtypes, strict=True)])

    def create_extern_elementwise(self, libName: str, libPath: str, symbol: str, *rest: Any) -> Any:
        """
        Raises:
            NotModelled: always.
        """
        raise NotModelled(f"the external function {symbol} of {libName or 'a library'}")

    def create_int_to_ptr(self, src: Any, dst_type: Any) -> Any:
        """An address from an integer, which may be narrower; Triton's interpreter wants 64 bits."""
        return triton_api.TensorHandle(resize(bits_of(src.data), 64), dst_type.scalar)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        """A tensor of one scalar, which must not differ between threads."""
        as_scalar(arg.data, "an element of a tensor")
        return super().create_splat(ret_ty, arg)
