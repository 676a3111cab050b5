"""Asynchronous calls: tensors that are used before the end, handles that nobody waits for, threads on one group."""

from __future__ import annotations

from simulator.analysis.facts import listed, notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.records import Note, Records

Key = tuple[object, ...]


def early_uses(records: Records) -> list[Finding]:
    """A tensor that belongs to a call in flight was read or written."""
    return [_early_use(notes) for notes in _alike(records, "in_flight", "op", "how", "by", "group", "issued")]


def _early_use(notes: list[Note]) -> Finding:
    first, ranks = notes[0], _ranks(notes)
    op, how, by = first.facts["op"], first.facts["how"], first.facts["by"]
    user = by or "the code"
    return Finding(
        kind=Verdict.RACE,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"a tensor of {op} is {how} on {listed(ranks)} before the call is over" + (f", by {by}" if by else ""),
        group=first.facts["group"].label,
        group_ranks=first.facts["group"].ranks,
        sides=(
            Side("uses", ranks, f"the tensor is {how}" + (f" by {by}" if by else ""), first.stack),
            Side("issued", ranks, op, first.facts["issued"]),
        ),
        cause=f"nothing lets {user} wait for the end of {op}: whose data is there, is a matter of timing",
        remedy=f"wait() for the handle of {op} first, or use another tensor",
        time_s=first.time_s,
    )


def left_behind(records: Records) -> list[Finding]:
    """Handles that nobody waited for when the rank, or the group, came to its end."""
    return [_left(notes) for notes in _alike(records, "left_behind", "op", "group", "settled", "destroyed")]


def _left(notes: list[Note]) -> Finding:
    first, ranks = notes[0], _ranks(notes)
    op, group = first.facts["op"], first.facts["group"]
    end = "its group is destroyed" if first.facts["destroyed"] else "the rank ends"
    state = "was over" if first.facts["settled"] else "is still in flight"
    return Finding(
        kind=Verdict.LEAK,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{listed(ranks)} never waited for {op} on group '{group.label}', which {state} when {end}",
        group=group.label,
        group_ranks=group.ranks,
        sides=(Side("issued", ranks, op, first.stack),),
        cause=f"nobody waits for the handle of {op}, so nothing says that its data is there, or that it was sent",
        remedy="keep the handle and wait() for it",
        time_s=first.time_s,
    )


def threads_at_once(records: Records) -> list[Finding]:
    """Two threads of one rank were in collectives of one group at the same time."""
    found: dict[Key, list[Note]] = {}
    for note in notes_of(records, "threads_at_once"):
        found.setdefault((note.facts["group"], note.stack[:1], note.facts["other"][:1]), []).append(note)
    return [_at_once(notes) for notes in found.values()]


def _at_once(notes: list[Note]) -> Finding:
    first, ranks = notes[0], _ranks(notes)
    group = first.facts["group"]
    return Finding(
        kind=Verdict.RACE,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"two threads of {listed(ranks)} call collectives of group '{group.label}' at the same time",
        group=group.label,
        group_ranks=group.ranks,
        sides=(
            Side("thread", ranks, first.facts["op"], first.stack),
            Side("thread", ranks, first.facts["other_op"], first.facts["other"]),
        ),
        cause="the collectives of a group are matched by their order on each rank, and nothing orders these two",
        remedy="give each thread a group of its own, or let one thread make all calls",
        time_s=first.time_s,
    )


def _ranks(notes: list[Note]) -> tuple[int, ...]:
    return tuple(sorted({note.rank for note in notes}))


def _alike(records: Records, kind: str, *names: str) -> list[list[Note]]:
    """The notes of a kind, those together that say the same of the same line."""
    found: dict[Key, list[Note]] = {}
    for note in notes_of(records, kind):
        stack: Stack = note.stack[:1]
        key = (stack, *(_plain(note.facts[name]) for name in names))
        found.setdefault(key, []).append(note)
    return list(found.values())


def _plain(value: object) -> object:
    return value[:1] if isinstance(value, tuple) else value
