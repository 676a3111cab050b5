"""What orders two accesses, rule by rule, and the same answers as brute force on random logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.cells import cells_of
from simulator.analysis.happens_before import Hit, unordered
from simulator.analysis.memory_history import History
from simulator.analysis.vector_clocks import Timelines, covers
from simulator.memory_records import Access, Actor, CtaBarrier, Fence, MemoryEvent, MemoryLog, Observe, Publish, Region
from tests.unit.memory_logs import LogBook
from tests.unit.memory_oracle import racing_pairs

Story = Callable[[LogBook], None]


def hits(log: MemoryLog) -> list[Hit]:
    return list(unordered(History.of(log)))


def races(log: MemoryLog) -> set[tuple[int, int]]:
    return {(hit.first, hit.second) for hit in hits(log) if not hit.ambiguous}


def told(story: Story, ranks: int = 2) -> LogBook:
    book = LogBook(ranks)
    story(book)
    return book


# -- rules, both ways ------------------------------------------------------------------------------------------------


def signalled(
    put: str = "release",
    take: str = "acquire",
    *,
    put_scope: str = "sys",
    take_scope: str = "sys",
    close: bool = True,
    open_: bool = True,
    between: Story = lambda book: None,
) -> Story:
    """Rank 0's program writes and signals; rank 1's program waits and reads."""

    def story(book: LogBook) -> None:
        sender, receiver = book.program(0), book.program(1)
        book.write(sender, 1)
        if close:
            book.barrier(sender)
        book.put(sender, 1, order=put, scope=put_scope)
        between(book)
        book.take(receiver, 1, order=take, scope=take_scope)
        if open_:
            book.barrier(receiver)
        book.read(receiver, 1)

    return story


def fenced(
    *, before: bool = True, after: bool = True, scope: str = "sys", last_scope: str = "sys", order: str = "acq_rel"
) -> Story:
    """The same with relaxed accesses and fences around them."""

    def story(book: LogBook) -> None:
        sender, receiver = book.program(0), book.program(1)
        book.write(sender, 1)
        book.barrier(sender)
        if before:
            book.fence(sender, scope, order)
        book.put(sender, 1, order="relaxed")
        book.take(receiver, 1, order="relaxed")
        if after:
            book.fence(receiver, last_scope, order)
        book.barrier(receiver)
        book.read(receiver, 1)

    return story


def hosts(*, meeting: bool) -> Story:
    """One host writes, another reads."""

    def story(book: LogBook) -> None:
        book.write(0, 1)
        if meeting:
            book.meet(0, 1)
        book.read(1, 1)

    return story


def late_token(book: LogBook) -> None:
    """What is published after the observation is not known."""
    book.publish(0, "key")
    book.write(0, 1)
    book.observe(1, "key")
    book.publish(0, "key")
    book.read(1, 1)


def two_publish_one_token(book: LogBook) -> None:
    """Whoever observes a token knows of all that was published under it."""
    for host in (0, 2):
        book.access(host, "write", (2, 4 * host, 4 * host + 4))
        book.publish(host, "key")
    book.observe(1, "key")
    book.access(1, "read", (2, 0, 16))


def launched(*, ended: bool) -> Story:
    """The host prepares, a program writes, and the host reads."""

    def story(book: LogBook) -> None:
        book.write(0, 0)
        program = book.program(0)
        book.write(program, 0)
        if ended:
            book.end(program)
        book.read(0, 0)

    return story


def end_covers_what_a_thread_learned(book: LogBook) -> None:
    """At the end of a program the host knows what its threads know, without a CTA barrier."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1)
    book.barrier(sender)
    book.put(sender, 1)
    book.take(receiver, 1)
    book.end(receiver)
    book.read(1, 1)


def next_launch_follows_the_last(book: LogBook) -> None:
    """Launches of one rank are in order, all programs of them."""
    for _ in range(3):
        programs = book.launch(0, 2)
        for number, program in enumerate(programs):
            book.access(program, "write", (0, 4 * number, 4 * number + 4))
        book.end(*programs)
        book.read(0, 0)


