"""What several findings on symmetric memory need: the meetings of a run, and a finding on one of them."""

from __future__ import annotations

from collections.abc import Callable

from simulator.analysis.facts import spelled
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.memory_records import MemoryLog, Offer, Rendezvous

Row = Callable[[Offer], str]
Key = tuple[str, tuple[int, ...]]


def complete(log: MemoryLog) -> list[Rendezvous]:
    """Those to which all ranks came."""
    return [meeting for meeting in log.meetings if len(meeting.offers) == len(meeting.ranks)]


def key_of(meeting: Rendezvous) -> Key:
    """The group of a meeting."""
    return meeting.name, meeting.ranks


def title_of(meeting: Rendezvous) -> str:
    """The meeting, for the title of a finding."""
    return f"rendezvous seq {meeting.seq} of group '{meeting.label}' {spelled(meeting.ranks)}"


def sides_of(log: MemoryLog, meeting: Rendezvous, row: Row, *, at_call: bool = False) -> tuple[Side, ...]:
    """What each rank brought, alike together, with where the buffer was allocated (or with the call)."""
    alike: dict[tuple[str, Stack], list[int]] = {}
    for rank in meeting.ranks:
        offer = meeting.offers[rank]
        stack = offer.stack if at_call else log.regions[offer.region].stack
        alike.setdefault((row(offer), stack), []).append(rank)
    return tuple(Side("gave", tuple(ranks), doing, stack) for (doing, stack), ranks in alike.items())


def finding_on(
    meeting: Rendezvous,
    title: str,
    sides: tuple[Side, ...],
    cause: str,
    remedy: str,
    real: str,
    *,
    level: Level = Level.TORCH,
    certainty: Certainty = Certainty.CAUSE,
    warning: bool = False,
) -> Finding:
    """A finding on a meeting, or on its group."""
    return Finding(
        kind=Verdict.MISMATCH,
        level=level,
        certainty=certainty,
        title=title,
        group=meeting.label,
        group_ranks=meeting.ranks,
        seq=meeting.seq,
        sides=sides,
        cause=cause,
        remedy=remedy,
        at_other_level=real,
        warning=warning,
    )
