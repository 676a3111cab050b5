"""All findings of a run, in the order in which a reader wants them: what explains comes before what follows from it."""

from __future__ import annotations

from dataclasses import replace

from simulator.analysis import contracts, rank_numbers, requests, roles
from simulator.analysis.admission import explained_ends, is_join, left_outside, unadmitted
from simulator.analysis.deadlock import deadlocks
from simulator.analysis.early_exits import early_exits
from simulator.analysis.elastic import aborted, elastic
from simulator.analysis.facts import RunFacts, final_blocked, grouped, is_consequence, listed, notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.analysis.gpus import refused_ranks, shared_gpus, was_refused
from simulator.analysis.injected import with_faults
from simulator.analysis.modes import unlike_modes
from simulator.analysis.races import races
from simulator.analysis.raised import advice_on
from simulator.analysis.stale_keys import stale_keys
from simulator.analysis.symmetric import symmetric_memory
from simulator.engine.site import Stack
from simulator.records import Blocked, Gathering, Note, PeerWait, RankRecord, Records

INFINITY = float("inf")
SAME_MOMENT_S = 0.01
TIMEOUT_ERRORS = ("DistStoreError", "RuntimeError", "DistBackendError", "DistNetworkError", "TimeoutError")


def diagnose(records: Records, facts: RunFacts) -> tuple[Finding, ...]:
    """Everything that is wrong with the run."""
    explained = [
        *roles.probes(records, facts),
        *crashes(records, facts),
        *unlike_modes(records),
        *roles.alone_in_world(records),
        *contracts.missing_calls(records, facts),
        *roles.wrong_ranks(records, facts),
        *rank_numbers.foreign_ranks(records),
        *rank_numbers.lost_gradients(records),
        *symmetric_memory(records),
        *_wrong_devices(records),
        *left_outside(records),
        *exceptions(records),
        *requests.threads_at_once(records),
        *mismatches(records),
    ]
    stalls = _stalls(records, facts, explained)
    crossed = contracts.crossed_groups(records)
    if not (stalls or crossed or any(f.kind is Verdict.MISMATCH for f in explained)):
        crossed = contracts.differing_calls(records)
    found = [
        *explained,
        *stalls,
        *crossed,
        *elastic(records),
        *stale_keys(records),
        *races(records.memory),
        *requests.early_uses(records),
        *requests.left_behind(records),
        *_endless(records, facts),
        *early_exits(records),
    ]
    if records.faults:
        found = with_faults(found, records, facts)
    return tuple([f for f in found if not f.warning] + [f for f in found if f.warning])


# -- ranks that ended badly -------------------------------------------------------------------------------------


def crashes(records: Records, facts: RunFacts) -> list[Finding]:
    """Ranks that died as a native crash would kill them."""
    findings = []
    notes = {note.rank: note for note in notes_of(records, "crash")}
    for rank, record in sorted(records.ranks.items()):
        if record.status == "crash":
            findings.append(_crash(record, notes.get(rank), records))
    return findings


def _crash(record: RankRecord, note: Note | None, records: Records) -> Finding:
    told = None if note is None else aborted(note)
    if note is not None and told is not None:
        side = Side("aborted", (record.rank,), "SIGABRT", note.stack)
        return Finding(
            kind=Verdict.CRASH,
            level=Level.TORCH,
            certainty=Certainty.CAUSE,
            title=f"rank {record.rank} aborted: {note.text}",
            sides=(side, *_stranded(records, {record.rank})),
            cause=told[0],
            remedy=told[1],
            time_s=record.end_s or 0.0,
        )
    signal = -record.exit_code
    side = Side("crashed", (record.rank,), f"signal {signal}", note.stack if note is not None else record.stack)
    return Finding(
        kind=Verdict.CRASH,
        level=Level.TORCH,
        certainty=Certainty.SUSPECT if note is not None else Certainty.CAUSE,
        title=f"rank {record.rank} crashed with signal {signal}" + (f" in {note.text}" if note is not None else ""),
        sides=(side, *_stranded(records, {record.rank})),
        cause=note.text if note is not None else "the rank ended itself with a signal",
        remedy="do not run the code that crashes here; the other findings say why it ran"
        if note is not None
        else "see what raised the signal",
        time_s=record.end_s or 0.0,
    )


