"""One program (CTA) of a launch: who it is, what it has seen, how it waits."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.engine.site import Stack
from simulator.memory_records import Actor, Observe, Publish, WordWait
from simulator.torch_world.context import EPOCH_S
from simulator.torch_world.device_memory import Block
from simulator.triton_world.errors import NotModelled
from simulator.triton_world.memory_port import MemoryPort
from simulator.triton_world.ptx_types import Array
from simulator.triton_world.waiting import DOUBLINGS_MAX, PATIENCE, Polls

if TYPE_CHECKING:
    from simulator.triton_world.launch import Launch

CLOCK_READS = 4
"""Reads of the clock without getting on, after which time passes."""
WEAK_LOOKS = 64
"""Equal plain reads without getting on, after which others run: the loop may be waiting."""


class Program:
    """What the interpreter's functions need to know about the program that calls them.

    Attributes:
        number: in the grid, counted with the last axis running fastest.
        ids, grid: program ids and their numbers, (x, y, z).
        threads: of the program.
        polls: what it has seen as a whole, through Triton's own operations.
        active: the threads that run, in a branch that only some take; None for all.
    """

    def __init__(self, launch: Launch, number: int, ids: tuple[int, int, int]) -> None:
        self.launch = launch
        self.number = number
        self.ids = ids
        self.grid = launch.grid
        self.threads = launch.threads
        self.polls = Polls()
        self.active: Array | None = None
        self.port = MemoryPort(self, launch.space, launch.world.sim.memory, launch.world.watch)
        self._lanes: dict[Hashable, Polls] = {}
        self._weak_looks = 0
        self._clock_reads = 0
        self._weak: dict[Hashable, int] = {}
        self._actor: Actor | None = None

    def __str__(self) -> str:
        ids = self.ids[0] if self.ids[1:] == (0, 0) else self.ids
        return f"kernel {self.launch.name}, program {ids}"

    @property
    def actor(self) -> Actor:
        """Its entry in the log."""
        if self._actor is None:
            launch = self.launch
            self._actor = launch.world.sim.memory.program(launch.rank, launch.name, self.ids, launch.number)
        return self._actor

    def begin(self) -> None:
        """It knows of what the host did before the launch."""
        if self.launch.world.sim.memory.in_use:
            self.launch.world.sim.memory.record(Observe(self.actor.number, self.launch.token("begin")))

    def end(self) -> None:
        """The host will know of what it did."""
        if self.launch.world.sim.memory.in_use:
            self.launch.world.sim.memory.record(Publish(self.actor.number, self.launch.token("end")))

    def stack(self) -> Stack:
        """The lines of the kernel, innermost first, and of the launch."""
        mine = self.launch.world.sim.sites.capture(1)
        if mine and mine[-1:] == self.launch.stack[-1:]:
            return mine
        return self.launch.world.joined(mine, self.launch.stack)

    # -- getting on, and waiting -------------------------------------------------------------------------------------

    def polls_of(self, lane: Hashable) -> Polls:
        """What one thread has seen through inline assembly, or one element's thread."""
        found = self._lanes.get(lane)
        if found is None:
            found = self._lanes[lane] = Polls()
        return found

    def moved(self) -> None:
        """The program changed memory."""
        self._weak_looks = self._clock_reads = 0
        self.polls.moved()
        self._weak.clear()

    def all_moved(self) -> None:
        """... through an operation that is not a single thread's."""
        self.moved()
        self._lanes.clear()

    def read_weakly(self, place: Hashable, addresses: Array, values: Array) -> None:
        """A plain load. To read something new at a place is to get on; to read the same for long lets others run."""
        seen = zlib.crc32(values.tobytes(), zlib.crc32(addresses.tobytes()))
        before = self._weak.get(place)
        if before is not None and before != seen:
            self.all_moved()
        self._weak[place] = seen
        if before == seen:
            self._weak_looks += 1
            if self._weak_looks >= WEAK_LOOKS:
                self.launch.before_wait()
                self.launch.world.sim.scheduler.poll(f"{self}: plain loads in a loop")
                self.launch.after_wait()

    def looked(self, place: Hashable, addresses: Array, values: Array, *, changed: bool = False) -> None:
        """A load with an order, or an atomic operation that changed nothing, of Triton itself: wait if it is a loop."""
        if changed:
            self.all_moved()
            return
        words = {address: value.tobytes() for address, value in zip(addresses.tolist(), values, strict=True)}
        if self.polls.again((place, addresses.tobytes()), values.tobytes(), words):
            self.wait([self.polls])

    def wait(self, polls: Sequence[Polls], *, seconds: float | None = None) -> None:
        """Until somebody changes a word that was looked at; at once if somebody has."""
        words = {address: value for each in polls for address, value in each.words.items()}
        for address, value in words.items():
            if self.port.peek(address, len(value)) != value:
                for each in polls:
                    each.moved()
                return
        self.launch.before_wait()
        shared, private = self._sorted(words)
        ranks = sorted({rank for block, _ in shared for rank in block.ranks} or {self.launch.rank})
        places = tuple(
            (block.region.number, offset + half)
            for block, offset in shared
            if block.region is not None
            for half in range(0, len(words[block.base + offset]), 4)
        )
        what = WordWait(self.actor.number, places, tuple(ranks))
        text = f"{self}: {self._text(words)}"
        limit = self._seconds(polls, seconds, forever=bool(shared) or not self.launch.others_may_write)
        self.launch.world.watch.wait(self.launch, what, private, text, self.stack(), limit)
        self.launch.after_wait()

    def _seconds(self, polls: Sequence[Polls], asked: float | None, *, forever: bool) -> float | None:
        """How long a look may last; None for as long as it takes."""
        interval = self.launch.world.sim.scheduler.limits.poll_interval_s
        waits = min((each.waits for each in polls), default=0)
        for each in polls:
            each.waits += 1
        if asked is not None:
            return asked
        if self._clock_reads or (waits >= PATIENCE and not forever):
            return interval * float(2 ** min(waits, DOUBLINGS_MAX))
        return interval if waits < PATIENCE else None

    def _sorted(self, words: dict[int, bytes]) -> tuple[list[tuple[Block, int]], list[int]]:
        shared: list[tuple[Block, int]] = []
        private: list[int] = []
        for address in words:
            at = self.port.word_of(address)
            if at is None:
                private.append(address)
            else:
                shared.append(at)
        return shared, private

    def _text(self, words: dict[int, bytes]) -> str:
        if not words:
            return "the clock"
        address, value = next(iter(sorted(words.items())))
        rest = f", and {len(words) - 1} more" if len(words) > 1 else ""
        found = int.from_bytes(value, "little")
        return f"word at {self.port.describe(address)} (is {found}){rest}{self.launch.not_started}"

    def clock_ns(self) -> int:
        """Virtual time since the epoch; a loop that reads it lets time pass."""
        scheduler = self.launch.world.sim.scheduler
        self._clock_reads += 1
        if self._clock_reads > CLOCK_READS:
            self.launch.before_wait()
            scheduler.poll(f"{self}: the clock, in a loop")
            self.launch.after_wait()
        return int(EPOCH_S) * 10**9 + int(scheduler.env.now * 1e9)

    # -- threads -----------------------------------------------------------------------------------------------------

    def running_threads(self) -> Array:
        """The numbers of the threads that run."""
        return np.arange(self.threads) if self.active is None else self.active

    def all_threads(self, what: str) -> None:
        """
        Raises:
            NotModelled: only some threads run.
        """
        if self.active is not None:
            raise NotModelled(f"{what} in a branch that only {len(self.active)} of {self.threads} threads take")
