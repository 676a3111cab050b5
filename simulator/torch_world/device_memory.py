"""The memory that ranks reach across: which addresses belong to whom, who touched them, who waits for a change.

Addresses are real ones: the memory is that of CPU tensors, and every rank lives in this process.  Only a multicast
address is made up: it is reserved, never backed, and stands for one place in the memory of each member.

Not modelled: caches and the time an access takes; a store is seen by all as soon as it is made.  What real hardware may
delay is a question for `simulator.analysis.races`, which reads the log that is kept here.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.memory_records import Access, Actor, MemoryEvent, MemoryLog, Observe, Publish, Region, Span, WordWait

if TYPE_CHECKING:
    import simpy

    from simulator.torch_world.simulation import Simulation


@dataclass(slots=True, eq=False)
class Block:
    """A range of addresses with its region (None for a multicast range, which has `members` instead).

    Attributes:
        ranks: global ranks that can reach it: the owner, and from the rendezvous on the members of the group.
        members: for a multicast range, the blocks that a store goes to, in group-rank order.
        keep: the tensor that owns the memory.
    """

    base: int
    nbytes: int
    region: Region | None
    keep: torch.Tensor
    ranks: tuple[int, ...] = ()
    members: tuple[Block, ...] = ()


class DeviceMemory:
    """All shared memory of one simulation."""

    def __init__(self, sim: Simulation, log: MemoryLog) -> None:
        self._sim = sim
        self.log = log
        self._bases: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._hosts: dict[int, Actor] = {}
        self._launches: dict[int, int] = {}
        self._watchers: list[tuple[tuple[tuple[int, int], ...], simpy.Event]] = []

    @property
    def in_use(self) -> bool:
        """Whether any rank has allocated shared memory; before that nothing needs to be recorded."""
        return bool(self._blocks)

    # -- ranges of addresses -----------------------------------------------------------------------------------------

    def add(self, rank: int, kind: str, tensor: torch.Tensor, label: str, stack: Stack) -> Block:
        """Make the memory of `tensor` (uint8, contiguous) known as that of `rank`."""
        region = Region(len(self.log.regions), rank, kind, tensor.nbytes, label, stack)
        self.log.regions.append(region)
        return self._put(Block(tensor.data_ptr(), tensor.nbytes, region, tensor, (rank,)))

    def add_multicast(self, members: Sequence[Block]) -> Block:
        """A range of addresses that stands for the memory of all `members`, which have one size."""
        reserved = torch.empty(members[0].nbytes, dtype=torch.uint8)
        ranks = tuple(rank for block in members for rank in block.ranks)
        return self._put(Block(reserved.data_ptr(), reserved.nbytes, None, reserved, ranks, tuple(members)))

    def add_private(self, tensor: torch.Tensor) -> None:
        """Memory that its rank alone uses, such as a table of addresses: it may be read, and nobody records that."""
        self._put(Block(tensor.data_ptr(), tensor.nbytes, None, tensor))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, in the order of their addresses."""
        return tuple(self._blocks[base] for base in self._bases)

    def overlaps(self, base: int, nbytes: int) -> bool:
        """Whether any shared byte lies in a range of addresses."""
        at = bisect_right(self._bases, base) - 1
        before = self._blocks[self._bases[at]] if at >= 0 else None
        if before is not None and base < before.base + before.nbytes:
            return True
        return at + 1 < len(self._bases) and self._bases[at + 1] < base + nbytes

    def _put(self, block: Block) -> Block:
        insort(self._bases, block.base)
        self._blocks[block.base] = block
        return block

    def find(self, address: int) -> Block | None:
        """The block that holds `address`; None if no rank has shared it."""
        at = bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        block = self._blocks[self._bases[at]]
        return block if address < block.base + block.nbytes else None

    def places(self, address: int, nbytes: int) -> Iterator[tuple[Block, int]]:
        """Where an access of `nbytes` at `address` goes: one place, none, or one for each member of a multicast.

        Raises:
            IndexError: it begins inside a shared block and reaches beyond its end.
        """
        block = self.find(address)
        if block is None:
            return
        offset = address - block.base
        if offset + nbytes > block.nbytes:
            name = block.region.label if block.region is not None else "multicast range"
            raise IndexError(f"access to bytes {offset} to {offset + nbytes} of the {name}, which has {block.nbytes}")
        for each in block.members or (block,):
            yield each, offset

    def spans(self, addresses: Iterable[int], nbytes: int) -> tuple[Span, ...]:
        """The shared bytes of accesses of `nbytes` each, neighbours merged; bytes that are not shared are left out."""
        single = [
            (block.region.number, offset, offset + nbytes)
            for address in addresses
            for block, offset in self.places(address, nbytes)
            if block.region is not None
        ]
        return tuple(_merged(sorted(single)))

    def forget(self) -> None:
        """The run is over: let go of the memory."""
        self._bases.clear()
        self._blocks.clear()

    # -- who does something -------------------------------------------------------------------------------------------

    def host(self, rank: int) -> Actor:
        """The host code of `rank`: all of its threads, taken as one."""
        if rank not in self._hosts:
            self._hosts[rank] = self._actor(rank)
        return self._hosts[rank]

    def next_launch(self, rank: int) -> int:
        """The number of the next kernel launch of `rank`."""
        number = self._launches.get(rank, 0)
        self._launches[rank] = number + 1
        return number

    def program(self, rank: int, kernel: str, program: tuple[int, ...], launch: int) -> Actor:
        """A new program of a kernel."""
        return self._actor(rank, kernel, program, launch)

    def _actor(self, rank: int, kernel: str = "", program: tuple[int, ...] = (), launch: int = -1) -> Actor:
        actor = Actor(len(self.log.actors), rank, kernel, program, launch)
        self.log.actors.append(actor)
        return actor

    # -- what happens ------------------------------------------------------------------------------------------------

    def record(self, event: MemoryEvent, *, changed: bool = True) -> None:
        """Append to the log; a write wakes those who wait for one of its words. Accesses without spans are dropped.

        Args:
            changed: False for a write that left the bytes as they were, which nobody needs to see.
        """
        if isinstance(event, Access):
            if not event.spans:
                return
            if changed and (event.kind == "write" or event.wrote is not None):
                self._wake(event.spans)
        self.log.events.append(event)

    def publish(self, rank: int, token: Hashable) -> None:
        """The host of `rank` did something that others can wait for. Nothing is recorded before there is memory."""
        if self.in_use:
            self.record(Publish(self.host(rank).number, token))

    def observe(self, rank: int, token: Hashable) -> None:
        """The host of `rank` has seen what was published under `token`."""
        if self.in_use:
            self.record(Observe(self.host(rank).number, token))

    def wait_written(self, what: WordWait, text: str, stack: Stack, timeout_s: float | None = None) -> bool:
        """Suspend the caller until somebody writes one of the words. False if `timeout_s` virtual seconds passed."""
        event = self._sim.scheduler.event()
        watcher = (what.words, event)
        self._watchers.append(watcher)
        if self._sim.wait(event, Wait("word", text, stack, what, timeout_s is not None), timeout_s):
            return True
        self._watchers.remove(watcher)
        return False

    def watch(self, words: tuple[tuple[int, int], ...], event: simpy.Event) -> None:
        """Trigger `event`, if it has not been by then, once one of the words is written."""
        self._watchers.append((words, event))

    def unwatch(self, event: simpy.Event) -> None:
        """Nobody waits for `event` any more."""
        self._watchers = [each for each in self._watchers if each[1] is not event]

    def _wake(self, spans: tuple[Span, ...]) -> None:
        still = []
        for words, event in self._watchers:
            if not _touches(words, spans):
                still.append((words, event))
            elif not event.triggered:
                event.succeed()
                self._sim.scheduler.progress()
        self._watchers = still


def _touches(words: tuple[tuple[int, int], ...], spans: tuple[Span, ...]) -> bool:
    return any(
        region == at and start < offset + 4 and offset < stop for region, offset in words for at, start, stop in spans
    )


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbouring and overlapping spans of a sorted list, as one."""
    current: Span | None = None
    for span in spans:
        if current is not None and span[0] == current[0] and span[1] <= current[2]:
            current = (current[0], current[1], max(current[2], span[2]))
        else:
            if current is not None:
                yield current
            current = span
    if current is not None:
        yield current