def two_programs(*, apart: bool) -> Story:
    """Two programs of one launch write at once."""

    def story(book: LogBook) -> None:
        for number, program in enumerate(book.launch(0, 2)):
            start = 4 * number if apart else 0
            book.access(program, "write", (0, start, start + 4))

    return story


def both_strong(scope: str, other_scope: str, rank: int) -> Story:
    """A relaxed load and a relaxed store, of rank 0 and of `rank`."""

    def story(book: LogBook) -> None:
        one, other = (book.program(0), book.program(1)) if rank else book.launch(0, 2)
        book.write(one, 1, order="relaxed", scope=scope)
        book.read(other, 1, order="relaxed", scope=other_scope)

    return story


def relaxed_against_weak(book: LogBook) -> None:
    """A strong store and a weak load race."""
    book.write(book.program(0), 1, order="relaxed", scope="sys")
    book.read(book.program(1), 1)


def chain(kind: str) -> Story:
    """A third rank touches the word between the signal and the wait."""

    def story(book: LogBook) -> None:
        sender, third, receiver = book.program(0), book.program(2), book.program(1)
        book.write(sender, 1)
        book.barrier(sender)
        book.word(sender, "rmw", 1, 0, "release", 3, wrote=1)
        book.word(third, kind, 1, 0, "relaxed", 5, wrote=2 if kind == "rmw" else None)
        book.word(receiver, "read", 1, 0, "acquire", 4)
        book.barrier(receiver)
        book.read(receiver, 1)

    return story


def earlier_acquire(book: LogBook) -> None:
    """An acquire that comes before the release has not read from it."""
    sender, receiver = book.program(0), book.program(1)
    book.fail(receiver, 1)
    book.barrier(receiver)
    book.write(sender, 1)
    book.barrier(sender)
    book.put(sender, 1)
    book.read(receiver, 1)


def through_a_third(book: LogBook) -> None:
    """Happens before is transitive, across ranks."""
    first, second, third = (book.program(rank) for rank in range(3))
    book.write(first, 2)
    book.barrier(first)
    book.put(first, 1)
    book.take(second, 1)
    book.put(second, 2)
    book.take(third, 2)
    book.barrier(third)
    book.read(third, 2)


def thread_against_thread(book: LogBook) -> None:
    """What one thread wrote itself is published by its release without a CTA barrier."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1, lane=True)
    book.put(sender, 1)
    book.take(receiver, 1)
    book.read(receiver, 1, lane=True)


def fence_after_the_write(book: LogBook) -> None:
    """A relaxed store publishes what came before the fence, not what came between."""
    sender, receiver = book.program(0), book.program(1)
    book.fence(sender)
    book.write(sender, 1, lane=True)
    book.put(sender, 1, order="relaxed")
    book.take(receiver, 1)
    book.read(receiver, 1, lane=True)


def narrow_link(book: LogBook) -> None:
    """An update whose scope does not include the reader ends what the word carries to it."""
    sender, other = book.launch(0, 2)
    receiver = book.program(1)
    book.write(sender, 1)
    book.barrier(sender)
    book.word(sender, "rmw", 1, 0, "release", 3, wrote=1)
    book.word(other, "rmw", 1, 0, "relaxed", 5, scope="gpu", wrote=2)
    book.word(receiver, "read", 1, 0, "acquire", 4)
    book.barrier(receiver)
    book.read(receiver, 1)


def broken_link(book: LogBook) -> None:
    """A release of scope gpu does not live on in an update that another rank makes."""
    sender, receiver = book.launch(0, 2)
    other = book.program(1)
    book.write(sender, 1)
    book.barrier(sender)
    book.word(sender, "rmw", 1, 0, "release", 3, scope="gpu", wrote=1)
    book.word(other, "rmw", 1, 0, "relaxed", 5, wrote=2)
    book.word(receiver, "read", 1, 0, "acquire", 4)
    book.barrier(receiver)
    book.read(receiver, 1)


def released_by_block(book: LogBook) -> None:
    """Whoever has acquired a word that a block has released comes after that write, too."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1, order="release")
    book.read(receiver, 1, order="acquire")
    book.barrier(receiver)
    book.read(receiver, 1)


