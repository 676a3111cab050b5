"""Races on memory that ranks share: which two accesses nothing orders, and what is missing between them.

A race is a cause, not a suspicion: both accesses are facts of the run, and so is everything that could have ordered
them.  It does not hang on the order of the run, since devices may make the two accesses in the other order, or both at
once.  What hangs on it is what a rank does after it has read other data; so of many races the first is the surest.

Not modelled: see `happens_before`; and memory that only its own rank can reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.analysis.findings import Certainty, Finding, Level, Verdict
from simulator.analysis.happens_before import Hit, are_ordered, unordered
from simulator.analysis.memory_history import History
from simulator.analysis.race_causes import Causes, Missing, Place, RacePair, alike
from simulator.analysis.racing_access import RacingAccess, atomic
from simulator.memory_records import Access, MemoryLog

FINDINGS_MAX = 8
"""Pairs of places that get a finding of their own."""
REAL = "on a device either access may come first, or both at once: what is read may be old, new, or a mixture"


@dataclass(slots=True)
class _Tally:
    """Races that are alike: the first of them, how many there are, and those of the access counted last."""

    example: Hit
    count: int = 0
    second: int = -1
    firsts: frozenset[int] = frozenset()

    def add(self, hit: Hit) -> None:
        if hit.second != self.second:
            self.second, self.firsts = hit.second, frozenset()
        self.count += hit.first not in self.firsts
        self.firsts |= {hit.first}


def races(log: MemoryLog) -> list[Finding]:
    """All races of a run: one finding for each pair of places, ambiguous signals first, at most `FINDINGS_MAX`."""
    if not log.events:
        return []
    history = History.of(log)
    tallies = _counted(history)
    shown = list(tallies.values())[:FINDINGS_MAX]
    causes = Causes(history.until(max((tally.example.second for tally in shown), default=-1)))
    left = f" ({len(tallies)} pairs of places race; {FINDINGS_MAX} are shown)" if len(tallies) > FINDINGS_MAX else ""
    return [_finding(history, causes, tally, left) for tally in shown]


def _counted(history: History) -> Mapping[tuple[bool, RacePair], _Tally]:
    tallies: dict[tuple[bool, RacePair], _Tally] = {}
    for hit in unordered(history):
        tallies.setdefault((not hit.ambiguous, alike(history, hit)), _Tally(hit)).add(hit)
    return dict(sorted(tallies.items(), key=lambda item: item[0][0]))


def _finding(history: History, causes: Causes, tally: _Tally, left: str) -> Finding:
    hit = tally.example
    one, other = (RacingAccess.of(history, number, hit.cell) for number in (hit.first, hit.second))
    missing = Missing() if hit.ambiguous else causes.missing(alike(history, hit), wide=one.rank != other.rank)
    again = False
    if missing == Missing() and {one.access.kind, other.access.kind} == {"read", "write"}:
        one, other, again = _as_meant(history, hit, one, other)
    title, cause, remedy = _signals(one, other) if hit.ambiguous else _race(missing, one, other, again)
    times = f" ({tally.count} such pairs of accesses; the first is shown)" if tally.count > 1 else ""
    return Finding(
        kind=Verdict.RACE,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{title}{times}{left}",
        sides=(one.side, other.side),
        cause=cause,
        remedy=remedy,
        at_other_level=REAL if not hit.ambiguous else "",
    )


def _signals(one: RacingAccess, other: RacingAccess) -> tuple[str, str, str]:
    both = f"{one.who(other)} and {other.who(one)}" + (f" of rank {one.rank}" if one.rank == other.rank else "")
    return (
        f"{both} put the same signal into one word of the {one.region.label}, and nothing orders them",
        f"whoever waits for bytes {one.start} to {one.stop} of this pad cannot tell whose signal it has got: it may go "
        "on for one sender before the other has come",
        "give each sender, and each group that uses the pad, words of its own: another channel, or another buffer",
    )


def _race(missing: Missing, one: RacingAccess, other: RacingAccess, again: bool) -> tuple[str, str, str]:
    on = f"on rank {one.rank}: " if one.rank == other.rank else ""
    why, remedy = _why(missing, one, other, again)
    return (
        f"{on}{one.who(other)} {one.noun}s and {other.who(one)} {other.noun}s the {one.region.label}, and nothing "
        "orders the two",
        f"nothing orders {one.whose(other)} {one.where(other)} before {other.whose(one, again)} it{why}",
        remedy,
    )


def _as_meant(
    history: History, hit: Hit, one: RacingAccess, other: RacingAccess
) -> tuple[RacingAccess, RacingAccess, bool]:
    """A read and a write in the order in which they should come, and whether the write is a later turn of one before.

    If the read comes after the turn before, in order, it is late for this one.  If nobody has written before, it is
    early.  Else the order of the run is as good as the other.
    """
    read, write = (one, other) if one.access.kind == "read" else (other, one)
    past = [number for number in range(min(hit.first, hit.second)) if _writes(history, number, hit.cell)]
    place = Place.of(history, write.number)
    turns = [number for number in past if Place.of(history, number) == place and _rank(history, number) == write.rank]
    if turns and are_ordered(history.until(read.number), turns[-1], read.number):
        return read, write, True
    return (one, other, False) if past else (write, read, False)


def _writes(history: History, number: int, cell: int) -> bool:
    event = history.log.events[number]
    return isinstance(event, Access) and event.kind == "write" and cell in history.cells.of_event[number]


def _rank(history: History, number: int) -> int:
    return history.log.actors[history.log.events[number].actor].rank


def _why(missing: Missing, one: RacingAccess, other: RacingAccess, again: bool) -> tuple[str, str]:
    """The end of the sentence on the cause, and the remedy."""
    reasons, remedies = [], []
    for site, (order, scope) in missing.stronger.items():
        reasons.append(
            f"the {atomic(site)} is {site.order} at scope {site.scope}, where it takes {order} at scope {scope}"
        )
        remedies.append(f"make the {atomic(site)} {order} at scope {scope}")
    if missing.barrier_before:
        reasons.append(f"between the {one.noun} and the signal after it a CTA barrier is missing")
        remedies.append(
            f"call tl.debug_barrier() between the {one.noun} and the signal, so that all threads of the program have "
            "done their part of it"
        )
    if missing.barrier_after:
        reasons.append(f"between the wait for a signal and the {other.noun} a CTA barrier is missing")
        remedies.append(
            f"call tl.debug_barrier() between the wait and the {other.noun}, so that no thread of the program is ahead "
            "of the one that waits"
        )
    if reasons:
        return f": {'; '.join(reasons)}", "; ".join(remedies)
    return _without_signal(one, other, again)


def _without_signal(one: RacingAccess, other: RacingAccess, again: bool) -> tuple[str, str]:
    """Nothing that the run did would order them if it were stronger, or they need no order if they are."""
    weak = [each for each in (one, other) if each.access.order == "weak"]
    if one.region.kind == "pad" and len(weak) == 1:
        return (
            f": a weak {weak[0].noun} is no signal",
            f"make the {weak[0].noun} of the pad atomic: release where it signals, acquire where it waits, scope sys",
        )
    if not weak:
        scopes = f"{one.access.scope} of the first and {other.access.scope} of the second"
        return (
            f": both are strong, but their scopes ({scopes}) do not include each other",
            f"use scope {'gpu or sys' if one.rank == other.rank else 'sys'} for both",
        )
    if one.rank == other.rank:
        return "", "give each of them bytes of its own, or let one signal the other"
    between = f"let {one.who(other)} signal {other.who(one)} after the {one.noun}, or let both meet in a barrier or a "
    if again:
        return "", f"{between}collective before the next {other.noun}; or use two buffers in turn"
    return "", f"{between}collective before the {other.noun}"
