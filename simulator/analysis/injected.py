"""What injected faults have to do with the findings: which name them, and what they alone explain.

A fault is no finding: the code is meant to live with it. What the code makes of it may be one. A cause names a fault
only where the fault can be behind it: it ended one of the ranks, it held up what they wait for, or they failed of
something that took too long. Not looked at: what code did otherwise because a fault made it late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.analysis.facts import RunFacts, grouped, is_consequence, keys_of, listed
from simulator.analysis.findings import Certainty, Finding, Level, Verdict
from simulator.records import InjectedFault, RankRecord, Records

_STALLED = (Verdict.DEADLOCK, Verdict.LIVELOCK)
_CAN_FOLLOW = (*_STALLED, Verdict.EXCEPTION, Verdict.CRASH, Verdict.TIMEOUT)
_OF_NETWORK = ("DistNetworkError", "DistStoreError", "ConnectionError", "TimeoutError")
_OF_TIME = ("timed out", "timeout", "time-out", "connection closed", "connection reset")


def with_faults(found: Sequence[Finding], records: Records, facts: RunFacts) -> list[Finding]:
    """The findings, each with the faults behind it, and those that only faults explain."""
    found = [*_not_survived(found, records), *found, *_no_progress(records, facts)]
    return [_named(finding, records, facts) for finding in found]


def _not_survived(found: Sequence[Finding], records: Records) -> list[Finding]:
    """Ranks that failed because a fault had ended a peer: nothing else is to blame for it."""
    told = {rank for finding in found if not finding.warning for side in finding.sides for rank in side.ranks}
    failed = [r.rank for r in records.ranks.values() if is_consequence(r) and r.rank not in told]
    if not failed:
        return []
    lost = sorted({rank for fault in records.faults for rank in fault.killed})
    what = f"the loss of {listed(lost)}" if lost else "the injected faults"
    stuck = [r.rank for r in records.ranks.values() if r.status == "stuck" and r.rank not in told]
    return [
        Finding(
            kind=Verdict.EXCEPTION,
            level=Level.TORCH,
            certainty=Certainty.CAUSE,
            title=f"{listed(failed)} did not survive {what}",
            sides=(
                *grouped("lost", lost, records, records.final),
                *grouped("raised", failed, records, records.final),
                *grouped("stranded", stuck, records, records.final),
            ),
            cause="the connection to a peer closed, and the code does not handle the error",
            remedy="catch the error and go on without the rank, or restart all ranks together",
            time_s=min(records.ranks[rank].end_s or 0.0 for rank in failed),
        )
    ]


def _no_progress(records: Records, facts: RunFacts) -> list[Finding]:
    """The run went on and on after faults had ended, and nothing got done."""
    if records.idle_since_s is None:
        return []
    stuck = [record.rank for record in records.ranks.values() if record.status == "stuck"]
    return [
        Finding(
            kind=Verdict.LIVELOCK,
            level=Level.TORCH,
            certainty=Certainty.SUSPECT,
            title=f"nothing got done from {records.idle_since_s:g} s to {facts.end_s:g} s",
            sides=tuple(grouped("going on", stuck, records, records.final)),
            cause="ranks call again and again, but no collective or message completes and no rank ends",
            remedy="let the ranks agree again on who is there once a fault is over; give retries a bound",
            time_s=facts.end_s,
        )
    ]


def _named(finding: Finding, records: Records, facts: RunFacts) -> Finding:
    """With the faults that can be its cause in the cause, and when they ended if nothing moved after that."""
    if finding.warning:
        return finding
    before = _before(finding, records)
    direct = [fault for fault in before if _ranks_of(finding) & _hit(fault, records)]
    behind = direct or [fault for fault in before if _can_be_behind(fault, finding, records)]
    told = [f"the fault [{fault.text}] {_did(fault)}" for fault in behind]
    if before and not told and "the fault [" not in finding.cause:
        told.append("faults had struck before it; a run without them tells whether they matter")
    end_s = records.faults_end_s
    if end_s is not None and finding.kind in _STALLED and facts.end_s >= end_s:
        told.append(f"faults had ended at {end_s:g} s, and no progress followed")
    remedy = _remedy(finding, direct)
    return replace(finding, cause="; ".join([finding.cause, *told]), remedy=remedy)


def _ranks_of(finding: Finding) -> set[int]:
    return {rank for side in finding.sides for rank in side.ranks}


def _before(finding: Finding, records: Records) -> list[InjectedFault]:
    """Faults that struck before it, if it is of a kind that faults lead to, and those that ended one of its ranks."""
    mine = _ranks_of(finding)
    return [
        fault
        for fault in records.faults
        if fault.first is not None
        and fault.text not in finding.cause
        and (mine & _hit(fault, records) or (finding.kind in _CAN_FOLLOW and fault.first.time_s <= finding.time_s))
    ]


def _can_be_behind(fault: InjectedFault, finding: Finding, records: Records) -> bool:
    """Whether a fault that hit none of its ranks can be why they wait, or why they failed."""
    if finding.kind is Verdict.TIMEOUT:
        return True
    mine = _ranks_of(finding)
    if any(_out_of_reach(records.ranks[rank]) for rank in mine if rank in records.ranks):
        return True
    waited = {key for wait in records.final if wait.rank in mine for key in keys_of(wait)}
    gone = bool(_hit(fault, records))  # it may have been the one to set the key
    return bool(waited) and finding.kind in _STALLED and (gone or not waited.isdisjoint(fault.keys))


def _out_of_reach(record: RankRecord) -> bool:
    """The rank failed of something that took too long, or of a connection."""
    kind, text = record.error_type, record.error.lower()
    return record.status == "exception" and (kind in _OF_NETWORK or any(word in text for word in _OF_TIME))


def _hit(fault: InjectedFault, records: Records) -> set[int]:
    raised = {rank for rank in fault.ranks if rank in records.ranks and records.ranks[rank].fault == fault.text}
    return raised | set(fault.ended) | set(fault.killed)


def _did(fault: InjectedFault) -> str:
    """What came of a fault, for a sentence."""
    first = fault.first
    assert first is not None
    who = f"struck {listed(fault.ranks)}" if fault.ranks else "struck"
    when = f"at {first.time_s:g} s" if fault.count == 1 else f"from {first.time_s:g} s on, {fault.count} times"
    return f"{who} {when}: {first.text}"


def _remedy(finding: Finding, direct: Sequence[InjectedFault]) -> str:
    """What the code can do about the fault, where that is what is asked of it."""
    if finding.kind is Verdict.DEADLOCK and (direct or "the fault [" in finding.cause):
        return (
            "notice that a rank is gone or out of reach (a time-out, a heartbeat), let the others agree on who is "
            "there, and make their groups anew"
        )
    if finding.kind is Verdict.EXCEPTION and "InjectedError" in finding.title:
        return "let the code live with an exception at this place: handle it, or end all ranks together"
    return finding.remedy
