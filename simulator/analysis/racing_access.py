"""An access that races, in words."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.analysis.findings import Side
from simulator.analysis.memory_history import AtomicSite, History
from simulator.memory_records import Access, Actor, Region

_NOUNS = {"read": "read", "write": "write", "rmw": "update"}


@dataclass(frozen=True, slots=True)
class RacingAccess:
    """One of two accesses, on one of the regions that it touches.

    Attributes:
        number: of its event.
        start, stop: the piece that the other access touches too.
        pieces: how many it touches in this region.
    """

    number: int
    access: Access
    actor: Actor
    region: Region
    start: int
    stop: int
    pieces: int

    @classmethod
    def of(cls, history: History, number: int, cell: int) -> RacingAccess:
        """The access of an event, where it touches a cell."""
        access = history.log.events[number]
        assert isinstance(access, Access)
        at, begin, _ = history.cells.places[cell]
        mine = [(start, stop) for region, start, stop in access.spans if region == at]
        start, stop = next(span for span in mine if span[0] <= begin < span[1])
        return cls(number, access, history.log.actors[access.actor], history.log.regions[at], start, stop, len(mine))

    @property
    def rank(self) -> int:
        return self.actor.rank

    @property
    def noun(self) -> str:
        return _NOUNS[self.access.kind]

    @property
    def side(self) -> Side:
        """What it does, and where."""
        return Side("racing", (self.rank,), self._doing(), self.access.stack)

    def _doing(self) -> str:
        who = f"{self._program()} of kernel {self.actor.kernel}" if self.actor.kernel else "the host"
        more = f" and {self.pieces - 1} more pieces" if self.pieces > 1 else ""
        return f"{who} {self.noun}s bytes {self.start} to {self.stop}{more} of the {self.region.label} ({self._how()})"

    def _program(self) -> str:
        x, *others = self.actor.program
        return f"program {self.actor.program if any(others) else x}"

    def _how(self) -> str:
        access = self.access
        parts = [access.order if access.order == "weak" else f"{access.order}.{access.scope}"]
        if access.compare is not None:
            new = "not found" if access.wrote is None else f"to {access.wrote}"
            parts.append(f"compare-and-swap, {access.compare} {new}")
        if len({region for region, _, _ in access.spans}) > 1:
            parts.append("multicast")
        return ", ".join(parts)

    def who(self, other: RacingAccess) -> str:
        """`rank 0`; of two on one rank `program 3`, and its launch where that is all that differs."""
        if self.rank != other.rank:
            return f"rank {self.rank}"
        if not self.actor.kernel:
            return "the host"
        launch = f" of launch {self.actor.launch}" if self.actor.program == other.actor.program else ""
        return self._program() + launch

    def whose(self, other: RacingAccess, again: bool = False) -> str:
        """`rank 0's read of`, `rank 1's next write to`."""
        return (
            f"{self.who(other)}'s {'next ' if again else ''}{self.noun} {'to' if self.access.kind == 'write' else 'of'}"
        )

    def where(self, other: RacingAccess) -> str:
        """The region, from the point of view of the rank."""
        own = "signal pad" if self.region.kind == "pad" else self.region.kind
        is_own = self.region.rank == self.rank != other.rank
        return f"its {own}" if is_own else f"the {self.region.label}"


def atomic(site: AtomicSite) -> str:
    """`compare-and-swap from 0 at signals.py:12 (called at kernel.py:34)`."""
    names = {"read": "load", "write": "store", "rmw": "atomic update"}
    name = names[site.kind] if site.compare is None else f"compare-and-swap from {site.compare}"
    at = " at " + site.frames[0].place if site.frames else ""
    called = f" (called at {', '.join(frame.place for frame in site.frames[1:])})" if site.frames[1:] else ""
    return name + at + called