def one_thread_knows(book: LogBook) -> None:
    """A thread that waits writes in order; the others, before a barrier, do not."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1, lane=True)
    book.put(sender, 1)
    book.take(receiver, 1)
    book.write(receiver, 1, lane=True)
    book.write(receiver, 1)


def block_beside_thread(book: LogBook) -> None:
    """The release covers what its thread wrote, not what the others did before it."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1)
    book.write(sender, 1, lane=True)
    book.put(sender, 1)
    book.take(receiver, 1)
    book.read(receiver, 1, lane=True)


def weak_behind_strong(book: LogBook) -> None:
    """A strong load does not race with the strong store, but with the weak one before it."""
    book.write(0, 1)
    book.meet(0, 1)
    book.write(book.program(1), 1, order="relaxed")
    book.read(book.program(2), 1, order="relaxed")


def fence_before_the_barrier(book: LogBook) -> None:
    """Each thread has fenced its own stores; the one that signals has not fenced those of the others."""
    sender, receiver = book.program(0), book.program(1)
    book.write(sender, 1)
    book.fence(sender)
    book.barrier(sender)
    book.put(sender, 1, order="relaxed")
    book.take(receiver, 1)
    book.barrier(receiver)
    book.read(receiver, 1)


def reader_then_writer(book: LogBook) -> None:
    """A read and a later write race, whatever was read before."""
    book.read(1, 1)
    book.write(0, 1)


def two_readers_then_writer(book: LogBook) -> None:
    """Both reads are remembered."""
    book.read(0, 2)
    book.read(1, 2)
    book.meet(0, 2)
    book.write(2, 2)


ORDERED: dict[str, Story] = {
    "release and acquire": signalled(),
    "acq_rel on both sides": signalled("acq_rel", "acq_rel"),
    "fences around relaxed accesses": fenced(),
    "sequentially consistent fences": fenced(order="sc"),
    "a fence on one side is enough with a release on the other": signalled("release", "acquire"),
    "a collective of hosts": hosts(meeting=True),
    "one token of two": two_publish_one_token,
    "a launch and its end": launched(ended=True),
    "the end of a program": end_covers_what_a_thread_learned,
    "launches in a row": next_launch_follows_the_last,
    "programs on bytes of their own": two_programs(apart=True),
    "two strong accesses of scope sys": both_strong("sys", "sys", 1),
    "two strong accesses of scope gpu on one rank": both_strong("gpu", "sys", 0),
    "an update between release and acquire": chain("rmw"),
    "three ranks": through_a_third,
    "one thread on each side": thread_against_thread,
    "the word itself, after a release by a block": released_by_block,
}

RACY: dict[str, Story] = {
    "a relaxed signal": signalled("relaxed"),
    "an acquire where a release is needed": signalled("acquire"),
    "a relaxed wait": signalled(take="relaxed"),
    "a signal of scope gpu to another rank": signalled(put_scope="gpu"),
    "a wait of scope gpu for another rank": signalled(take_scope="gpu"),
    "no CTA barrier before the signal": signalled(close=False),
    "no CTA barrier after the wait": signalled(open_=False),
    "no fence before a relaxed signal": fenced(before=False),
    "no fence after a relaxed wait": fenced(after=False),
    "a fence before the CTA barrier, and none after it": fence_before_the_barrier,
    "a fence of scope gpu before a signal to another rank": fenced(scope="gpu"),
    "a fence of scope gpu after the wait for another rank": fenced(last_scope="gpu"),
    "an update of scope gpu between release and acquire": narrow_link,
    "an update that a release of scope gpu does not reach": broken_link,
    "a thread that knows, and others that do not": one_thread_knows,
    "a write of the block beside one of the thread that signals": block_beside_thread,
    "a weak write behind a strong one": weak_behind_strong,
    "hosts that do not meet": hosts(meeting=False),
    "a token published too late": late_token,
    "a launch that has not ended": launched(ended=False),
    "programs on the same bytes": two_programs(apart=False),
    "strong accesses, one of scope gpu, of two ranks": both_strong("gpu", "sys", 1),
    "strong accesses of scope cta": both_strong("cta", "cta", 0),
    "a strong and a weak access": relaxed_against_weak,
    "a plain store between release and acquire": chain("write"),
    "an acquire that came too early": earlier_acquire,
    "a fence before the write that it should publish": fence_after_the_write,
    "a read and a later write": reader_then_writer,
    "two reads and a write": two_readers_then_writer,
}


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_accesses_do_not_race(name: str) -> None:
    """Each way to order two accesses."""
    assert hits(told(ORDERED[name], 3).log) == []