def exceptions(records: Records) -> list[Finding]:
    """Ranks that raised or left with an exit code, unless a time-out or a peer's end explains it."""
    timed_out = {
        note.rank for note in _timeouts(records) if note.kind == "timeout" or _moment_of(note, records) is not None
    }
    failed = [
        r
        for r in records.ranks.values()
        if r.status in ("exception", "exit")
        and not (is_consequence(r) or was_refused(r, records))
        and r.rank not in timed_out | explained_ends(records)
    ]
    alike: dict[tuple[str, object], list[RankRecord]] = {}
    for record in sorted(failed, key=lambda r: (r.end_s or 0.0, r.rank)):
        alike.setdefault((record.error_type or record.error, record.stack), []).append(record)
    return [_exception(group, records) for group in alike.values()]


def _timeouts(records: Records) -> list[Note]:
    """Time-outs that a rank did not survive: it ended with an error at the very moment."""
    notes = [*notes_of(records, "timeout"), *notes_of(records, "store_timeout")]
    return [note for note in notes if _ended_by(note, records.ranks[note.rank])]


def _ended_by(note: Note, record: RankRecord) -> bool:
    after_s = INFINITY if record.end_s is None else record.end_s - note.time_s
    return record.status == "exception" and record.error_type in TIMEOUT_ERRORS and 0 <= after_s <= SAME_MOMENT_S


def _exception(group: list[RankRecord], records: Records) -> Finding:
    first, ranks = group[0], tuple(r.rank for r in group)
    what = first.error or f"exit code {first.exit_code}"
    short = first.error_type or f"exit code {first.exit_code}"
    advice = advice_on(first)
    sides = (Side("raised", ranks, short, first.stack), *_stranded(records, set(ranks)))
    return Finding(
        kind=Verdict.EXCEPTION,
        level=Level.TORCH,
        certainty=advice.certainty,
        title=f"{listed(ranks)} ended with {what}" + (" (and the like)" if len({r.error for r in group}) > 1 else ""),
        sides=sides,
        cause=advice.cause + ("; what the other ranks do follows from it" if len(sides) > 1 else ""),
        remedy=advice.remedy,
        time_s=first.end_s or 0.0,
    )


def _stranded(records: Records, ended: set[int]) -> tuple[Side, ...]:
    """What became of the others: still waiting, or failed in their turn."""
    blocked = final_blocked(records)
    others = [
        record.rank
        for record in records.ranks.values()
        if record.rank not in ended and (record.status == "stuck" or is_consequence(record))
    ]
    return tuple(
        replace(side, doing="raised in its turn: connection closed by a peer") if "onnection" in side.doing else side
        for side in grouped("stranded", others, records, blocked)
    )


def _wrong_devices(records: Records) -> list[Finding]:
    """GPUs that ranks of one group share, with what became of the others."""
    found = shared_gpus(records)
    return [replace(f, sides=(*f.sides, *_stranded(records, refused_ranks(records)))) for f in found]


# -- mismatches --------------------------------------------------------------------------------------------------


def mismatches(records: Records) -> list[Finding]:
    """Collectives and messages that differ between ranks: one finding for each."""
    together: dict[object, list[Note]] = {}
    for note in notes_of(records, "mismatch"):
        key = (note.facts["group"], note.facts["seq"] if note.facts["seq"] is not None else len(together))
        together.setdefault(key, []).append(note)
    return [_mismatch(notes, records) for notes in together.values()]


