"""What is said of accesses that nothing orders: which two, how many, why, and what would help."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from simulator import simulate
from simulator.analysis import cell_past
from simulator.analysis.findings import Certainty, Finding, Level, Verdict
from simulator.analysis.races import FINDINGS_MAX, races
from simulator.engine.site import Frame
from simulator.memory_records import Access, MemoryLog
from simulator.report.text import render_finding
from tests.unit.memory_logs import FILE, LogBook
from tests.unit.memory_runs import start
from tests.unit.test_happens_before import RACY, Story, fenced, signalled, told

REAL = "on a device either access may come first, or both at once: what is read may be old, new, or a mixture"


def only(log: MemoryLog) -> Finding:
    (finding,) = races(log)
    return finding


def of_buffer(log: MemoryLog) -> Finding:
    """The race of the data, beside those of the signals."""
    (finding,) = [finding for finding in races(log) if "buffer" in finding.title]
    return finding


def test_a_log_without_races_has_no_findings() -> None:
    """Nor has an empty one."""
    assert races(MemoryLog()) == []
    assert races(told(signalled()).log) == []


def test_the_whole_report_of_one_race() -> None:
    """As people read it."""
    assert render_finding(only(told(signalled("relaxed")).log)) == (
        "race: rank 0 writes and rank 1 reads the buffer of rank 1, and nothing orders the two\n"
        f"  racing: rank 0  program 0 of kernel gather writes bytes 0 to 4 of the buffer of rank 1 (weak)  {FILE}:2\n"
        f"  racing: rank 1  program 0 of kernel gather reads bytes 0 to 4 of the buffer of rank 1 (weak)  {FILE}:1\n"
        "  cause:   nothing orders rank 0's write to the buffer of rank 1 before rank 1's read of it: the "
        "compare-and-swap from\n"
        f"           0 at {FILE}:3 is relaxed at scope sys, where it takes release at scope sys\n"
        f"  remedy:  make the compare-and-swap from 0 at {FILE}:3 release at scope sys\n"
        f"  real:    {REAL}\n"
        "  level:   torch    certainty: cause"
    )


def test_a_race_is_a_cause_on_the_level_of_torch() -> None:
    """Both accesses are facts of the run."""
    finding = only(told(RACY["hosts that do not meet"]).log)
    assert (finding.kind, finding.level, finding.certainty) == (Verdict.RACE, Level.TORCH, Certainty.CAUSE)
    assert finding.ranks("racing") == (0, 1)


PUT, TAKE = f"compare-and-swap from 0 at {FILE}:3", f"compare-and-swap from 1 at {FILE}:4"
REMEDIES: dict[str, tuple[Story, str]] = {
    "relaxed signal": (signalled("relaxed"), f"make the {PUT} release at scope sys"),
    "relaxed wait": (signalled(take="relaxed"), f"make the {TAKE} acquire at scope sys"),
    "both": (
        signalled("relaxed", "relaxed"),
        f"make the {PUT} release at scope sys; make the {TAKE} acquire at scope sys",
    ),
    "scope of the signal": (signalled(put_scope="gpu"), f"make the {PUT} release at scope sys"),
    "scope of the wait": (signalled(take_scope="gpu"), f"make the {TAKE} acquire at scope sys"),
    "no barrier before": (
        signalled(close=False),
        "call tl.debug_barrier() between the write and the signal, so that all threads of the program have done their "
        "part of it",
    ),
    "no barrier after": (
        signalled(open_=False),
        "call tl.debug_barrier() between the wait and the read, so that no thread of the program is ahead of the one "
        "that waits",
    ),
    "no fence before": (fenced(before=False), f"make the {PUT} release at scope sys"),
    "no fence after": (fenced(after=False), f"make the {TAKE} acquire at scope sys"),
    "nothing at all": (
        RACY["hosts that do not meet"],
        "let rank 0 signal rank 1 after the write, or let both meet in a barrier or a collective before the read",
    ),
    "programs of one rank": (
        RACY["programs on the same bytes"],
        "give each of them bytes of its own, or let one signal the other",
    ),
    "scopes that do not meet": (
        RACY["strong accesses, one of scope gpu, of two ranks"],
        "use scope sys for both",
    ),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_remedy_is_what_makes_the_race_vanish(name: str) -> None:
    """Found by walking the log again with that added."""
    story, remedy = REMEDIES[name]
    assert of_buffer(told(story).log).remedy == remedy


def test_two_things_can_be_missing_at_once() -> None:
    """A relaxed signal, and no CTA barrier before it."""
    remedy = only(told(signalled("relaxed", close=False)).log).remedy
    assert f"make the {PUT} release at scope sys" in remedy
    assert "call tl.debug_barrier() between the write and the signal" in remedy


def test_atomics_that_have_nothing_to_do_with_it_are_not_named() -> None:
    """A relaxed counter beside the signal."""

    def count(book: LogBook) -> None:
        book.word(0, "rmw", 0, 5, "relaxed", 9, wrote=1)

    finding = only(told(signalled("relaxed", between=count)).log)
    assert f"{FILE}:9" not in finding.cause + finding.remedy


def test_a_strong_race_between_programs_says_on_which_rank() -> None:
    """Programs of one launch."""
    finding = only(told(RACY["programs on the same bytes"]).log)
    assert finding.title.startswith("on rank 0: program 0 writes and program 1 writes the buffer of rank 0")


def test_a_plain_store_is_no_signal() -> None:
    """The word itself races, and the remedy is to make it atomic."""
    book = LogBook()
    sender, receiver = book.program(0), book.program(1)
    book.access(sender, "write", (3, 0, 4), at=3)
    book.word(receiver, "read", 1, 0, "acquire", 4)
    finding = only(book.log)
    assert finding.cause.endswith(": a weak write is no signal")
    assert finding.remedy.startswith("make the write of the pad atomic: release where it signals")


def overwritten(book: LogBook, *, ahead: bool) -> None:
    """Rank 0 writes to rank 1 twice, and signals; rank 1 reads the first before or after the second comes."""
    for turn in (0, 1):
        sender, receiver = book.program(0), book.program(1)
        if turn and not ahead:
            book.read(1, 1)
        book.write(sender, 1)
        if turn and ahead:
            book.read(1, 1)
        book.barrier(sender)
        book.put(sender, 1)
        book.take(receiver, 1)
        book.barrier(receiver)
        book.end(sender)
        book.end(receiver)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_read_that_comes_after_one_write_is_late_for_the_next(ahead: bool) -> None:
    """Whichever of the two came first in this run."""
    book = LogBook()
    overwritten(book, ahead=ahead)
    finding = only(book.log)
    assert finding.cause == "nothing orders rank 1's read of its buffer before rank 0's next write to it"
    assert finding.remedy.endswith("before the next write; or use two buffers in turn")
    assert [side.ranks for side in finding.sides] == [(1,), (0,)]


def test_a_read_before_anybody_has_written_is_early() -> None:
    """Though it came first in this run; and if somebody had written before, the order of the run is told."""
    book = LogBook()
    book.read(1, 1)
    book.write(0, 1)
    finding = only(book.log)
    assert finding.cause == "nothing orders rank 0's write to the buffer of rank 1 before rank 1's read of it"
    book = LogBook()
    book.write(1, 1)
    book.read(1, 1)
    book.write(0, 1)
    finding = next(f for f in races(book.log) if "read" in f.cause)
    assert finding.cause == "nothing orders rank 1's read of its buffer before rank 0's write to it"


def test_races_of_one_pair_of_lines_are_counted() -> None:
    """Not shown one by one, whatever the rank, the bytes, or who comes first."""
    book = LogBook(4)
    for rank in (1, 2, 3):
        book.read(0, rank, at=1)
        book.write(rank, rank, at=2)
    book.write(0, 0, at=2)
    book.read(1, 0, at=1)
    assert "(4 such pairs of accesses; the first is shown)" in only(book.log).title


def test_one_access_is_counted_once_however_many_cells_it_touches() -> None:
    """A read of a buffer that was written in two pieces."""
    book = LogBook()
    for begin in (0, 8):
        book.access(0, "write", (2, begin, begin + 8), at=2)
    book.access(1, "read", (2, 0, 16))
    book.access(1, "read", (2, 0, 4))
    assert "(3 such pairs" in only(book.log).title


def test_a_bounded_number_is_shown_and_the_total_is_said() -> None:
    """Twelve pairs of lines."""
    book = LogBook()
    for line in range(12):
        book.access(0, "write", (2, 4 * line, 4 * line + 4), at=100 + line)
    book.access(1, "read", (2, 0, 64), at=1)
    found = races(book.log)
    assert len(found) == FINDINGS_MAX
    assert all(f"(12 pairs of places race; {FINDINGS_MAX} are shown)" in finding.title for finding in found)


def test_lines_of_a_function_that_kernels_share_are_told_apart_by_their_callers() -> None:
    """The innermost line is the same; the kernel's own line is not."""
    book = LogBook()
    book.access(0, "write", (2, 0, 4), at=2)
    for line in (10, 20):
        stack = (Frame(FILE, 1, "load"), Frame(FILE, line, "Outer.gather"), Frame(FILE, 99, "launch"))
        book.log.events.append(Access(book.program(1), "read", "weak", "", ((2, 0, 4),), stack))
    assert len(races(book.log)) == 2