@pytest.mark.parametrize("name", RACY)
def test_accesses_without_order_race(name: str) -> None:
    """Each way to order them, with one thing missing: a race, and brute force sees the same."""
    log = told(RACY[name], 3).log
    assert races(log)
    assert races(log) == {(first, second) for first, second, _ in racing_pairs(log)}


def test_a_multicast_store_races_with_the_reader_of_each_member() -> None:
    """One store, many regions."""
    book = LogBook(3)
    book.access(book.program(0), "write", *((2 * rank, 8, 16) for rank in range(3)), order="relaxed")
    for host in (1, 2):
        book.read(host, host, lane=False)
        book.access(host, "read", (2 * host, 0, 64))
    assert len(races(book.log)) == 2


# -- signals ----------------------------------------------------------------------------------------------------------


def ambiguous(log: MemoryLog) -> list[tuple[int, int]]:
    return [(hit.first, hit.second) for hit in hits(log) if hit.ambiguous]


def test_two_senders_on_one_word_are_ambiguous() -> None:
    """The receiver cannot tell whose signal it has got, even if every access is acq_rel."""
    for order in ("release", "acq_rel"):
        book = LogBook(3)
        one, other, receiver = (book.program(rank) for rank in range(3))
        book.put(one, 2, order=order)
        book.fail(other, 2, compare=0, order=order)
        book.take(receiver, 2, order=order)
        book.put(other, 2, order=order)
        assert len(ambiguous(book.log)) == 1


def test_one_sender_signals_again_and_again() -> None:
    """One sender and one receiver, within a launch and across launches, are no matter."""
    book = LogBook()
    for _ in range(3):
        sender, receiver = book.program(0), book.program(1)
        for _ in range(2):
            book.put(sender, 1)
            book.fail(sender, 1, compare=0)
            book.take(receiver, 1)
        book.end(sender)
        book.end(receiver)
    assert hits(book.log) == []


def test_senders_that_know_of_each_other_may_share_a_word() -> None:
    """A collective lies between the two uses."""
    book = LogBook(3)
    one, receiver = book.program(0), book.program(2)
    book.put(one, 2)
    book.take(receiver, 2)
    book.end(one)
    book.end(receiver)
    book.meet(0, 1, 2)
    book.put(book.program(1), 2)
    assert hits(book.log) == []


def test_a_lock_is_no_signal() -> None:
    """Who takes its own value away again is a holder of a lock."""
    book = LogBook(3)
    one, other = book.program(0), book.program(1)
    book.put(one, 2, order="acquire")
    book.fail(other, 2, compare=0)
    book.word(one, "rmw", 2, 0, "release", 5, wrote=0)
    book.put(other, 2, order="acquire")
    assert hits(book.log) == []


def test_signals_of_different_values_can_be_told_apart() -> None:
    """The value says who sent it."""
    book = LogBook(3)
    for rank in (0, 1):
        program = book.program(rank)
        book.word(program, "rmw", 2, 0, "release", 3, compare=0, wrote=rank + 1)
        book.word(2, "rmw", 2, 0, "acquire", 4, compare=rank + 1, wrote=0)
    assert hits(book.log) == []


def test_adders_may_share_a_word() -> None:
    """A counter counts all who come."""
    book = LogBook(3)
    for rank in (0, 1):
        book.word(book.program(rank), "rmw", 2, 0, "release", 3, wrote=rank + 1)
    assert hits(book.log) == []


# -- brute force -------------------------------------------------------------------------------------------------------

RANKS = 3


