"""Programs that rely on a collective that lets ranks go before all have come: a warning, of level contract."""

from __future__ import annotations

from simulator.analysis.facts import grouped, listed, notes_of, spelled
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.records import Blocked, Gathering, Note, Records


def early_exits(records: Records) -> list[Finding]:
    """One warning for each collective that some ranks left early, since nothing else could move, and others later."""
    together: dict[int, list[Note]] = {}
    for note in notes_of(records, "early_exit"):
        if not note.facts["gathering"].missing:
            together.setdefault(id(note.facts["gathering"]), []).append(note)
    return [_finding(notes, records) for notes in together.values()]


def as_if_they_had_stayed(blocked: tuple[Blocked, ...], records: Records) -> tuple[Blocked, ...]:
    """What waits, if nobody leaves a collective that never completes: a leave of no use explains nothing."""
    stayed: dict[int, Blocked] = {}
    for note in notes_of(records, "early_exit"):
        gathering: Gathering = note.facts["gathering"]
        if gathering.missing:
            text = f"{gathering.op} on group '{gathering.group.label}' seq {gathering.seq}"
            stayed.setdefault(note.rank, Blocked(note.rank, f"r{note.rank}", "collective", text, note.stack, gathering))
    others = [wait for wait in blocked if wait.rank not in stayed]
    return tuple(sorted((*others, *stayed.values()), key=lambda wait: wait.rank)) if stayed else blocked


def _finding(notes: list[Note], records: Records) -> Finding:
    gathering: Gathering = notes[0].facts["gathering"]
    missing, group = notes[0].facts["missing"], gathering.group
    ranks = tuple(sorted({note.rank for note in notes}))
    what = f"{gathering.op} seq {gathering.seq}"
    left = tuple(Side("left", (note.rank,), what, note.stack) for note in notes)
    return Finding(
        kind=Verdict.DEADLOCK,
        level=Level.CONTRACT,
        certainty=Certainty.SUSPECT,
        title=f"{what} of group '{group.label}' {spelled(group.ranks)}: {listed(ranks)} went on before "
        f"{listed(missing)} came",
        group=group.label,
        group_ranks=group.ranks,
        seq=gathering.seq,
        sides=(*left, *grouped("late", missing, records, records.final)),
        cause=f"{listed(missing)} cannot come before {listed(ranks)} has left"
        if len(ranks) == 1
        else f"{listed(missing)} cannot come before {listed(ranks)} have left",
        remedy="let all ranks enter this collective before they wait for each other elsewhere: a collective may wait "
        "for all of its ranks",
        at_other_level=f"{group.backend} lets a rank leave a {gathering.op} once those have come with whom it "
        "exchanges messages; a backend whose collectives wait for all ranks hangs here",
        warning=True,
        time_s=notes[0].time_s,
    )