def test_pieces_and_multicast_are_said() -> None:
    """What an access touches, in short."""
    book = LogBook()
    spans = [(region, start, start + 4) for region in (0, 2) for start in (0, 16, 32)]
    book.access(book.program(0), "write", *spans, order="relaxed")
    book.access(1, "read", (2, 16, 20))
    doing = only(book.log).sides[0].doing
    assert doing.endswith("writes bytes 16 to 20 and 2 more pieces of the buffer of rank 1 (relaxed.sys, multicast)")


def test_ambiguous_signals_come_first() -> None:
    """They explain the races that follow from them."""
    book = LogBook(3)
    one, other, receiver = (book.program(rank) for rank in range(3))
    book.write(one, 2)
    book.read(other, 2)
    book.put(one, 2)
    book.take(receiver, 2)
    book.put(other, 2)
    first, second = races(book.log)
    assert first.title == (
        "rank 0 and rank 1 put the same signal into one word of the signal pad of rank 2, and nothing orders them"
    )
    assert first.cause.startswith("whoever waits for bytes 0 to 4 of this pad cannot tell whose signal it has got")
    assert "buffer of rank 2" in second.title
    assert "(release.sys, compare-and-swap, 0 to 1)" in first.sides[0].doing


def test_long_logs_are_walked_in_time_that_grows_with_them() -> None:
    """Counted in comparisons with earlier accesses, not in seconds."""

    def comparisons(launches: int) -> int:
        book = LogBook(4, nbytes=1024)
        for _ in range(launches):
            everybody = [book.program(rank) for rank in range(4)]
            for sender in everybody:
                for rank in range(4):
                    book.put(sender, rank, slot=everybody.index(sender))
            for rank, receiver in enumerate(everybody):
                for slot in range(4):
                    book.take(receiver, rank, slot=slot)
                book.end(receiver)
        calls = 0
        real = cell_past.covers

        def counted(*args: object) -> bool:
            nonlocal calls
            calls += 1
            return real(*args)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cell_past, "covers", counted)
            assert races(book.log) == []
        return calls

    assert comparisons(40) < 3 * comparisons(20)