class World(NamedTuple):
    """Three hosts and two programs of each, from the start of the log on."""

    log: MemoryLog

    @classmethod
    def make(cls, events: Sequence[MemoryEvent]) -> World:
        actors = [Actor(rank, rank) for rank in range(RANKS)]
        actors += [Actor(RANKS + n, n // 2, "kernel", (n % 2, 0, 0), 0) for n in range(2 * RANKS)]
        regions = [Region(0, 0, "buffer", 8, "buffer of rank 0"), Region(1, 1, "buffer", 8, "buffer of rank 1")]
        return cls(MemoryLog(regions, actors, list(events)))


ACTORS = st.integers(0, 3 * RANKS - 1)
TOKENS = st.integers(0, 1)
SCOPES = st.sampled_from(["sys", "sys", "gpu", "cta"])
SPANS = st.lists(
    st.sampled_from([(0, 0, 2), (0, 1, 2), (0, 4, 8), (1, 0, 1), (1, 0, 8)]), min_size=1, max_size=2, unique=True
).filter(lambda spans: len({region for region, _, _ in spans}) == len(spans))


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    """Any access that a kernel or a host can make."""
    actor = draw(ACTORS)
    kind = draw(st.sampled_from(["read", "write", "rmw"]))
    orders = {"read": ["relaxed", "acquire"], "write": ["relaxed", "release"]}
    strong = orders.get(kind, ["relaxed", "acquire", "release", "acq_rel"])
    order = draw(st.sampled_from(strong if kind == "rmw" else ["weak", *strong]))
    compare = draw(st.sampled_from([None, 0, 1])) if kind == "rmw" else None
    wrote = draw(st.sampled_from([None, 1])) if compare is not None else None
    scope = "" if order == "weak" else draw(SCOPES)
    return Access(actor, kind, order, scope, tuple(sorted(draw(SPANS))), (), draw(st.booleans()), compare, wrote)


@st.composite
def handshakes(draw: st.DrawFn) -> list[MemoryEvent]:
    """A write, a signal, a wait and a read, so that order comes about more often than by chance."""
    sender, receiver = draw(ACTORS), draw(ACTORS)
    spans = ((1, 0, 8),)
    write = Access(sender, "write", "weak", "", spans, (), draw(st.booleans()))
    close = CtaBarrier(sender) if draw(st.booleans()) and sender >= RANKS else None
    put = Access(sender, "rmw", "release", draw(SCOPES), ((0, 0, 2),), (), True, None, 1)
    take = Access(receiver, "read", "acquire", draw(SCOPES), ((0, 0, 2),), (), True)
    open_ = CtaBarrier(receiver) if draw(st.booleans()) and receiver >= RANKS else None
    read = Access(receiver, "read", "weak", "", spans, (), draw(st.booleans()))
    return [event for event in (write, close, put, take, open_, read) if event is not None]


PROGRAMS = st.integers(RANKS, 3 * RANKS - 1)
ONE = st.one_of(
    accesses(),
    accesses(),
    st.builds(Fence, PROGRAMS, st.just("acq_rel"), SCOPES),
    st.builds(CtaBarrier, PROGRAMS),
    st.builds(Publish, ACTORS, TOKENS),
    st.builds(Observe, ACTORS, TOKENS),
)
EVENTS = st.lists(st.one_of(ONE.map(lambda event: [event]), handshakes()), max_size=14).map(
    lambda parts: [event for part in parts for event in part]
)


def touching(log: MemoryLog, byte: tuple[int, int]) -> tuple[int, ...]:
    """The accesses of one byte: equal for the bytes of one cell."""
    return tuple(
        number
        for number, event in enumerate(log.events)
        if isinstance(event, Access)
        and any(region == byte[0] and start <= byte[1] < stop for region, start, stop in event.spans)
    )


@settings(max_examples=250, deadline=None)
@given(EVENTS)
def test_it_agrees_with_brute_force(events: list[MemoryEvent]) -> None:
    """Every reported pair is a race, and every access that races is reported on each cell where it does."""
    log = World.make(events).log
    wanted = racing_pairs(log)
    history = History.of(log)
    found = [(hit, history.cells.places[hit.cell]) for hit in unordered(history)]
    assert {(hit.first, hit.second, place[:2]) for hit, place in found} <= wanted
    told = {(hit.second, touching(log, place[:2])) for hit, place in found}
    assert told == {(second, touching(log, byte)) for _, second, byte in wanted}


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.data())
def test_one_more_edge_adds_no_race(events: list[MemoryEvent], data: st.DataObject) -> None:
    """A token between any two actors at any place can only order more."""
    before = {(events[one], events[two]) for one, two in races(World.make(events).log)}
    at = data.draw(st.integers(0, len(events)))
    edge = [Publish(data.draw(ACTORS), "edge"), Observe(data.draw(ACTORS), "edge")]
    longer = [*events[:at], *edge, *events[at:]]
    later = {longer[two] for _, two in races(World.make(longer).log)}
    assert later <= {two for _, two in before}


@settings(max_examples=50, deadline=None)
@given(st.lists(accesses(), max_size=20))
def test_with_everybody_meeting_after_each_access_there_is_no_race(made: list[Access]) -> None:
    """A full barrier between any two accesses."""
    events: list[MemoryEvent] = []
    for number, access in enumerate(made):
        events.append(access)
        events += [Publish(actor, number) for actor in range(3 * RANKS)]
        events += [Observe(actor, number) for actor in range(3 * RANKS)]
    assert races(World.make(events).log) == set()


# -- cells and strands -----------------------------------------------------------------------------------------------


def test_bytes_that_are_always_touched_together_are_one_cell() -> None:
    """Rows of a block are one cell, however many; what another access cuts becomes cells of its own."""
    book = LogBook(1, nbytes=1024)
    rows = [(0, 64 * row, 64 * row + 16) for row in range(16)]
    book.access(0, "write", *rows)
    book.access(0, "read", (0, 0, 1024))
    assert [len(cells) for cells in cells_of(book.log.events, book.log.regions).of_event] == [1, 2]
    book.access(0, "read", (0, 0, 8))
    cells = cells_of(book.log.events, book.log.regions)
    assert [len(touched) for touched in cells.of_event] == [2, 3, 1]
    assert cells.places[cells.of_event[2][0]] == (0, 0, 8)


def test_spans_that_overlap_in_one_access_are_divided_all_the_same() -> None:
    """A log need not be tidy."""
    book = LogBook()
    book.access(0, "write", (2, 0, 16), (2, 8, 32))
    book.read(1, 1)
    assert len(races(book.log)) == 1


def test_the_last_of_many_launches_races_alone() -> None:
    """The launches before happen before it, so it stands for them all."""
    book = LogBook()
    for _ in range(50):
        programs = book.launch(0, 2)
        book.write(programs[0], 0)
        book.end(*programs)
    book.read(1, 0)
    assert len(races(book.log)) == 1


def test_a_collision_of_hashes_costs_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """If cells turn out not to be alike, every piece is a cell of its own."""
    log = told(signalled("relaxed")).log
    expected = races(log)
    monkeypatch.setattr("simulator.analysis.cells._hashed", lambda numbers: np.zeros(len(numbers), np.uint64))
    assert races(log) == expected
    assert len(cells_of(log.events, log.regions).places) > 1


def test_strands_pass_to_later_programs_only_if_those_know_of_the_earlier() -> None:
    """Programs that have ended lend their strands, so clocks stay as short as the run is wide."""
    actors = [Actor(0, 0), *(Actor(number, 0, "kernel", (0, 0, 0), number) for number in (1, 2, 3, 4))]
    timelines = Timelines(actors, has_ended=lambda number: number == 1)
    done = timelines.begun(1).publish()
    assert timelines.begun(2).lane != timelines.begun(1).lane
    timelines.of(3).learn(done, all_threads=True)
    third = timelines.begun(3)
    assert (third.block, third.lane) == (timelines.of(1).block, timelines.of(1).lane)
    assert not covers(done, *third.stamp(by_lane=True))
    assert not covers(done, *third.stamp(by_lane=False))
    timelines.of(4).learn(timelines.begun(2).publish(), all_threads=True)
    assert timelines.begun(4).lane not in (third.lane, timelines.of(2).lane)
