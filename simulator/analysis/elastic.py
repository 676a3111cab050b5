"""What goes wrong in elastic groups over Mooncake: data of fewer ranks than asked for, calls that waited.

A program that asks `get_local_success` (or looks at the mask or the epoch) after a collective knows that members were
missing, and is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.facts import grouped, listed, notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.records import Note, Records

ASK = "ask pg.get_local_success(work) after the wait (so use async_op=True), or look at the mask or the epoch"


def elastic(records: Records) -> list[Finding]:
    """All that the notes of a run tell."""
    return [
        *(_partial(notes, records) for notes in _alike(records, "partial", "group", "op", "missing")),
        *(_gave_up(notes, records) for notes in _alike(records, "gave_up", "group", "doing")),
        *(_before_join(notes) for notes in _alike(records, "before_join", "group", "op")),
        *(_held(notes, records) for notes in _alike(records, "held", "group", "call", "status")),
        *(_grown(notes) for notes in _alike(records, "grown_inside", "group", "seq")),
    ]


def _alike(records: Records, kind: str, *names: str) -> list[list[Note]]:
    """The notes of a kind that the program did not ask about, those together that say the same of the same line."""
    found: dict[tuple[object, ...], list[Note]] = {}
    for note in notes_of(records, kind):
        if not note.facts.get("asked", False):
            key = (note.stack[:1], *(note.facts[name] for name in names))
            found.setdefault(key, []).append(note)
    return list(found.values())


def _ranks(notes: Sequence[Note]) -> tuple[int, ...]:
    return tuple(sorted({note.rank for note in notes}))


def _sides(role: str, notes: Sequence[Note], doing: str) -> list[Side]:
    by_stack: dict[Stack, list[int]] = {}
    for note in notes:
        by_stack.setdefault(note.stack, []).append(note.rank)
    return [Side(role, tuple(sorted(set(ranks))), doing, stack) for stack, ranks in by_stack.items()]


def _partial(notes: list[Note], records: Records) -> Finding:
    """A collective went on without members that are gone."""
    first, ranks = notes[0], _ranks(notes)
    op, missing, group = (first.facts[name] for name in ("op", "missing", "group"))
    verb = "is" if len(missing) == 1 else "are"
    after = f" after {first.facts['waited_s']:.3g} s" if first.facts["waited_s"] else ""
    stale = (
        "" if first.facts["synced"] else "; auto_sync_on_failure is off, so later ones add what the dead sent before"
    )
    unseen = first.facts["mask"]
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.TORCH,
        certainty=Certainty.SUSPECT if unseen else Certainty.CAUSE,
        title=f"{op} on group '{group.label}' went on without {listed(missing)} on {listed(ranks)}, and nobody asked",
        group=group.label,
        group_ranks=group.ranks,
        seq=first.facts["seq"],
        sides=(
            *_sides("went on", notes, f"{op} returned{after}"),
            *grouped("missing", missing, records, records.final),
        ),
        cause=f"{listed(missing)} {verb} gone: Mooncake drops them and returns the data of the others without an error"
        + (" (the simulator cannot see whether the program reads its own mask tensor)" if unseen else ""),
        remedy=ASK,
        at_other_level=f"real Mooncake returns so as well{stale}",
        time_s=first.time_s,
    )


def _gave_up(notes: list[Note], records: Records) -> Finding:
    """A message that nobody took."""
    first, ranks = notes[0], _ranks(notes)
    doing, what, group = (first.facts[name] for name in ("doing", "what", "group"))
    return Finding(
        kind=Verdict.TIMEOUT,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{doing} returned on {listed(ranks)} after {first.facts['waited_s']:.3g} s although nobody met it",
        group=group.label,
        group_ranks=group.ranks,
        sides=(*_sides("went on", notes, what.op), *grouped("missing", (what.peer,), records, records.final)),
        cause=f"rank {what.peer} posted no matching {'receive' if what.op == 'send' else 'send'}; Mooncake gives the "
        "message up and returns without an error",
        remedy=f"post the other side on rank {what.peer}, and {ASK}",
        time_s=first.time_s,
    )


def _before_join(notes: list[Note]) -> Finding:
    """A joiner's collective before it has joined."""
    first, ranks = notes[0], _ranks(notes)
    op, group = first.facts["op"], first.facts["group"]
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{op} on group '{group.label}' runs alone on {listed(ranks)}, which {_have(ranks)} not joined it",
        group=group.label,
        group_ranks=group.ranks,
        sides=tuple(_sides("alone", notes, op)),
        cause="a joiner is isolated until join_group returns: its collectives give it its own data back, without an "
        "error; a broadcast from another rank overwrites its tensor",
        remedy="call pg.join_group(group) first, and let a serving rank call pg.recover_ranks",
        time_s=first.time_s,
    )


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _held(notes: list[Note], records: Records) -> Finding:
    """recover_ranks waited, and no other thread of that process ran meanwhile."""
    first, ranks = notes[0], _ranks(notes)
    late, waited_s, status = (first.facts[name] for name in ("late", "waited_s", "status"))
    group = first.facts["group"]
    why = f" ({first.facts['reason']})" if first.facts["reason"] else ""
    return Finding(
        kind=Verdict.TIMEOUT,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{first.facts['call']} held {listed(ranks)} for {waited_s:.3g} s: {status}{why}",
        group=group.label,
        group_ranks=group.ranks,
        sides=(*_sides("blocked", notes, first.facts["call"]), *grouped("late", late, records, records.final)),
        cause=f"slots {list(late)} had registered and not called join_group"
        if late
        else "a member did not confirm the change: its process is gone, and nobody knew",
        remedy="call recover_ranks only once pg.get_peer_state says True for all of them; it keeps the interpreter's "
        "lock while it waits, so no other thread of the process runs",
        warning=status == "Applied",
        time_s=first.time_s,
    )


def _grown(notes: list[Note]) -> Finding:
    """The group grew under a collective."""
    first, ranks = notes[0], _ranks(notes)
    op, grown, group = (first.facts[name] for name in ("op", "grown", "group"))
    return Finding(
        kind=Verdict.RACE,
        level=Level.TORCH,
        certainty=Certainty.SUSPECT,
        title=f"{listed(grown)} joined group '{group.label}' while {listed(ranks)} {_was(ranks)} inside {op}",
        group=group.label,
        group_ranks=group.ranks,
        seq=first.facts["seq"],
        sides=tuple(_sides("inside", notes, op)),
        cause="whether that collective counts the new members is a matter of timing: real ranks hung in some runs, and "
        "in one a rank went on with its own data alone",
        remedy="let all serving ranks agree on the moment, and admit between two collectives",
        at_other_level="here the collective waits for the new members",
        warning=True,
        time_s=first.time_s,
    )


def _was(ranks: Sequence[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def aborted(note: Note) -> tuple[str, str] | None:
    """Cause and remedy of an assertion of Mooncake that failed; None if the note is of another crash."""
    if not note.text.startswith("PGAssertionException"):
        return None
    if "chunk_len" in note.text:
        return (
            "the two sides of a message differ in size, and Mooncake's sender ends its process then",
            "send and receive tensors of the same size",
        )
    return (
        "it could not reach a peer and asked the coordinator what to do, but that is gone: it runs in the process of "
        "rank 0, and nobody outlives it",
        "keep rank 0 alive, or restart all ranks together when it is lost",
    )
