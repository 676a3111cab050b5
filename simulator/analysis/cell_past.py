"""What has to be known of the past of a cell to tell what a later access races with, and what it reads from.

Source: PTX ISA, chapter "Memory Consistency Model": moral strength, scopes, observation order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulator.analysis.vector_clocks import Clock, Timeline, covers, joined


@dataclass(slots=True, eq=False)
class Mark:
    """An access, as later ones see it."""

    number: int
    actor: int
    rank: int
    writes: bool
    order: str
    scope: str
    strand: int = 0
    stamp: int = 0

    @property
    def strong(self) -> bool:
        return self.order != "weak"


Source = tuple[str, int]
"""Scope and rank of a release."""


@dataclass(slots=True)
class Put:
    """The last signal in a word.

    Attributes:
        tried: actors that wanted to put another one, to whether they knew of this one before.
    """

    mark: Mark
    value: int
    tried: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class CellPast:
    """What has to be known of the past of a cell.

    Attributes:
        live: accesses that a later one can race with, without those that a later one stands for.
        writer: the last write.
        released: what its value carries, by source.
    """

    live: list[Mark] = field(default_factory=list)
    writer: Mark | None = None
    released: dict[Source, Clock] = field(default_factory=dict)
    put: Put | None = None

    def check(self, mark: Mark, timeline: Timeline, by_lane: bool) -> Iterator[Mark]:
        """Those that `mark` races with; from now on it is one of the past."""
        heard, known = timeline.knowledge(by_lane), timeline.known
        kept = []
        for old in self.live:
            if old.actor == mark.actor:
                stands = old.strand == mark.strand
            else:
                stands = covers(known, old.strand, old.stamp)
                if not stands and not covers(heard, old.strand, old.stamp) and _conflict(old, mark):
                    yield old
            if not (stands and _stands_for(mark, old)):
                kept.append(old)
        kept.append(mark)
        self.live = kept

    def write(self, mark: Mark, *, carries_on: bool, released: Mapping[Source, Clock]) -> None:
        """A write: what it carries, and whether it carries on what was there."""
        if not carries_on:
            self.released = {}
        self.writer = mark
        for source, clock in released.items():
            there = self.released.get(source)
            self.released[source] = clock if there is None else joined(there, clock)


def includes(scope: str, rank: int, other: int) -> bool:
    """Whether a scope of `rank` includes another actor, of rank `other`. A scope of `cta` includes none."""
    return scope == "sys" or (scope == "gpu" and rank == other)


def morally_strong(one: Mark, other: Mark) -> bool:
    if one.actor == other.actor:
        return True
    scopes = includes(one.scope, one.rank, other.rank) and includes(other.scope, other.rank, one.rank)
    return one.strong and other.strong and scopes


def _conflict(one: Mark, other: Mark) -> bool:
    return (one.writes or other.writes) and not morally_strong(one, other)


def _stands_for(new: Mark, old: Mark) -> bool:
    """Whatever comes later and races with `old`, which happens before `new`, also races with `new`."""
    alike = old.strong and old.rank == new.rank and old.scope == new.scope
    return (new.writes or not old.writes) and (not new.strong or alike)
