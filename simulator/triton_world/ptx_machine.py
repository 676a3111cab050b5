"""Runs inline assembly: one lane for each thread of the program, or for each element of a tensor.

Lanes at one instruction run it together, so straight-line code costs a few NumPy calls whatever the number of lanes.
Lanes that took different branches run apart, the rearmost first, and join again where they meet. A lane that looks at
memory and finds what it found before is set aside; once no other lane can run, the program waits until somebody writes
what they look at.

Not modelled: warps. Lanes of one warp may branch apart and wait for each other, as on hardware since Volta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.triton_world.atomics import Change, Merge
from simulator.triton_world.errors import NotModelled, PtxError
from simulator.triton_world.how import How
from simulator.triton_world.launch import MULTIPROCESSORS
from simulator.triton_world.ptx_code import Instruction
from simulator.triton_world.ptx_compile import Compiled
from simulator.triton_world.ptx_types import Array, raw_dtype
from simulator.triton_world.ptx_values import Branches, Who

if TYPE_CHECKING:
    from simulator.triton_world.program import Program

_THREAD_NUMBERS = ("tid.x", "laneid", "warpid")
_ZERO = ("tid.y", "tid.z", "clusterid.x", "clusterid.y", "clusterid.z", "cluster_ctarank")
_ONE = ("ntid.y", "ntid.z", "cluster_nctarank")
WARP = 32


class Machine:
    """One run of one inline assembly.

    Args:
        program: whose threads run it.
        compiled: the assembly.
        lanes: how many.
        threads: for an assembly over scalars, the numbers of the threads that run it, ascending; None for one over the
            elements of a tensor.
        place: of the call in the kernel.
    """

    def __init__(self, program: Program, compiled: Compiled, lanes: int, threads: Array | None, place: Any) -> None:
        self._program = program
        self._port = program.port
        self._compiled = compiled
        self._lanes = lanes
        self._threads = threads
        self._place = place
        self._everyone = np.arange(lanes)
        self._runnable: dict[int, Who] = {}
        self._aside: dict[int, list[int]] = {}
        self._met: list[tuple[int, Who]] = []
        self.registers = [np.zeros(lanes, raw_dtype(each.width)) for each in compiled.code.registers]

    def run(self) -> None:
        """From the first instruction until every lane has left it."""
        self._runnable[0] = None
        end = len(self._compiled.operations)
        while self._runnable or self._aside or self._met:
            if not self._runnable:
                self._wait()
                continue
            pc = min(self._runnable)
            who = self._runnable.pop(pc)
            if pc < end:
                self._step(pc, who, end)

    def _step(self, pc: int, who: Who, end: int) -> None:
        """Run lanes from `pc` on, until they branch or meet others."""
        operations = self._compiled.operations
        while pc < end:
            branches = operations[pc](self, who)
            if branches is not None:
                for target, lanes in branches:
                    self._join(target, lanes)
                return
            pc += 1
            if self._runnable:
                self._join(pc, who)
                return

    def _join(self, pc: int, who: Who) -> None:
        if who is not None and len(who) == 0:
            return
        if pc in self._runnable:
            other = self._runnable[pc]
            together = None if who is None or other is None else np.union1d(who, other)
            who = None if together is None or len(together) == self._lanes else together
        self._runnable[pc] = who

    def count_of(self, who: Who) -> int:
        """How many lanes that are."""
        return self._lanes if who is None else len(who)

    def lanes_of(self, who: Who) -> Array:
        """Their numbers."""
        return self._everyone if who is None else who

    # -- special registers -------------------------------------------------------------------------------------------

    def special(self, at: Instruction, name: str, who: Who) -> Array:
        """The bits of a special register."""
        program = self._program
        if name in _THREAD_NUMBERS:
            return self._thread_number(at, name)[... if who is None else who]
        if name in _ZERO or name in _ONE:
            return np.array([int(name in _ONE)], np.uint32)
        if name in ("globaltimer", "clock64", "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi"):
            return np.array([self._clock(name)], np.uint64)
        fixed = {
            "ntid.x": program.threads,
            "nwarpid": program.threads // WARP,
            "nsmid": MULTIPROCESSORS,
            "smid": program.number % MULTIPROCESSORS,
            **{f"ctaid.{axis}": value for axis, value in zip("xyz", program.ids, strict=True)},
            **{f"nctaid.{axis}": value for axis, value in zip("xyz", program.grid, strict=True)},
        }
        if name not in fixed:
            raise NotModelled(f"{at.text!r} in line {at.line} of the assembly: %{name} is not modelled")
        return np.array([fixed[name]], np.uint32)

    def _thread_number(self, at: Instruction, name: str) -> Array:
        if self._threads is None:
            raise NotModelled(
                f"{at.text!r} in line {at.line} of the assembly reads %{name} for each element of a tensor: which "
                f"thread has an element is the compiler's choice; give the assembly scalars only"
            )
        threads = self._threads.astype(np.uint32)
        return {"tid.x": threads, "laneid": threads % WARP, "warpid": threads // WARP}[name]

    def _clock(self, name: str) -> int:
        now = self._program.clock_ns()
        if name.endswith("_hi"):
            return now >> 32
        return now & 0xFFFFFFFF if name in ("globaltimer_lo", "clock") else now

    # -- memory ------------------------------------------------------------------------------------------------------

    def _by(self, how: How) -> How:
        """Accesses of one thread's assembly are in that thread's order, if the assembly orders anything."""
        one = self._threads is not None or self._compiled.orders
        return How(how.order, how.scope, by_one_lane=True) if one else how

    def load(self, addresses: Array, size: int, count: int, how: How) -> Array:
        """[lanes, count] values of `size` bytes."""
        return self._port.load(addresses, size, count, self._by(how))

    def store(self, addresses: Array, values: Array, how: How, multicast: bool = False) -> None:
        """Store [lanes, count] values."""
        if self._port.store(addresses, values, self._by(how), multicast=multicast):
            self._moved()

    def reduce(self, addresses: Array, change: Change, values: Array, how: How) -> None:
        """`multimem.red`: change what all members have there, value by value."""
        for address, row in zip(addresses.tolist(), values, strict=True):
            for number, value in enumerate(row):
                at = address + number * values.itemsize
                self._port.reduce_members(at, change, value.reshape(1), self._by(how))
        self._moved()

    def load_reduced(self, addresses: Array, size: int, count: int, together: Merge, how: How) -> Array:
        """`multimem.ld_reduce`: [lanes, count], each combined from what all members have there, in their order."""
        return self._port.load_reduced(addresses, size, count, together, self._by(how))

    def atomic(
        self, pc: int, who: Who, addresses: Array, change: Change, given: Sequence[Array], how: How
    ) -> tuple[Array, Branches | None]:
        """One atomic operation a lane. Returns what each found, and where they go on if some are set aside."""
        found = np.empty(len(addresses), given[0].dtype)
        again: list[int] = []
        lanes = self.lanes_of(who)
        for at, address in enumerate(addresses.tolist()):
            operands = [each[at : at + 1] for each in given]
            old, changed = self._port.update(address, change, operands, self._by(how))
            found[at] = old[0]
            lane = int(lanes[at])
            if changed:
                self._moved()
            elif self._polls(lane).again((self._place, pc, address), old.tobytes(), {address: old.tobytes()}):
                again.append(lane)
        return found, self._set_aside(pc, who, again)

    def looked(self, pc: int, who: Who, addresses: Array, values: Array, how: How) -> Branches | None:
        """Lanes have read; where they go on if some are set aside, as they wait for a change."""
        if not how.is_strong and not self._compiled.loops:
            self._program.read_weakly((self._place, pc), addresses, values)
            return None
        again = []
        lanes = self.lanes_of(who)
        for at, address in enumerate(addresses.tolist()):
            seen = values[at].tobytes()
            words = {each: self._port.peek(each, len(seen)) for each in self._port.member_addresses(address)}
            if self._polls(int(lanes[at])).again((self._place, pc, address), seen, words or {address: seen}):
                again.append(int(lanes[at]))
        return self._set_aside(pc, who, again)

    def fence(self, order: str, scope: str) -> None:
        """A fence of the running lanes."""
        self._port.fence(order, scope)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _polls(self, lane: int) -> Any:
        key = lane if self._threads is None else int(self._threads[lane])
        return self._program.polls_of((self._threads is None, key))

    def _moved(self) -> None:
        """A lane changed memory: whoever is set aside looks again."""
        self._program.all_moved()
        if self._aside:
            self._wake()

    def _set_aside(self, pc: int, who: Who, again: list[int]) -> Branches | None:
        if not again:
            return None
        self._aside.setdefault(pc + 1, []).extend(again)
        return [(pc + 1, np.setdiff1d(self.lanes_of(who), np.array(again)))]

    def _wake(self) -> None:
        for pc, lanes in self._aside.items():
            self._join(pc, np.array(sorted(lanes)) if len(lanes) < self._lanes else None)
        self._aside.clear()

    def _wait(self) -> None:
        """No lane can run: the barrier opens if all are there, else the program waits for memory."""
        if self._met and not self._aside:
            self._open_barrier()
            return
        lanes = sorted(lane for each in self._aside.values() for lane in each)
        self._program.wait([self._polls(lane) for lane in lanes])
        self._wake()

    def meet(self, at: Instruction, pc: int, who: Who) -> Branches:
        """`bar.sync`: wait for all threads of the program."""
        if self._threads is None:
            raise NotModelled(f"{at.text!r} in line {at.line} of the assembly stands in an assembly over a tensor")
        self._met.append((pc + 1, who))
        return []

    def _open_barrier(self) -> None:
        there = sum(self.count_of(who) for _, who in self._met)
        if there < self._program.threads:
            raise PtxError(f"bar.sync: {there} of {self._program.threads} threads come to it, the others never do")
        self._port.barrier()
        met, self._met = self._met, []
        for pc, who in met:
            self._join(pc, who)
