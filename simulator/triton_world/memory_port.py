"""The one way from a kernel to memory: real loads and stores, checked, and recorded where ranks share the memory.

Addresses are arrays of uint64, values arrays of unsigned integers. What an access to private memory does is not
recorded, only seen by those who wait for it.

Not modelled: caches; a store is seen by all at once, whatever its order and scope. Whether hardware may delay it is
what the records are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.memory_records import Access, CtaBarrier, Fence, Span
from simulator.torch_world.device_memory import Block, DeviceMemory
from simulator.triton_world.address_space import AddressSpace, Range
from simulator.triton_world.atomics import Change, Merge
from simulator.triton_world.errors import IllegalAccess
from simulator.triton_world.how import How
from simulator.triton_world.ptx_types import Array
from simulator.triton_world.waiting import Watch

if TYPE_CHECKING:
    from simulator.triton_world.program import Program

COMPARED_MAX = 64
"""Values of a store up to which it is seen whether anything changes."""


class MemoryPort:
    """Memory as one program sees it."""

    def __init__(self, program: Program, space: AddressSpace, memory: DeviceMemory, watch: Watch) -> None:
        self._program = program
        self._space = space
        self._memory = memory
        self._watch = watch

    def _announce(self, verb: str, how: How, addresses: Array, *, writes: bool) -> None:
        """Under a schedule, a rank may fall behind before it touches a word that others wait for."""
        scheduler = self._program.launch.world.sim.scheduler
        if scheduler.lag is None or not how.is_strong:
            return
        at = self.word_of(int(addresses[0]))
        if at is not None and at[0].region is not None:
            launch = self._program.launch
            launch.before_wait()
            word = ("word", at[0].region.number, at[1] // 4)
            scheduler.announce(verb, word, writes=writes, stack=self._program.stack())
            launch.after_wait()

    # -- plain accesses ----------------------------------------------------------------------------------------------

    def load(self, addresses: Array, size: int, count: int, how: How) -> Array:
        """[n, count] values of `size` bytes, neighbours in memory, from each of the n addresses."""
        out = np.empty((len(addresses), count), np.dtype(f"u{size}"))
        if not len(addresses):
            return out
        self._announce("load", how, addresses, writes=False)
        pieces = self._space.locate(addresses, size * count)
        for found, which in pieces:
            self._no_multicast(found)
            mine = addresses if which is None else addresses[which]
            values, index = _index(found, mine, size, count)
            out[... if which is None else which] = values[index]
        self._record("read", how, self._spans(pieces, addresses, size * count))
        return out

    def store(self, addresses: Array, values: Array, how: How, *, multicast: bool = False) -> bool:
        """Store [n, count] values; whether that may have changed anything."""
        if not len(addresses):
            return False
        size, count = values.itemsize, values.shape[1]
        self._announce("store", how, addresses, writes=True)
        pieces = self._space.locate(addresses, size * count)
        changed = False
        for found, which in pieces:
            mine = addresses if which is None else addresses[which]
            new = values if which is None else values[which]
            for place, at in self._places(found, mine, multicast):
                changed |= self._put(place, at, new, size, count)
        self._record("write", how, self._spans(pieces, addresses, size * count), changed=changed)
        return changed

    def _put(self, place: Range, addresses: Array, new: Array, size: int, count: int) -> bool:
        values, index = _index(place, addresses, size, count)
        changed = new.size > COMPARED_MAX or not np.array_equal(values[index], new)
        values[index] = new
        if changed and not place.is_shared:
            self._watch.written(addresses, size * count)
        return changed

    # -- atomic accesses ---------------------------------------------------------------------------------------------

    def update(self, address: int, change: Change, given: Sequence[Array], how: How) -> tuple[Array, bool]:
        """Read, change and write one value. Returns ([1] what was there, whether it was changed).

        Args:
            given: the operands of the change, [1] each; of two, a compare-and-swap, the first is what is expected.
        """
        size = given[0].itemsize
        addresses = np.array([address], np.uint64)
        self._announce("atomic", how, addresses, writes=True)
        (found, _), *_ = self._space.locate(addresses, size)
        self._no_multicast(found)
        old, new = _exchange(found, addresses, change, given)
        compare = int(given[0][0]) if len(given) == 2 else None
        failed = compare is not None and int(old[0]) != compare
        changed = int(new[0]) != int(old[0])
        if changed and not found.is_shared:
            self._watch.written(addresses, size)
        spans = self._spans([(found, None)], addresses, size)
        self._record("rmw", how, spans, changed=changed, compare=compare, wrote=None if failed else int(new[0]))
        return old, changed

    def reduce_members(self, address: int, change: Change, value: Array, how: How) -> None:
        """Change one value in the memory of each member of a multicast address."""
        addresses = np.array([address], np.uint64)
        pieces = self._space.locate(addresses, value.itemsize)
        for place, at in self._places(pieces[0][0], addresses, True):
            _, new = _exchange(place, at, change, [value])
            self._record("rmw", how, self._spans([(place, None)], at, value.itemsize), wrote=int(new[0]))

    def load_reduced(self, addresses: Array, size: int, count: int, together: Merge, how: How) -> Array:
        """[n, count], each combined from the values of all members, in group-rank order."""
        pieces = self._space.locate(addresses, size * count)
        out = np.empty((len(addresses), count), np.dtype(f"u{size}"))
        for found, which in pieces:
            mine = addresses if which is None else addresses[which]
            parts = []
            for place, at in self._places(found, mine, True):
                values, index = _index(place, at, size, count)
                parts.append(values[index].reshape(-1))
            out[... if which is None else which] = together(parts).reshape(-1, count)
        self._record("read", how, self._spans(pieces, addresses, size * count))
        return out

    # -- order -------------------------------------------------------------------------------------------------------

    def fence(self, order: str, scope: str) -> None:
        """A fence of one thread."""
        if self._memory.in_use:
            self._memory.record(Fence(self._program.actor.number, order, scope))

    def barrier(self) -> None:
        """All threads of the program have met."""
        if self._memory.in_use:
            self._memory.record(CtaBarrier(self._program.actor.number))

    # -- looking without an access -----------------------------------------------------------------------------------

    def peek(self, address: int, size: int) -> bytes:
        """What is at an address that was read before."""
        found = self._space.at(address)
        values, first = found.values(1)
        return values[address - first : address - first + size].tobytes()

    def member_addresses(self, address: int) -> tuple[int, ...]:
        """Where a multicast address goes; nowhere if it is an ordinary one."""
        found = self._space.at(address)
        if found.block is None or not found.block.members:
            return ()
        return tuple(block.base + address - found.base for block in found.block.members)

    def word_of(self, address: int) -> tuple[Block, int] | None:
        """The shared block that an address lies in, and the offset; None if it is private."""
        block = self._memory.find(address)
        return None if block is None or block.region is None else (block, address - block.base)

    def describe(self, address: int) -> str:
        """An address for people."""
        return self._space.describe(address)

    # -- places and spans --------------------------------------------------------------------------------------------

    def _no_multicast(self, found: Range) -> None:
        if found.block is not None and found.block.region is None:
            raise IllegalAccess("an ordinary access to a multicast address is undefined: use multimem instructions")

    def _places(self, found: Range, addresses: Array, multicast: bool) -> list[tuple[Range, Array]]:
        """Where a store goes: to one place, or to that of each member."""
        block = found.block
        if not multicast:
            self._no_multicast(found)
            return [(found, addresses)]
        if block is None or block.region is not None:
            at = int(addresses[0])
            raise IllegalAccess(
                f"a multimem instruction on {at:#x}, {self.describe(at)}, which is no multicast address"
            )
        offsets = addresses - np.uint64(block.base)
        return [(self._space.of_block(each), np.uint64(each.base) + offsets) for each in block.members]

    def _spans(self, pieces: Sequence[tuple[Range, Array | None]], addresses: Array, nbytes: int) -> tuple[Span, ...]:
        """The shared bytes of an access, neighbours merged."""
        out: list[Span] = []
        for found, which in pieces:
            if found.block is None:
                continue
            mine = addresses if which is None else addresses[which]
            for start, stop in _stretches(mine - np.uint64(found.base), nbytes):
                for block in found.block.members or (found.block,):
                    assert block.region is not None
                    out.append((block.region.number, start, stop))
        return tuple(sorted(out))

    def _record(
        self,
        kind: str,
        how: How,
        spans: tuple[Span, ...],
        *,
        changed: bool = True,
        compare: int | None = None,
        wrote: int | None = None,
    ) -> None:
        if spans:
            program = self._program
            event = Access(
                program.actor.number,
                kind,
                how.order,
                how.scope,
                spans,
                program.stack(),
                how.by_one_lane,
                compare,
                wrote,
            )
            self._memory.record(event, changed=changed)


def _index(found: Range, addresses: Array, size: int, count: int) -> tuple[Array, Array]:
    """The values of a range, and the places of an access in them: [n, count]."""
    values, first = found.values(size)
    places = ((addresses - np.uint64(first)) // np.uint64(size)).astype(np.intp)
    return values, places[:, None] + np.arange(count)


def _exchange(found: Range, addresses: Array, change: Change, given: Sequence[Array]) -> tuple[Array, Array]:
    values, index = _index(found, addresses, given[0].itemsize, 1)
    old = values[index[:, 0]]
    new = change(old, *given)
    values[index[:, 0]] = new
    return old, new


def _stretches(offsets: Array, nbytes: int) -> list[tuple[int, int]]:
    """Accesses of `nbytes` at these offsets, as (first, end) of what they cover without a gap."""
    gaps = np.diff(offsets)
    if len(gaps) and int(gaps.max()) > offsets[-1]:  # unsigned: one of them goes down
        offsets = np.sort(offsets)
        gaps = np.diff(offsets)
    breaks = np.flatnonzero(gaps > nbytes)
    if not len(breaks):
        return [(int(offsets[0]), int(offsets[-1]) + nbytes)]
    starts = offsets[np.concatenate(([0], breaks + 1))]
    stops = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + np.uint64(nbytes)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