def _mismatch(notes: list[Note], records: Records) -> Finding:
    note = notes[0]
    rows: dict[tuple[str, Stack], list[int]] = {}
    facts_of: dict[int, dict[str, object]] = {}
    for rank, facts, stack in (side for each in notes for side in each.facts["sides"]):
        if rank not in facts_of:
            facts_of[rank] = facts
            rows.setdefault((_row(facts), stack), []).append(rank)
    group = note.facts["group"]
    differing = _differing(list(facts_of.values()), is_message=note.facts["seq"] is None)
    return Finding(
        kind=Verdict.MISMATCH,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=note.text,
        group=group.label,
        group_ranks=group.ranks,
        seq=note.facts["seq"],
        sides=(*_gave(rows), *_also_waiting(set(facts_of), records)),
        cause=f"the ranks differ in: {', '.join(differing)}"
        if differing
        else "gloo takes the memory of a tensor as contiguous, whatever its strides",
        remedy=_mismatch_remedy(note.facts["seq"] is None, differing),
        at_other_level=_backend_on_mismatch(group.backend),
        time_s=note.time_s,
    )


def _gave(rows: dict[tuple[str, Stack], list[int]]) -> list[Side]:
    sides = [Side("gave", tuple(sorted(ranks)), row, stack) for (row, stack), ranks in rows.items()]
    return sorted(sides, key=lambda side: side.ranks)


def _also_waiting(known: set[int], records: Records) -> list[Side]:
    """Ranks that the run left waiting elsewhere."""
    stuck = [r.rank for r in records.ranks.values() if r.status == "stuck" and r.rank not in known]
    return grouped("also waiting", stuck, records, records.final)