# -- on simulated ranks ------------------------------------------------------------------------------------------------


def writes_to_its_neighbour(rank: int, *, meet: bool, hang: bool = False) -> float:
    """Rank 0 fills rank 1's buffer by torch, and rank 1 reads it."""
    buffer, handle = start(64)
    if rank == 0:
        handle.get_buffer(1, (64,), torch.float32).fill_(1.0)
    if meet:
        dist.barrier()
    value = float(buffer.sum()) if rank == 1 else 0.0
    if hang and rank == 0:
        dist.barrier()
    return value


def test_hosts_that_do_not_meet_race_and_those_that_do_do_not() -> None:
    """By operators of torch, on real symmetric memory."""
    outcome = simulate(partial(writes_to_its_neighbour, meet=False), 2)
    assert outcome.verdict == "race"
    (finding,) = outcome.findings
    assert finding.cause.startswith("nothing orders rank 0's write to the buffer of rank 1 before rank 1's read of it")
    assert all(side.site is not None and side.site.file == __file__ for side in finding.sides)
    outcome = simulate(partial(writes_to_its_neighbour, meet=True), 2)
    assert (outcome.findings, outcome.results[1]) == ((), 64.0)


def test_a_deadlock_stands_before_a_race() -> None:
    """The verdict is that of what keeps the run from ending."""
    outcome = simulate(partial(writes_to_its_neighbour, meet=False, hang=True), 2)
    assert [finding.kind for finding in outcome.findings] == ["deadlock", "race"]


def test_the_same_seed_gives_the_same_report() -> None:
    """To the byte."""
    reports = {simulate(partial(writes_to_its_neighbour, meet=False), 2).report() for _ in range(3)}
    assert len(reports) == 1
