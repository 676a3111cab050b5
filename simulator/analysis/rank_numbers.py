"""A group rank given where torch takes a global one."""

from __future__ import annotations

from simulator.analysis.facts import listed, notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.records import GroupView, Note, Records


def foreign_ranks(records: Records) -> list[Finding]:
    """Roots and peers outside their group, on a line that works elsewhere; the code caught the error and went on."""
    together: dict[tuple[object, ...], list[Note]] = {}
    for note in notes_of(records, "foreign_rank"):
        if (
            note.facts["right_on"]
            and not note.facts["mended"]
            and records.ranks[note.rank].status not in ("exception", "exit")
        ):
            key = (note.facts["given"], note.facts["op"], note.facts["group"], note.stack[:1])
            together.setdefault(key, []).append(note)
    return [_foreign(notes) for notes in together.values()]


def _foreign(notes: list[Note]) -> Finding:
    first = notes[0]
    group: GroupView = first.facts["group"]
    given, op = first.facts["given"], first.facts["op"]
    ranks = tuple(sorted({note.rank for note in notes}))
    remedy = f"give one of its global ranks, {list(group.ranks)}"
    if given < len(group.ranks):
        remedy = f"give the global rank {group.ranks[given]}, or say that it is a group rank: group_src, group_dst"
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.TORCH,
        certainty=Certainty.SUSPECT,
        title=f"{listed(ranks)} gave {op} rank {given}, which is not in group '{group.label}', and caught the error",
        group=group.label,
        group_ranks=group.ranks,
        sides=(Side("gave", ranks, f"{op} with rank {given}", first.stack),),
        cause=f"{op} takes global ranks, and the members are {list(group.ranks)}; {listed(ranks)} went on without it",
        remedy=remedy,
        time_s=first.time_s,
    )


def lost_gradients(records: Records) -> list[Finding]:
    """torch.distributed.nn.functional.broadcast on a group in which global and group rank of the root differ."""
    notes = notes_of(records, "root_gradient")
    by_group: dict[GroupView, list[Note]] = {}
    for note in notes:
        by_group.setdefault(note.facts["group"], []).append(note)
    return [_lost(group, each) for group, each in by_group.items()]


def _lost(group: GroupView, notes: list[Note]) -> Finding:
    sides = tuple(
        Side(
            "root" if note.facts["is_root"] else "member",
            (note.rank,),
            "gets a zero gradient" if note.facts["is_root"] else "keeps the gradient of the root",
            note.stack,
        )
        for note in sorted(notes, key=lambda note: note.rank)
    )
    src = notes[0].facts["src"]
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"the gradient of a broadcast from rank {src} on group '{group.label}' goes to the wrong rank",
        group=group.label,
        group_ranks=group.ranks,
        sides=sides,
        cause=f"torch.distributed.nn.functional.broadcast compares its root {src}, a global rank, with group ranks",
        remedy="use a group in which both numbers are equal, or write the gradient's reduce yourself",
        time_s=notes[0].time_s,
    )
