"""How a kernel that waits is told from one that works, and how it is suspended.

A kernel waits by looking: a loop reads a word, or tries to change it, until it finds what it wants. Whoever looks at a
place in the program and finds the same value at the same address as the last time, and has not got on in between, is
taken to wait. To get on is to change memory, or to read something else at a place than the last time.

Some loops give up by themselves after some looks. So the first looks end after a little virtual time even if nobody
writes, and only then the program waits for as long as it takes.

Not modelled: a loop that gives up after more than `PATIENCE` looks, without looking at a clock, is taken to wait for
ever; so is one that somebody outside the simulation would end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.memory_records import WordWait
from simulator.triton_world.ptx_types import Array

if TYPE_CHECKING:
    import simpy

    from simulator.torch_world.simulation import Simulation

PATIENCE = 16
"""Looks that end by themselves before a wait is for ever."""
DOUBLINGS_MAX = 10
PLACES_MAX = 4096
"""Places that a loop looks at; whoever looks at more works."""

Words = Mapping[int, bytes]
"""Addresses, with what was found there."""


class Polls:
    """What one thread of a program has seen since it last got on.

    Attributes:
        words: addresses that it looked at, with what it found.
        waits: how often it was suspended.
    """

    __slots__ = ("_seen", "waits", "words")

    def __init__(self) -> None:
        self._seen: dict[Hashable, object] = {}
        self.words: dict[int, bytes] = {}
        self.waits = 0

    def again(self, place: Hashable, value: object, words: Words) -> bool:
        """It found `value` at `place`: whether it did so before."""
        before = self._seen.get(place)
        if (before is not None and before != value) or len(self._seen) > PLACES_MAX:
            self.moved()
        self._seen[place] = value
        self.words.update(words)
        return before == value

    def moved(self) -> None:
        """It got on."""
        if self._seen:
            self._seen.clear()
            self.words.clear()
            self.waits = 0


class Watch:
    """Suspends programs until memory is written, shared or private."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._waiting: list[tuple[object, frozenset[int], simpy.Event]] = []

    def begin(self) -> None:
        """A new run."""
        self._waiting.clear()

    def wait(
        self, who: object, what: WordWait, private: Iterable[int], text: str, stack: Stack, seconds: float | None
    ) -> None:
        """Until one of the words is written, or one of the `private` addresses, or `seconds` have passed.

        Args:
            who: to be woken together, see `wake`.
        """
        event = self._sim.scheduler.event()
        watched = (who, frozenset(private), event)
        self._waiting.append(watched)
        self._sim.memory.watch(what.words, event)
        if seconds is not None:
            self._ring_later(event, seconds)
        try:
            self._sim.wait(event, Wait("word", text, stack, what))
        finally:
            self._waiting.remove(watched)
            self._sim.memory.unwatch(event)

    def _ring_later(self, event: simpy.Event, seconds: float) -> None:
        def ring(_: object) -> None:
            if not event.triggered:
                event.succeed()

        bell = self._sim.scheduler.env.timeout(seconds)
        assert bell.callbacks is not None
        bell.callbacks.append(ring)

    def wake(self, who: object) -> None:
        """Whatever `who` waits for, let it go on."""
        for owner, _, event in self._waiting:
            if owner is who and not event.triggered:
                event.succeed()

    def written(self, addresses: Array, nbytes: int) -> None:
        """Private memory was changed: `nbytes` at each address."""
        if not self._waiting:
            return
        for _, watched, event in self._waiting:
            if not event.triggered and _touches(watched, addresses, nbytes):
                event.succeed()
                self._sim.scheduler.progress()


def _touches(watched: frozenset[int], addresses: Array, nbytes: int) -> bool:
    first, end = int(addresses.min()), int(addresses.max()) + nbytes
    near = [each for each in watched if first - 8 < each < end]
    return bool(near) and any(start - 8 < each < start + nbytes for start in addresses.tolist() for each in near)
