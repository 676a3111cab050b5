"""Groups that are made again under the keys that their first life left in the store."""

from __future__ import annotations

from simulator.analysis.facts import notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.records import Note, Records


def stale_keys(records: Records) -> list[Finding]:
    """A member came late to the second life: its peers have read its address of the first one."""
    return [_stale(note) for note in notes_of(records, "stale_keys")]


def _stale(note: Note) -> Finding:
    group, early, late = note.facts["group"], note.facts["early"], note.facts["late"]
    return Finding(
        kind=Verdict.RACE,
        level=Level.TORCH,
        certainty=Certainty.SUSPECT,
        title=f"group '{group.label}' is made a second time under the keys of its first life",
        group=group.label,
        group_ranks=group.ranks,
        sides=(
            Side("early", (early,), f"reads the old address of rank {late}", note.facts["early_stack"]),
            Side("late", (late,), f"comes {note.facts['late_s']:.3g} s later", note.stack),
        ),
        cause="gloo leaves the addresses of a group's members in the store; who comes before a peer has written its "
        "new one connects to the old one",
        remedy="give each life a prefix of its own, PrefixStore(f'life{n}', store), or let the ranks meet just before",
        at_other_level="of ten runs on real gloo with one rank late, two went well; the others hung or raised "
        "`Connection refused`",
        time_s=note.time_s,
    )
