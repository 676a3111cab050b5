"""Vector clocks: what each actor knows of what the others have done.

A host is one strand.  A program of a kernel has two, since it has many threads: accesses that any of its threads may
have made, which count as done for the others at a barrier of the CTA; and those of one thread at a time, whose fences
and atomics order them without one.  What one thread learns, all know from the next barrier on.

Not modelled: which thread it is.  What one thread learned, any later one publishes: this may miss a race between
threads, and never makes one up.

Source: vector clocks of Fidge and Mattern; epochs as in Flanagan and Freund, FastTrack (PLDI 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.memory_records import Actor

Clock = npt.NDArray[np.int32]
"""Strand to the last stamp that is known of it; what lies beyond the end is not known. Never changed in place."""


def nothing() -> Clock:
    """A clock that knows of nobody."""
    return np.zeros(0, np.int32)


def joined(one: Clock, other: Clock) -> Clock:
    """What the two know together."""
    if one is other:
        return one
    if len(one) < len(other):
        one, other = other, one
    out = one.copy()
    np.maximum(out[: len(other)], other, out=out[: len(other)])
    return out


def covers(clock: Clock, strand: int, stamp: int) -> bool:
    """Whether `clock` knows of what was done on `strand` under `stamp`."""
    return strand < len(clock) and clock.item(strand) >= stamp


def _stamped(clock: Clock, strand: int, stamp: int) -> Clock:
    out = np.zeros(max(len(clock), strand + 1), np.int32)
    out[: len(clock)] = clock
    out[strand] = stamp
    return out


@dataclass(slots=True)
class Timeline:
    """How far one actor has come, and what it knows.

    Attributes:
        single: it has one thread (a host), so that all know what one learns.
        block, lane: its strands: of any thread, and of one thread; the same for a host.
        phase, tick: the stamps of what is done now on these strands.
        known: what all of its threads know.
        heard: what one thread knows.
    """

    actor: Actor
    single: bool
    block: int = -1
    lane: int = -1
    phase: int = 1
    tick: int = 1
    known: Clock = field(default_factory=nothing)
    heard: Clock = field(default_factory=nothing)

    def stamp(self, by_lane: bool) -> tuple[int, int]:
        """Strand and stamp of an access made now."""
        return (self.lane, self.tick) if by_lane or self.single else (self.block, self.phase)

    def knowledge(self, by_lane: bool) -> Clock:
        """What whoever makes an access now knows."""
        return self.heard if by_lane else self.known

    def learn(self, clock: Clock, *, all_threads: bool = False) -> None:
        """One thread learns of something, or all of them do."""
        self.heard = joined(self.heard, clock)
        if all_threads or self.single:
            self.known = joined(self.known, clock)

    def meet(self) -> None:
        """A barrier of the CTA."""
        self.close_phase()
        self.heard = _stamped(self.heard, self.lane, self.tick)
        self.tick += 1
        self.known = self.heard

    def close_phase(self) -> None:
        """What any thread has done so far counts as done for the one that releases next."""
        if not self.single:
            self.heard = _stamped(self.heard, self.block, self.phase)
            self.phase += 1

    def release(self) -> Clock:
        """What one thread can publish now: all that was done before the last barrier, and by single threads since."""
        clock = _stamped(self.heard, self.lane, self.tick)
        self.tick += 1
        return clock

    def publish(self) -> Clock:
        """What the actor as a whole can publish: everything."""
        self.meet()
        return self.known


class Timelines:
    """The timelines of all actors.

    Strands of a program that has ended go to a later program of its rank that knows of all it did: whoever knows of
    the later one then knows of the earlier one too, so the clocks stay as short as the run is wide.

    Args:
        has_ended: of an actor's number, whether it does nothing any more and has published all it did.
    """

    def __init__(self, actors: Sequence[Actor], has_ended: Callable[[int], bool]) -> None:
        self._actors = actors
        self._has_ended = has_ended
        self._timelines: dict[int, Timeline] = {}
        self._programs: dict[int, list[Timeline]] = {}
        self._strands = 0

    def of(self, number: int) -> Timeline:
        """The timeline of an actor, which may not have begun."""
        found = self._timelines.get(number)
        if found is None:
            actor = self._actors[number]
            found = self._timelines[number] = Timeline(actor, single=not actor.kernel)
        return found

    def begun(self, number: int) -> Timeline:
        """The timeline of an actor that does something that others can come to know of."""
        found = self.of(number)
        if found.lane < 0:
            self._begin(found)
        return found

    def _begin(self, timeline: Timeline) -> None:
        if timeline.single:
            timeline.block = timeline.lane = self._strands
            self._strands += 1
            return
        programs = self._programs.setdefault(timeline.actor.rank, [])
        before = next((old for old in programs if self._can_follow(timeline, old)), None)
        if before is None:
            timeline.block, timeline.lane = self._strands, self._strands + 1
            self._strands += 2
        else:
            programs.remove(before)
            timeline.block, timeline.lane = before.block, before.lane
            timeline.phase, timeline.tick = before.phase, before.tick
        programs.append(timeline)

    def _can_follow(self, timeline: Timeline, old: Timeline) -> bool:
        return (
            self._has_ended(old.actor.number)
            and covers(timeline.known, old.block, old.phase - 1)
            and covers(timeline.known, old.lane, old.tick - 1)
        )
