"""Joiners of elastic groups over Mooncake that stay outside: nobody admits them, or their number is another's."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.facts import by_stack, grouped, listed, notes_of, what_it_does
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.records import Blocked, Gathering, Note, Records

SAME_MOMENT_S = 0.01
_ENDS = {
    "not_admitted": "waitUntilRankActive timed out",
    "rank_taken": "timed out waiting for agent registration",
}
"""Notes that explain the exception after them, and its text."""
_WAITS = "Mooncake waits 300 s in join_group, with the interpreter's lock held, and then raises"


def explained_ends(records: Records) -> set[int]:
    """Ranks that ended with an exception that a finding of `left_outside` explains."""
    return {note.rank for kind in _ENDS for note in notes_of(records, kind) if _ended_by(note, records)}


def _ended_by(note: Note, records: Records) -> bool:
    record = records.ranks.get(note.rank)
    if record is None or record.status != "exception" or record.end_s is None:
        return False
    return _ENDS[note.kind] in record.error and record.end_s - note.time_s <= SAME_MOMENT_S


def left_outside(records: Records) -> list[Finding]:
    """Joiners that gave up, with what they raised: put before the exceptions of others, which may follow from it."""
    return [*_taken(records), *_given_up(records)]


def _raised(ranks: Sequence[int], records: Records) -> list[Side]:
    ended = explained_ends(records)
    return grouped("then", [rank for rank in ranks if rank in ended], records, ())


def _taken(records: Records) -> list[Finding]:
    """Second processes under a rank that is taken."""
    by_rank: dict[int, list[Note]] = {}
    for note in notes_of(records, "rank_taken"):
        by_rank.setdefault(note.facts["rank"], []).append(note)
    return [_taken_rank(taken, notes, records) for taken, notes in by_rank.items()]


def _taken_rank(taken: int, notes: Sequence[Note], records: Records) -> Finding:
    ranks = sorted({note.rank for note in notes})
    stacks = {note.rank: note.stack for note in notes}
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{listed(ranks)} could not register as rank {taken} of the deployment: another process holds it",
        sides=(*by_stack("refused", f"registers as rank {taken}", stacks), *_raised(ranks, records)),
        cause=f"rank {taken} lives, so Mooncake refuses a second process of that number and gives up after 30 s",
        remedy="shift the joiners' ranks by rank_offset; a replacement waits until the lost process counts as gone",
        time_s=notes[0].time_s,
    )


def _given_up(records: Records) -> list[Finding]:
    """Ranks whose `join_group` timed out and that ended with it, those of one group together."""
    gone: dict[tuple[str, str], list[Note]] = {}
    for note in notes_of(records, "not_admitted"):
        if _ended_by(note, records):
            gone.setdefault((note.facts["group"].name, note.facts["group"].label), []).append(note)
    return [
        _unadmitted(label, {note.rank: note.stack for note in notes}, records, records.final, notes[0].time_s)
        for (_, label), notes in gone.items()
    ]


def unadmitted(records: Records, blocked: Sequence[Blocked], time_s: float) -> list[Finding]:
    """Ranks that wait in `join_group` for good, those of one group together."""
    waiting: dict[tuple[str, str], dict[int, Stack]] = {}
    for wait in blocked:
        if is_join(wait):
            assert isinstance(wait.what, Gathering)
            waiting.setdefault((wait.what.group.name, wait.what.group.label), {})[wait.rank] = wait.stack
    return [_unadmitted(label, stacks, records, blocked, time_s) for (_, label), stacks in waiting.items()]


def is_join(wait: Blocked) -> bool:
    """It waits to be admitted."""
    return wait.kind == "membership" and isinstance(wait.what, Gathering) and wait.what.op == "join"


def _unadmitted(
    label: str, stacks: dict[int, Stack], records: Records, blocked: Sequence[Blocked], time_s: float
) -> Finding:
    ranks = tuple(sorted(stacks))
    raised, one = _raised(ranks, records), len(ranks) == 1
    others = [rank for rank, record in sorted(records.ranks.items()) if rank not in ranks and record.cohort == "launch"]
    rejected = _rejected(label, ranks, records)
    ended = all(what_it_does(rank, records, blocked)[0].startswith(("finished", "raised")) for rank in others)
    waits = "waited" if raised else "waits" if one else "wait"
    return Finding(
        kind=Verdict.DEADLOCK,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{listed(ranks)} {waits} in join_group on group '{label}', and nobody "
        + ("admitted " if raised else "admits ")
        + ("it" if one else "them"),
        group=label,
        group_ranks=ranks,
        sides=(
            *by_stack("waiting", "join_group", stacks),
            *(Side("rejected", (note.rank,), _shown(note), note.stack) for note in rejected),
            *grouped("not admitting", others, records, blocked),
            *raised,
        ),
        cause=_cause(rejected, grouped("", others, records, blocked), records),
        remedy=f"let one serving rank call pg.recover_ranks(group, {list(ranks)}) once get_peer_state says True"
        + (", look at the status of its answer" if rejected else "")
        + (", and keep serving until then" if ended else ""),
        at_other_level=_WAITS,
        time_s=time_s,
    )


def _rejected(label: str, ranks: Sequence[int], records: Records) -> list[Note]:
    """Proposals to admit some of `ranks` that were turned down."""
    return [
        note
        for note in notes_of(records, "rejected")
        if note.facts["group"].label == label
        and note.facts["call"].startswith("recover_ranks")
        and set(note.facts["ranks"]) & set(ranks)
    ]


def _shown(note: Note) -> str:
    times = note.facts["times"]
    often = f" ({times} times)" if times > 1 else ""
    return f"{note.facts['call']} at {note.time_s:.6g} s{often}: Rejected, {note.facts['reason']}"


def _cause(rejected: Sequence[Note], others: Sequence[Side], records: Records) -> str:
    doing = "; ".join(f"{listed(side.ranks)} {side.doing}" for side in others)
    if not rejected:
        return "no serving rank calls recover_ranks for them" + (f": {doing}" if doing else "")
    first = rejected[0]
    started_s = max(records.ranks[rank].start_s for rank in first.facts["ranks"] if rank in records.ranks)
    early = f", before all of them had started (at {started_s:.6g} s)" if started_s > first.time_s else ""
    return f"rank {first.rank} called {_shown(first)}{early}; no later call admits them"
