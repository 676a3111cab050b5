"""Signal pads that are too small or shared, and operators that want a multicast that is not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.analysis.facts import notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.analysis.rendezvous import complete, finding_on, key_of
from simulator.engine.site import Stack
from simulator.memory_records import MemoryLog, Rendezvous
from simulator.records import Note, Records


def shared_pads(log: MemoryLog) -> list[Finding]:
    """Buffers that were brought to several groups. One finding for each set of groups."""
    groups: dict[int, list[Rendezvous]] = {}
    for meeting in complete(log):
        if len(meeting.ranks) > 1 and not meeting.refused:
            for offer in meeting.offers.values():
                groups.setdefault(offer.region, []).append(meeting)
    alike: dict[tuple[str, ...], dict[int, list[Rendezvous]]] = {}
    for region, meetings in groups.items():
        if len({key_of(meeting) for meeting in meetings}) > 1:
            alike.setdefault(tuple(sorted({m.label for m in meetings})), {})[region] = meetings
    return [_sharing(log, labels, regions) for labels, regions in alike.items()]


def _sharing(log: MemoryLog, labels: Sequence[str], regions: dict[int, list[Rendezvous]]) -> Finding:
    first = next(iter(regions.values()))
    stacks: dict[Stack, list[int]] = {}
    for region in regions:
        stacks.setdefault(log.regions[region].stack, []).append(log.regions[region].rank)
    sides = [Side("gave", tuple(sorted(set(ranks))), "one buffer", stack) for stack, ranks in stacks.items()]
    return finding_on(
        first[-1],
        f"groups {', '.join(map(repr, labels))} share the signal pads of their buffers",
        tuple(sides),
        "a pad belongs to the buffer, and each group numbers its words by itself: channel times size plus rank; so a "
        "signal of one group may be taken by the other",
        "allocate a buffer for each group",
        "torch notices nothing; it goes well while the groups never use a pad at the same time",
        level=Level.CONTRACT,
        certainty=Certainty.SUSPECT,
        warning=True,
    )


def _ended(records: Records, notes: Iterable[Note]) -> bool:
    """Whether one of the ranks did not survive what was noted."""
    return any(records.ranks[note.rank].status != "ok" for note in notes if note.rank in records.ranks)


def _by_text(records: Records, kind: str) -> list[list[Note]]:
    alike: dict[str, list[Note]] = {}
    for note in notes_of(records, kind):
        alike.setdefault(note.text, []).append(note)
    return list(alike.values())


def _called(notes: Sequence[Note], doing: str) -> tuple[Side, ...]:
    stacks: dict[Stack, list[int]] = {}
    for note in notes:
        stacks.setdefault(note.stack, []).append(note.rank)
    return tuple(Side("called", tuple(sorted(set(ranks))), doing, stack) for stack, ranks in stacks.items())


def small_pads(records: Records) -> list[Finding]:
    """Calls that need more of a signal pad than there is; a warning if all ranks survived them."""
    return [_small_pad(notes, records) for notes in _by_text(records, "small_pad")]


def _small_pad(notes: Sequence[Note], records: Records) -> Finding:
    facts = notes[0].facts
    group, size = facts["group"], len(facts["group"].ranks)
    late = facts["configured"] > facts["has"]
    cause = f"the pads have {facts['has']} bytes, and {facts['needed']} are needed"
    if late:
        cause += f"; set_signal_pad_size({facts['configured']}) came after the buffer was allocated"
    elif facts["what"].startswith("channel"):
        cause += f": a channel takes 4 bytes for each of {size} ranks"
    return Finding(
        kind=Verdict.MISMATCH,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=notes[0].text + ", which are too small",
        group=group.label,
        group_ranks=group.ranks,
        sides=_called(notes, facts["call"]),
        cause=cause,
        remedy=f"call set_signal_pad_size with {facts['needed']} or more on all ranks before the buffer is allocated",
        at_other_level="torch believes the new size, and the kernel touches what lies behind the pad" if late else "",
        warning=not _ended(records, notes),
        time_s=notes[0].time_s,
    )


def without_multicast(records: Records) -> list[Finding]:
    """Operators of torch that need multicast where there is none."""
    return [
        Finding(
            kind=Verdict.MISMATCH,
            level=Level.TORCH,
            certainty=Certainty.CAUSE,
            title=f"{notes[0].text}, and there is none",
            sides=_called(notes, notes[0].text.split()[0]),
            cause="the devices of the cluster have no multicast (the option multicast is off)"
            if notes[0].facts["off"]
            else "TORCH_SYMM_MEM_DISABLE_MULTICAST=1 turns it off",
            remedy="ask whether multicast_ptr of the handle is 0, and take a path without multicast if it is",
            warning=not _ended(records, notes),
            time_s=notes[0].time_s,
        )
        for notes in _by_text(records, "no_multicast")
    ]
