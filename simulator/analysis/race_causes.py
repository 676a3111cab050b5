"""Why nothing orders two accesses: what would have to be added to the run for the race to go away.

Nothing is guessed: the log is walked again with stronger atomics, with more CTA barriers, or with both, and what makes
a race vanish is what is missing.  Of several atomic accesses, those are kept without which it would still be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.analysis.happens_before import Hit, unordered
from simulator.analysis.memory_history import ACQUIRES, RELEASES, Assumptions, AtomicSite, History, place
from simulator.engine.site import Stack
from simulator.memory_records import Access

EVENTS_MAX = 1_000_000
"""Events that are walked again in all; what a longer search would find stays unsaid."""
SITES_MAX = 24
"""Places with atomics that are tried; if there are more, none is."""
Stronger = Mapping[AtomicSite, tuple[str, str]]
"""Atomic accesses to the order and scope that they would have to have."""


class Place(NamedTuple):
    """Where an access is made, and what kind it is."""

    frames: Stack
    kind: str

    @classmethod
    def of(cls, history: History, number: int) -> Place:
        """The place of the access that an event is."""
        event = history.log.events[number]
        assert isinstance(event, Access)
        return cls(place(event, history.log.actors[event.actor]), event.kind)


class RacePair(NamedTuple):
    """What races are counted under: two places, in a fixed order, and the kind of the region."""

    one: Place
    other: Place
    region: str


def alike(history: History, hit: Hit) -> RacePair:
    """The pair that a race belongs to; of ambiguous signals, wherever the function that puts them is called."""
    region = history.log.regions[history.cells.places[hit.cell][0]]
    places = [Place.of(history, number) for number in (hit.first, hit.second)]
    if hit.ambiguous:
        places = [Place(place.frames[:1], place.kind) for place in places]
    one, other = sorted(places)
    return RacePair(one, other, region.kind)


@dataclass(frozen=True, slots=True)
class Missing:
    """What would make a race go away; not known if all is empty.

    Attributes:
        barrier_before: a CTA barrier between the first access and the signal after it.
        barrier_after: a CTA barrier between the wait for the signal and the second access.
    """

    stronger: Stronger = field(default_factory=dict)
    barrier_before: bool = False
    barrier_after: bool = False


class Causes:
    """Answers for one log; walks are kept, since many races have one cause."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._left = EVENTS_MAX
        self._walks: list[tuple[Missing, frozenset[RacePair]]] = []
        self._sites = _weak_sites(history)

    def missing(self, pair: RacePair, *, wide: bool) -> Missing:
        """What is missing between the accesses of `pair`.

        Args:
            wide: the two are of different ranks, so that scopes have to be `sys`.
        """
        everything = Missing(dict.fromkeys(self._sites, ("acq_rel", "sys")), True, True)
        if not self._vanishes(pair, everything):
            return Missing()
        found = next((missing for missing in self._candidates(wide) if self._vanishes(pair, missing)), None)
        return Missing() if found is None else self._fewest(pair, found)

    def _candidates(self, wide: bool) -> Iterator[Missing]:
        """Additions, in the order in which they are likely."""
        needed = {site: _needed(site, wide) for site in self._sites}
        full = dict.fromkeys(self._sites, ("acq_rel", "sys"))
        if self._sites:
            yield from (Missing(needed), Missing(full))
        yield from (Missing({}, True, False), Missing({}, False, True), Missing({}, True, True))
        if self._sites:
            yield from (Missing(stronger, *sides) for stronger in (needed, full) for sides in _SIDES)

    def _fewest(self, pair: RacePair, missing: Missing) -> Missing:
        for site in missing.stronger:
            others = {other: strength for other, strength in missing.stronger.items() if other != site}
            fewer = Missing(others, missing.barrier_before, missing.barrier_after)
            if self._vanishes(pair, fewer):
                missing = fewer
        return missing

    def _vanishes(self, pair: RacePair, missing: Missing) -> bool:
        found = next((pairs for known, pairs in self._walks if known == missing), None)
        if found is None:
            if self._left < len(self._history.log.events):
                return False
            self._left -= len(self._history.log.events)
            assume = Assumptions(missing.stronger, missing.barrier_before, missing.barrier_after)
            hits = unordered(self._history, assume)
            found = frozenset(alike(self._history, hit) for hit in hits if not hit.ambiguous)
            self._walks.append((missing, found))
        return pair not in found


_SIDES = ((True, False), (False, True), (True, True))


def _weak_sites(history: History) -> tuple[AtomicSite, ...]:
    """Where code makes strong accesses that could be stronger; none if there are too many to try."""
    sites: dict[AtomicSite, None] = {}
    for event in history.log.events:
        if isinstance(event, Access) and event.order != "weak" and _may_signal(event, history):
            sites[AtomicSite.of(event, history.log.actors[event.actor])] = None
    return tuple(sites) if len(sites) <= SITES_MAX else ()


def _may_signal(access: Access, history: History) -> bool:
    """Whether it could order something, and could be stronger."""
    on_pad = any(history.log.regions[region].kind == "pad" for region, _, _ in access.spans)
    return (access.by_one_lane or on_pad) and (access.order, access.scope) != ("acq_rel", "sys")


def _needed(site: AtomicSite, wide: bool) -> tuple[str, str]:
    """What a signal takes: a release where it is put, an acquire where it is awaited."""
    releases = site.order in RELEASES or site.kind == "write" or (site.kind == "rmw" and not site.compare)
    acquires = site.order in ACQUIRES or site.kind == "read" or (site.kind == "rmw" and site.compare != 0)
    order = "acq_rel" if releases and acquires else "release" if releases else "acquire"
    return order, "sys" if wide or site.scope == "sys" else "gpu"
