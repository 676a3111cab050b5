"""Who waits for whom, once nothing can move any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.analysis.contracts import first_difference
from simulator.analysis.facts import by_stack, grouped, keys_of, listed, reading, spelled, waits_for
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.analysis.memory_waits import word_deadlock
from simulator.analysis.name_skew import before_growth, count_skew, name_skew, renamed
from simulator.analysis.partnerless import joined
from simulator.analysis.wait_graph import cycle_from, explaining, is_dead, node_of, shared_by, store_barrier_name
from simulator.memory_records import WordWait
from simulator.records import Blocked, Gathering, KeyWait, PeerWait, Records

_UNBLOCKED_BY_PEERS = ("collective", "create", "send", "recv", "membership", "word")


def deadlocks(records: Records, blocked: Sequence[Blocked], time_s: float, level: Level = Level.TORCH) -> list[Finding]:
    """One finding for each set of ranks that wait for each other (or for ranks that will never come)."""
    stuck = [b for b in blocked if b.kind in (*_UNBLOCKED_BY_PEERS, "store")]
    if not stuck:
        return _own_locks(records, blocked, time_s)
    parts = _components(stuck)
    heads = [_head(part, records) for part in parts]
    return joined(
        [(head, _finding(head, part, records, blocked, time_s, level)) for head, part in zip(heads, parts, strict=True)]
    )


def _components(stuck: Sequence[Blocked]) -> list[list[Blocked]]:
    """Waits that share a rank or a gathering, directly or through others; in rank order."""
    parts: list[tuple[set[object], list[Blocked]]] = []
    for wait in stuck:
        touched: set[object] = {wait.rank, *waits_for(wait)}
        touched |= {("what", id(wait.what))} if wait.what is not None else set()
        touched |= {("key", key) for key in keys_of(wait)}
        touched |= {("words of", frozenset(wait.what.group_ranks))} if isinstance(wait.what, WordWait) else set()
        together = [wait]
        for part in [part for part in parts if part[0] & touched]:
            parts.remove(part)
            touched |= part[0]
            together = part[1] + together
        parts.append((touched, together))
    return [sorted(waits, key=lambda b: (b.rank, b.thread)) for _, waits in parts]


def _finding(
    head: Blocked,
    part: Sequence[Blocked],
    records: Records,
    blocked: Sequence[Blocked],
    time_s: float,
    level: Level,
) -> Finding:
    what = head.what
    if isinstance(what, WordWait):
        cycle = _any_cycle(part)
        told = _cycle_sentence(cycle) if cycle else ""
        return replace(word_deadlock(head, part, records, blocked, told), time_s=time_s, level=level)
    group = what.group if isinstance(what, Gathering | PeerWait) else None
    same = {b.rank: b.stack for b in part if b.what is what or (keys_of(head) and keys_of(b) == keys_of(head))}
    waiting = [_with_reading(side, part) for side in by_stack("waiting", _doing(head), same)]
    wanted = waits_for(head)
    if store_barrier_name(head):
        wanted = tuple(rank for rank in sorted(records.ranks) if rank not in same)
    missing = grouped("missing", wanted, records, blocked)
    others = [b for b in part if b.rank not in same and b.rank not in wanted]
    also = grouped("also waiting", [b.rank for b in others], records, blocked)
    cause, certainty = _cause(head, part, records, blocked)
    return Finding(
        kind=Verdict.DEADLOCK,
        level=level,
        certainty=certainty,
        title=_title(head),
        group=group.label if group is not None else "",
        group_ranks=group.ranks if group is not None else (),
        seq=what.seq if isinstance(what, Gathering) else None,
        sides=(*waiting, *missing, *also),
        cause=cause,
        remedy=_remedy(head, part, records),
        at_other_level=_backend_sentence(head, records),
        time_s=time_s,
    )


def _with_reading(side: Side, part: Sequence[Blocked]) -> Side:
    """A side of ranks whose devices wait, with where their hosts do."""
    places = dict.fromkeys(reading(b) for b in part if b.rank in side.ranks)
    return replace(side, doing=side.doing + "".join(places))


def _head(part: Sequence[Blocked], records: Records) -> Blocked:
    """The wait to show first: one under several names of its group, else the one that explains the others."""
    if any(isinstance(wait.what, WordWait) for wait in part):
        counts = {id(wait.what): sum(other.what is wait.what for other in part) for wait in part}
        return max(part, key=lambda wait: (counts[id(wait.what)], -wait.rank))
    several = {id(what) for what in renamed(part, records)}
    skewed = [wait for wait in part if id(wait.what) in several]
    shared = shared_by(part)
    return max(skewed or explaining(part), key=lambda wait: (shared[node_of(wait)], -wait.rank))


def _doing(wait: Blocked) -> str:
    what = wait.what
    return f"{what.op} seq {what.seq}" if isinstance(what, Gathering) and what.seq is not None else wait.text


def _title(wait: Blocked) -> str:
    what = wait.what
    if isinstance(what, Gathering):
        seq = "" if what.seq is None else f" seq {what.seq}"
        verb = f"{what.op}{seq}" if what.op != "create" else "creation"
        return f"{verb} of group '{what.group.label}' {spelled(what.group.ranks)} cannot complete"
    if isinstance(what, PeerWait):
        return f"{wait.text} cannot complete"
    if store_barrier_name(wait):
        return f"the store barrier after the creation of group '{store_barrier_name(wait)}' cannot complete"
    reason = isinstance(what, KeyWait) and what.reason
    return f"{wait.text} cannot end: nobody sets the key" if keys_of(wait) and not reason else f"{wait.text} cannot end"


def _cause(
    head: Blocked, part: Sequence[Blocked], records: Records, blocked: Sequence[Blocked]
) -> tuple[str, Certainty]:
    skew = name_skew(part, records)
    if skew:
        return skew, Certainty.CAUSE
    tags = _tags_that_differ(head, part)
    if tags:
        return tags, Certainty.CAUSE
    if isinstance(head.what, Gathering | PeerWait) and head.what.held_by:
        return f"the fault [{head.what.held_by}] keeps the ranks from reaching each other", Certainty.CAUSE
    cycle = [] if is_dead(head, part) else cycle_from(head, part)
    if cycle:
        return _cycle_sentence(cycle), Certainty.CAUSE
    wanted = waits_for(head)
    if wanted:
        return _absence(head, wanted, records, blocked) + _too_late(head, part), Certainty.CAUSE
    if store_barrier_name(head):
        difference = first_difference(records)
        told = f"; {difference.sentence}" if difference is not None else before_growth(records) or count_skew(records)
        return (
            f"not all ranks have come to it: the other ranks made no new_group call of that name{told}",
            Certainty.CAUSE,
        )
    if isinstance(head.what, KeyWait) and head.what.reason:
        return head.what.reason, Certainty.CAUSE
    if keys_of(head):
        return f"no rank sets {', '.join(map(repr, keys_of(head)[:4]))}", Certainty.CAUSE
    return "what it waits for did not happen; the simulator does not know who should have done it", Certainty.UNDECIDED


def _too_late(head: Blocked, part: Sequence[Blocked]) -> str:
    """The ranks that are missing wait for keys that those who wait here may mean to set."""
    keys = dict.fromkeys(key for b in part if b.rank in waits_for(head) for key in keys_of(b))
    mine = sorted({b.rank for b in part if node_of(b) == node_of(head)})
    if not keys:
        return ""
    verb = "is" if len(mine) == 1 else "are"
    return f"; no rank has set {', '.join(map(repr, list(keys)[:4]))}, and {listed(mine)} {verb} held up here"


def _tags_that_differ(head: Blocked, part: Sequence[Blocked]) -> str:
    """A send and a receive that would meet but for their tags, one of them `head`."""
    waits = [wait.what for wait in part if isinstance(wait.what, PeerWait)]
    for send in (wait for wait in waits if wait.op == "send"):
        for receive in (wait for wait in waits if wait.op == "recv" and wait.group == send.group):
            meet = send.peer == receive.rank and receive.peer in (send.rank, -1)
            if meet and send.tag != receive.tag and head.what in (send, receive):
                got = f"rank {receive.rank} receives with tag {receive.tag}"
                return f"the tags differ: rank {send.rank} sends with tag {send.tag}, {got}"
    return ""


def _any_cycle(part: Sequence[Blocked]) -> list[Blocked]:
    """The first cycle of waits, if there is one."""
    return next((found for found in (cycle_from(wait, part) for wait in part) if found), [])


def _cycle_sentence(cycle: Sequence[Blocked]) -> str:
    steps = [
        f"rank {wait.rank} in {wait.text} waits for rank {after.rank}"
        for wait, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
    ]
    return "a cycle: " + "; ".join(steps)


def _absence(head: Blocked, wanted: Iterable[int], records: Records, blocked: Sequence[Blocked]) -> str:
    ended = [r for r in wanted if r in records.ranks and records.ranks[r].status != "stuck"]
    never = [r for r in wanted if r not in records.ranks]
    op = head.what.op if isinstance(head.what, Gathering | PeerWait) else head.text
    unborn = [rank for rank in never if any(rank in fault.ended for fault in records.faults)]
    if unborn:
        return f"{listed(unborn)} never started"
    if never:
        return f"{listed(never)} does not exist in this cluster" if len(never) == 1 else f"{listed(never)} do not exist"
    if ended:
        killed = [r for r in ended if records.ranks[r].status == "killed"]
        if killed:
            return f"{listed(killed)} {'was' if len(killed) == 1 else 'were'} killed before entering this {op}"
        verb = "has" if len(ended) == 1 else "have"
        what = {
            "create": "taking part in this creation",
            "send": "a receive that matches",
            "recv": "a send that matches",
        }.get(op, f"entering this {op}")
        return f"{listed(ended)} {verb} ended without {what}"
    goal = "this creation" if op == "create" else f"this {op}"
    reasons = [f"{listed(side.ranks)} {side.doing}" for side in grouped("", wanted, records, blocked)]
    return f"not all ranks reach {goal}: {'; '.join(reasons)}"


def _remedy(head: Blocked, part: Sequence[Blocked], records: Records) -> str:
    what = head.what
    if isinstance(what, Gathering) and what.op == "create" and what.group.label == "WORLD":
        return (
            "let as many ranks as the world size call init_process_group; who joins a running world needs a backend "
            "that can extend it (Mooncake's is_extension), or a world of its own cohort"
        )
    if isinstance(what, Gathering) and what.op == "create":
        return "let all members (in world mode: all ranks) make the same new_group calls in the same order"
    if isinstance(what, Gathering) and what.op == "rendezvous":
        return "let every rank of the group bring as many buffers to a rendezvous, in the same order"
    if isinstance(what, Gathering) and renamed(part, records):
        return "let all ranks make the same new_group calls in the same order, members or not"
    if isinstance(what, Gathering) and _too_late(head, part):
        return f"set the key before this {what.op}, or enter it before the wait for the key"
    if isinstance(what, Gathering):
        return "let every rank of the group enter the same collectives in the same order, or none"
    if _tags_that_differ(head, part):
        return "use one tag on both sides"
    kinds = {wait.kind for wait in part}
    if kinds == {"send"}:
        return "post the receive first on one side, or use isend/irecv or batch_isend_irecv"
    if kinds == {"recv"} and cycle_from(head, part):
        return "send before you receive on one side, or use isend/irecv or batch_isend_irecv"
    if isinstance(what, PeerWait):
        return "post the matching send or receive on the other side, on the same group and with the same tag"
    return "set the key on some rank before this wait, or give the wait a time-out and handle it"


def _backend_sentence(head: Blocked, records: Records) -> str:
    what = head.what
    if not isinstance(what, Gathering | PeerWait):
        return ""
    if what.op == "rendezvous":
        return "torch exchanges the handles through the group's store, and raises DistStoreError after its time-out"
    if what.op == "send" and what.group.backend == "nccl":
        return (
            "NCCL passes a message of a few bytes on through its buffers once the two ranks are connected; a large one "
            "holds its stream until the watchdog aborts the process (10 minutes by default)"
        )
    return {
        "gloo": "gloo waits for the group's time-out (30 minutes by default) and then raises; once a process has "
        "exited, its peers get `Connection closed by peer`",
        "nccl": "NCCL waits on the device until the watchdog aborts the process (10 minutes by default)",
    }.get(what.group.backend) or _mooncake_sentence(what, records)


def _mooncake_sentence(what: Gathering | PeerWait, records: Records) -> str:
    if what.op == "create":
        return "Mooncake waits 300 s for the members of a group, whatever its time-out, and then raises"
    if isinstance(what, PeerWait):
        return "Mooncake gives a message up after 10 s, and the wait returns without an error 30 s later"
    ended = [rank for rank in what.missing if rank in records.ranks and records.ranks[rank].end_s is not None]
    if ended and len(ended) == len(what.missing):
        return (
            f"Mooncake takes {listed(ended)} for dead once the process has exited, and goes on without it after about "
            "30 s: get_local_success is False; here a rank that has finished stays a member (docs/mooncake.md)"
        )
    return "Mooncake waits without end: it ignores the group's time-out"


def _own_locks(records: Records, blocked: Sequence[Blocked], time_s: float) -> list[Finding]:
    waits = [b for b in blocked if b.kind in ("lock", "thread")]
    if not waits:
        return []
    sides = tuple(Side("waiting", (b.rank,), f"{b.text} [{b.thread}]", b.stack) for b in waits)
    return [
        Finding(
            kind=Verdict.DEADLOCK,
            level=Level.TORCH,
            certainty=Certainty.CAUSE,
            title="threads wait for locks that nobody releases",
            sides=sides,
            cause="each waits for a lock, a queue or a thread of its own process",
            remedy="release or notify on every path, also when an exception is raised",
            time_s=time_s,
        )
    ]
