"""Waits for words of shared memory that nobody writes: signals that do not come, kernels whose peers never launch."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.facts import grouped, listed
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.memory_records import WordWait
from simulator.records import Blocked, Records

REAL = "the kernel spins on the device without end; the host goes on until it synchronises with its stream"


def word_deadlock(
    head: Blocked, part: Sequence[Blocked], records: Records, blocked: Sequence[Blocked], cycle: str
) -> Finding:
    """The finding for waits of which `head`, for a word, is the first.

    Args:
        cycle: the sentence on the cycle that the waits form, if they do.
    """
    what = head.what
    assert isinstance(what, WordWait)
    alike = [b for b in part if isinstance(b.what, WordWait) and _name(b, records) == _name(head, records)]
    waiting = _waiting(alike, records)
    ranks = {rank for side in waiting for rank in side.ranks}
    wanted = sorted({rank for b in alike for rank in _wanted(b, part)} - ranks)
    others = [b.rank for b in part if b.rank not in ranks and b.rank not in wanted]
    return Finding(
        kind=Verdict.DEADLOCK,
        level=Level.TORCH,
        certainty=Certainty.CAUSE if wanted or cycle else Certainty.UNDECIDED,
        title=f"{_name(head, records)} cannot " + ("complete" if what.op else f"end on {listed(ranks)}"),
        group_ranks=what.group_ranks,
        sides=(
            *waiting,
            *grouped("missing", wanted, records, blocked),
            *grouped("also waiting", others, records, blocked),
        ),
        cause=cycle or _cause(head, alike),
        remedy="let all ranks of the group make the same barrier, put_signal and wait_signal calls on the same channels"
        if what.op
        else "let all ranks of the group launch the kernel equally often, with grids and pads that fit together",
        at_other_level=REAL,
    )


def _name(wait: Blocked, records: Records) -> str:
    """What waits, in the same words on each rank."""
    what = wait.what
    assert isinstance(what, WordWait)
    return what.op or f"kernel {records.memory.actors[what.actor].kernel}"


def _waiting(alike: Sequence[Blocked], records: Records) -> list[Side]:
    """Who waits, by place; of a kernel, with the number of its programs."""
    ranks: dict[Stack, dict[int, int]] = {}
    for b in alike:
        counts = ranks.setdefault(b.stack, {})
        counts[b.rank] = counts.get(b.rank, 0) + 1
    sides = []
    for stack, counts in ranks.items():
        most = max(counts.values())
        programs = f", {most} programs" if most > 1 else ""
        sides.append(Side("waiting", tuple(sorted(counts)), _name(alike[0], records) + programs, stack))
    return sides


def _wanted(wait: Blocked, part: Sequence[Blocked]) -> tuple[int, ...]:
    """Who has to write; if the code that waits does not say: all that can, and do not wait for a word themselves."""
    what = wait.what
    assert isinstance(what, WordWait)
    waiting = {b.rank for b in part if isinstance(b.what, WordWait)}
    return what.expected or tuple(rank for rank in what.group_ranks if rank not in waiting)


def _cause(head: Blocked, alike: Sequence[Blocked]) -> str:
    """What has not happened, as the first rank sees it."""
    assert isinstance(head.what, WordWait)
    told = head.what.told or f"nobody writes what it waits for: {head.text}"
    others = sorted({b.rank for b in alike} - {head.rank})
    return told + (f"; {listed(others)} likewise" if others else "")
