"""The log of shared memory, made ready for walking it more than once, and what a walk may take for granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.analysis.cells import Cells, cells_of
from simulator.engine.site import Stack
from simulator.memory_records import Access, Actor, Fence, MemoryLog, Observe, Publish

RELEASES = ("release", "acq_rel")
ACQUIRES = ("acquire", "acq_rel")


class AtomicSite(NamedTuple):
    """Atomic accesses that code makes at one place in one way.

    Attributes:
        frames: see `place`.
    """

    frames: Stack
    kind: str
    order: str
    scope: str
    compare: int | None

    @classmethod
    def of(cls, access: Access, actor: Actor) -> AtomicSite:
        """The site of an access."""
        return cls(place(access, actor), access.kind, access.order, access.scope, access.compare)


def place(access: Access, actor: Actor) -> Stack:
    """The line of an access, innermost first: of a kernel, out to the line of the kernel itself."""
    for depth, frame in enumerate(access.stack if actor.kernel else ()):
        if frame.function.rpartition(".")[2] == actor.kernel.rpartition(".")[2]:
            return access.stack[: depth + 1]
    return access.stack[:1]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What to take for granted beyond the log, to see whether a race is still there.

    Attributes:
        stronger: atomic accesses to the order and scope that they are taken to have.
        barrier_before_release: a CTA barrier before whatever publishes.
        barrier_after_acquire: a CTA barrier after whatever learns.
    """

    stronger: Mapping[AtomicSite, tuple[str, str]] = field(default_factory=dict)
    barrier_before_release: bool = False
    barrier_after_acquire: bool = False

    def strength(self, access: Access, actor: Actor) -> tuple[str, str]:
        """Order and scope of an access."""
        if self.stronger and access.order != "weak":
            return self.stronger.get(AtomicSite.of(access, actor), (access.order, access.scope))
        return access.order, access.scope


@dataclass(frozen=True, slots=True)
class History:
    """A log, prepared for being walked more than once.

    Attributes:
        ends: number of an actor to that of its last event, if that publishes all that it did.
        last_observed: token to the number of the last event that observes it.
        fencing: actors with fences.
    """

    log: MemoryLog
    cells: Cells
    ends: dict[int, int]
    last_observed: dict[object, int]
    fencing: frozenset[int]

    @classmethod
    def of(cls, log: MemoryLog) -> History:
        """Prepare `log`."""
        return cls._with_cells(log, cells_of(log.events, log.regions))

    def until(self, number: int) -> History:
        """What had happened when an event was over."""
        log = MemoryLog(self.log.regions, self.log.actors, self.log.events[: number + 1])
        return self._with_cells(log, self.cells)

    @classmethod
    def _with_cells(cls, log: MemoryLog, cells: Cells) -> History:
        last: dict[int, int] = {}
        observed: dict[object, int] = {}
        for number, event in enumerate(log.events):
            last[event.actor] = number
            if isinstance(event, Observe):
                observed[event.token] = number
        ends = {actor: number for actor, number in last.items() if isinstance(log.events[number], Publish)}
        fencing = frozenset(event.actor for event in log.events if isinstance(event, Fence))
        return cls(log, cells, ends, observed, fencing)