def _differing(rows: list[dict[str, object]], *, is_message: bool) -> list[str]:
    """In what the rows differ: the operation alone if that does; a send and a receive differ in it anyway."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if not (is_message and name == "op")]
    differing = [name for name in names if len({str(row.get(name)) for row in rows}) > 1]
    return ["op"] if "op" in differing else differing


def _mismatch_remedy(is_message: bool, differing: list[str]) -> str:
    if not differing:
        return "pass a contiguous tensor: .contiguous()"
    if is_message:
        return "send and receive tensors of the same size and dtype"
    if differing == ["op"]:
        return "let every rank of the group enter the same collectives in the same order"
    return "let every rank of the group give matching arguments"


def _row(facts: dict[str, object]) -> str:
    rest = ", ".join(f"{name}={value}" for name, value in facts.items() if name != "op")
    return f"{facts.get('op')}({rest})"


def _backend_on_mismatch(backend: str) -> str:
    return {
        "gloo": "gloo checks nothing: sizes that differ abort a process or hang, equal sizes mix data silently",
        "nccl": "NCCL checks nothing: it hangs or corrupts data",
    }.get(backend, "Mooncake checks nothing: it returns wrong data without an error")


# -- runs that did not end ---------------------------------------------------------------------------------------


def _stalls(records: Records, facts: RunFacts, explained: list[Finding]) -> list[Finding]:
    """Deadlocks: at the end of the run, or at the moment before a time-out struck that a rank did not survive."""
    is_explained = _explains(explained) or bool(explained_ends(records))
    if facts.end == "QUIESCENT":
        if is_explained:
            return []
        others = [wait for wait in records.final if not is_join(wait)]
        return [*deadlocks(records, others, facts.end_s), *unadmitted(records, records.final, facts.end_s)]
    if is_explained:
        return []
    fatal, harmless = _timeouts(records), notes_of(records, "timeout")
    if fatal:
        moment = _moment_of(fatal[0], records)
        if moment is not None:
            return [_with_aftermath(f, records) for f in deadlocks(records, moment[1], moment[0])]
    return [_timeout(harmless, records)] if harmless else []


def _with_aftermath(finding: Finding, records: Records) -> Finding:
    """What the ranks of a deadlock raised once the time-outs struck."""
    mine = {rank for side in finding.sides for rank in side.ranks}
    raised = [r for r in mine if r in records.ranks and records.ranks[r].status == "exception"]
    return replace(finding, sides=(*finding.sides, *grouped("then", raised, records, ())))


def _moment_of(note: Note, records: Records) -> tuple[float, tuple[Blocked, ...]] | None:
    """The moment at which nothing but time-outs was left, and this rank was already where it then timed out."""
    found = None
    for moment in reversed([stall for stall in records.stalls if stall[0] <= note.time_s]):
        if any(b.rank == note.rank and b.stack[:1] == note.stack[:1] for b in moment[1]):
            found = moment
        elif found is not None:
            break
    return found


def _explains(explained: list[Finding]) -> bool:
    """A crash, an exception, a refused device or a mismatch has left the others waiting."""
    kinds = (Verdict.CRASH, Verdict.EXCEPTION, Verdict.MISMATCH, Verdict.WRONG_DEVICE)
    return any(f.kind in kinds and f.level is Level.TORCH and not f.warning for f in explained)


def _timeout(notes: list[Note], records: Records) -> Finding:
    """Collectives that timed out and whose rank went on: the code handled the error, or a peer came later."""
    first = notes[0]
    ranks = tuple(sorted({note.rank for note in notes}))
    what, doing = first.facts.get("what"), first.facts.get("doing", first.text)
    late = what.missing if isinstance(what, Gathering) else (what.peer,) if isinstance(what, PeerWait) else ()
    creates = isinstance(what, Gathering) and what.op == "create"
    sides = [
        Side("timed out", ranks, doing, first.stack),
        *grouped("missing" if creates else "late", late, records, records.final),
        *grouped("then", [rank for rank in ranks if records.ranks[rank].status == "exception"], records, ()),
    ]
    return Finding(
        kind=Verdict.TIMEOUT,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{doing} timed out on {listed(ranks)} at {first.time_s:g} s"
        + ("" if first.text == f"{doing} timed out" else f": {first.text}"),
        group=first.facts["group"].label,
        group_ranks=first.facts["group"].ranks,
        sides=tuple(sides),
        cause=f"{listed(late)} had not come by then" if late else "its peers had not come by then",
        remedy="let all members create the group, at nearly the same time; Mooncake waits 300 s for them, whatever "
        "time-out the group has"
        if creates and first.facts["group"].backend.startswith("mooncake")
        else "let the ranks come closer together, or give the group a longer time-out",
        time_s=first.time_s,
    )


def _endless(records: Records, facts: RunFacts) -> list[Finding]:
    if facts.end == "SPIN" and facts.spinner is not None:
        rank, stack = facts.spinner
        return [
            Finding(
                kind=Verdict.LIVELOCK,
                level=Level.TORCH,
                certainty=Certainty.UNDECIDED,
                title=f"rank {rank} ran for {facts.spin_wall_s:g} s of wall time without blocking",
                sides=(Side("spinning", (rank,), "runs", stack),),
                cause="it loops without waiting, computes for long, or blocks in something that is not simulated; the "
                "simulator cannot decide which",
                remedy="wait in a collective, a store, a lock or time.sleep; for long computation raise spin_wall_s "
                "(--spin-limit)",
            )
        ]
    if facts.end == "LIVELOCK":
        stuck = [record.rank for record in records.ranks.values() if record.status == "stuck"]
        sides = grouped("polling", stuck, records, records.final)
        return [
            Finding(
                kind=Verdict.LIVELOCK,
                level=Level.TORCH,
                certainty=Certainty.SUSPECT,
                title=f"{facts.idle_steps_max} steps without progress",
                sides=tuple(sides),
                cause="ranks poll or sleep again and again, and nothing changes",
                remedy="check that somebody still alive makes the polled condition true; give the loop a bound",
                time_s=facts.end_s,
            )
        ]
    return []
