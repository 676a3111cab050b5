"""Pairs of accesses that nothing orders: the memory consistency model of PTX, over the log of a run.

Two accesses of different actors to the same bytes, at least one of which writes, race unless one happens before the
other or both are *morally strong*: stronger than weak, and each of a scope that includes the other actor.  Happens
before is program order, what `Publish` and `Observe` say, and *synchronises with*: a release, or a fence before a
strong write, on a word; an acquire, or a strong read before a fence, that reads that write or one that a chain of
atomic updates has made of it; the scopes of both including the other.

The answer is exact for the log in this sense: an access that races with an earlier one on some byte is reported there,
with one of those that it races with, or more.  It does not hang on the order of the run: accesses that nothing orders
could have come the other way round.

Not modelled, so that a race may be missed: which thread of a program acts (see `vector_clocks`), accesses of different
size to one word, proxies.  Not modelled, so that one may be made up: a plain store by the very thread that has just
released that word ends the release here, and does not in PTX.

Source: PTX ISA, chapter "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.analysis.cell_past import CellPast, Mark, Put, Source, includes, morally_strong
from simulator.analysis.memory_history import ACQUIRES, RELEASES, Assumptions, History
from simulator.analysis.vector_clocks import Clock, Timeline, Timelines, covers, joined
from simulator.memory_records import Access, CtaBarrier, Fence, MemoryEvent, Observe, Publish


class Hit(NamedTuple):
    """Two accesses, by the numbers of their events, that nothing orders, and a cell that both touch.

    Attributes:
        ambiguous: no race, but equal signals put into one word, so that a reader cannot tell which it has got.
    """

    first: int
    second: int
    cell: int
    ambiguous: bool = False


def unordered(history: History, assumptions: Assumptions | None = None) -> Iterator[Hit]:
    """All races and ambiguous signals, by their later access."""
    return _Walk(history, assumptions or Assumptions()).hits()


def are_ordered(history: History, first: int, second: int) -> bool:
    """Whether one access happens before a later one that it would race with otherwise."""
    return not any(_Walk(history, Assumptions(), only=(first, second)).hits())


# -- the walk ---------------------------------------------------------------------------------------------------------


class _Walk:
    """One pass over the log.

    Args:
        only: the accesses that are checked; all if it is empty.
    """

    def __init__(self, history: History, assumptions: Assumptions, only: tuple[int, ...] = ()) -> None:
        self._history = history
        self._only = only
        self._events: Sequence[MemoryEvent] = history.log.events
        self._assume = assumptions
        self._now = 0
        self._timelines = Timelines(history.log.actors, self._has_ended)
        self._cells: dict[int, CellPast] = {}
        self._published: dict[object, Clock] = {}
        self._overheard: dict[int, dict[Source, Clock]] = {}
        self._fenced: dict[int, dict[Source, Clock]] = {}

    def _has_ended(self, actor: int) -> bool:
        return self._history.ends.get(actor, len(self._events)) < self._now

    def hits(self) -> Iterator[Hit]:
        for number, event in enumerate(self._events):
            self._now = number
            if isinstance(event, Access):
                yield from self._access(event)
            elif isinstance(event, CtaBarrier):
                self._timelines.begun(event.actor).meet()
            elif isinstance(event, Fence):
                self._fence(event)
            elif isinstance(event, Publish):
                self._publish(event)
            else:
                self._observe(event)

    def _publish(self, event: Publish) -> None:
        clock = self._timelines.begun(event.actor).publish()
        if self._history.last_observed.get(event.token, -1) > self._now:
            there = self._published.get(event.token)
            self._published[event.token] = clock if there is None else joined(there, clock)

    def _observe(self, event: Observe) -> None:
        clock = self._published.get(event.token)
        if clock is not None:
            self._timelines.of(event.actor).learn(clock, all_threads=True)
            if self._history.last_observed[event.token] == self._now:
                del self._published[event.token]

    def _access(self, access: Access) -> Iterator[Hit]:
        timeline = self._timelines.begun(access.actor)
        cells = self._touched()
        by_lane = access.by_one_lane or access.order in (*RELEASES, "acquire")
        order, scope = self._assume.strength(access, timeline.actor)
        failed = access.compare is not None and access.wrote is None
        writes = access.kind == "write" or (access.kind == "rmw" and not failed)
        mark = Mark(self._now, access.actor, timeline.actor.rank, writes, order, scope)
        if access.compare is not None and not self._only:
            yield from self._signal(timeline, mark, access)
        if mark.strong and access.kind != "write":
            self._hear(timeline, mark, cells)
        mark.strand, mark.stamp = timeline.stamp(by_lane)
        for number, cell in cells if not self._only or self._now in self._only else ():
            for old in cell.check(mark, timeline, by_lane):
                yield Hit(old.number, self._now, number)
        if writes:
            self._write(timeline, mark, access, cells)

    def _touched(self) -> list[tuple[int, CellPast]]:
        return [(number, self._cell(number)) for number in self._history.cells.of_event[self._now]]

    def _cell(self, number: int) -> CellPast:
        found = self._cells.get(number)
        if found is None:
            found = self._cells[number] = CellPast()
        return found

    # -- synchronisation ------------------------------------------------------------------------------------------

    def _hear(self, timeline: Timeline, mark: Mark, cells: Sequence[tuple[int, CellPast]]) -> None:
        """A strong read: what the value carries is learned at once by an acquire, else at the next fence."""
        for _, cell in cells:
            if cell.writer is None or not morally_strong(cell.writer, mark):
                continue
            for source, clock in cell.released.items():
                if mark.actor in self._history.fencing:
                    there = self._overheard.setdefault(mark.actor, {})
                    there[source] = joined(there.get(source, clock), clock)
                if mark.order in ACQUIRES:
                    self._learn(timeline, source, clock, mark.scope)

    def _learn(self, timeline: Timeline, source: Source, clock: Clock, scope: str) -> None:
        """What was released comes to be known, if each scope includes the other actor."""
        wide, rank = source
        mine = timeline.actor.rank
        if includes(wide, rank, mine) and includes(scope, mine, rank):
            timeline.learn(clock, all_threads=self._assume.barrier_after_acquire)

    def _fence(self, fence: Fence) -> None:
        timeline = self._timelines.begun(fence.actor)
        for source, clock in self._overheard.get(fence.actor, {}).items():
            self._learn(timeline, source, clock, fence.scope)
        self._fenced.setdefault(fence.actor, {})[fence.scope, timeline.actor.rank] = self._release(timeline)

    def _release(self, timeline: Timeline) -> Clock:
        if self._assume.barrier_before_release:
            timeline.close_phase()
        return timeline.release()

    def _write(self, timeline: Timeline, mark: Mark, access: Access, cells: Sequence[tuple[int, CellPast]]) -> None:
        released = dict(self._fenced.get(mark.actor, {})) if mark.strong else {}
        if mark.order in RELEASES:
            released[mark.scope, mark.rank] = self._release(timeline)
        for _, cell in cells:
            linked = cell.writer is not None and morally_strong(cell.writer, mark)
            cell.write(mark, carries_on=access.kind == "rmw" and mark.strong and linked, released=released)
            if cell.put is not None and cell.put.mark.actor == mark.actor and access.compare != 0:
                cell.put = None

    # -- signals ----------------------------------------------------------------------------------------------------

    def _signal(self, timeline: Timeline, mark: Mark, access: Access) -> Iterator[Hit]:
        """A signal is put by a compare-and-swap from 0.

        Two senders of equal signals have to know of each other, by other ways than the word itself, unless each takes
        its own away, as who locks and unlocks does.
        """
        (region, _, _), *more = access.spans
        if access.compare != 0 or more or self._history.log.regions[region].kind != "pad":
            return
        number = self._history.cells.of_event[self._now][0]
        cell = self._cell(number)
        put = cell.put
        if put is not None and mark.actor not in put.tried:
            own = put.mark.actor == mark.actor
            put.tried[mark.actor] = own or covers(timeline.heard, put.mark.strand, put.mark.stamp)
        if not access.wrote:
            return
        if put is not None and put.value == access.wrote and not put.tried[mark.actor]:
            yield Hit(put.mark.number, self._now, number, ambiguous=True)
        cell.put = Put(mark, access.wrote)
