"""Who waits for whom, once nothing can move any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.analysis.contracts import first_difference
from simulator.analysis.facts import by_stack, grouped, keys_of, listed, reading, spelled, waits_for
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.analysis.memory_waits import word_deadlock
from simulator.memory_records import WordWait
from simulator.records import Blocked, Gathering, KeyWait, PeerWait, Records

_UNBLOCKED_BY_PEERS = ("collective", "create", "send", "recv", "membership", "word")


def deadlocks(records: Records, blocked: Sequence[Blocked], time_s: float, level: Level = Level.TORCH) -> list[Finding]:
    """One finding for each set of ranks that wait for each other (or for ranks that will never come)."""
    stuck = [b for b in blocked if b.kind in (*_UNBLOCKED_BY_PEERS, "store")]
    if not stuck:
        return _own_locks(records, blocked, time_s)
    return [_finding(part, records, blocked, time_s, level) for part in _components(stuck)]


def _components(stuck: Sequence[Blocked]) -> list[list[Blocked]]:
    """Waits that share a rank or a gathering, directly or through others; in rank order."""
    parts: list[tuple[set[object], list[Blocked]]] = []
    for wait in stuck:
        touched: set[object] = {wait.rank, *waits_for(wait)}
        touched |= {("what", id(wait.what))} if wait.what is not None else set()
        touched |= {("key", key) for key in keys_of(wait)}
        touched |= {("words of", frozenset(wait.what.group_ranks))} if isinstance(wait.what, WordWait) else set()
        joined = [wait]
        for part in [part for part in parts if part[0] & touched]:
            parts.remove(part)
            touched |= part[0]
            joined = part[1] + joined
        parts.append((touched, joined))
    return [sorted(waits, key=lambda b: (b.rank, b.thread)) for _, waits in parts]


def _finding(
    part: Sequence[Blocked], records: Records, blocked: Sequence[Blocked], time_s: float, level: Level
) -> Finding:
    head = _head(part)
    what = head.what
    if isinstance(what, WordWait):
        cycle = _cycle(part)
        told = _cycle_sentence(cycle) if cycle else ""
        return replace(word_deadlock(head, part, records, blocked, told), time_s=time_s, level=level)
    group = what.group if isinstance(what, Gathering | PeerWait) else None
    same = {b.rank: b.stack for b in part if b.what is what or (keys_of(head) and keys_of(b) == keys_of(head))}
    waiting = [_with_reading(side, part) for side in by_stack("waiting", _doing(head), same)]
    wanted = waits_for(head)
    if _store_barrier_name(head):
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
        at_other_level=_backend_sentence(head),
        time_s=time_s,
    )


def _with_reading(side: Side, part: Sequence[Blocked]) -> Side:
    """A side of ranks whose devices wait, with where their hosts do."""
    places = dict.fromkeys(reading(b) for b in part if b.rank in side.ranks)
    return replace(side, doing=side.doing + "".join(places))


def _head(part: Sequence[Blocked]) -> Blocked:
    """The wait to show first: a creation under several names, else the one that most ranks share, else the first."""
    skewed = [wait for wait in part if _is_skewed(wait, part)]
    counts: dict[int, int] = {}
    for wait in part:
        counts[id(wait.what)] = counts.get(id(wait.what), 0) + 1
    return max(skewed or part, key=lambda wait: (counts[id(wait.what)], -wait.rank))


def _is_skewed(wait: Blocked, part: Sequence[Blocked]) -> bool:
    """Others create the same list of ranks under another name."""
    mine = wait.what
    if not isinstance(mine, Gathering) or mine.op != "create":
        return False
    others = [b.what for b in part if isinstance(b.what, Gathering) and b.what.op == "create"]
    return any(o.group.ranks == mine.group.ranks and o.group.name != mine.group.name for o in others)


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
    if _store_barrier_name(wait):
        return f"the store barrier after the creation of group '{_store_barrier_name(wait)}' cannot complete"
    reason = isinstance(what, KeyWait) and what.reason
    return f"{wait.text} cannot end: nobody sets the key" if keys_of(wait) and not reason else f"{wait.text} cannot end"


def _store_barrier_name(wait: Blocked) -> str:
    """torch's name of the group whose barrier this is (TORCH_DIST_INIT_BARRIER=1), or nothing."""
    for key in keys_of(wait):
        _, found, rest = key.partition("store_based_barrier_key:")
        if found:
            return rest.removesuffix(":last_worker")
    return ""


def _cause(
    head: Blocked, part: Sequence[Blocked], records: Records, blocked: Sequence[Blocked]
) -> tuple[str, Certainty]:
    skew = _name_skew(head, part, records)
    if skew:
        return skew, Certainty.CAUSE
    tags = _tags_that_differ(part)
    if tags:
        return tags, Certainty.CAUSE
    cycle = _cycle(part)
    if cycle:
        return _cycle_sentence(cycle), Certainty.CAUSE
    wanted = waits_for(head)
    if wanted:
        return _absence(head, wanted, records, blocked), Certainty.CAUSE
    if _store_barrier_name(head):
        difference = first_difference(records)
        told = f"; {difference.sentence}" if difference is not None else _count_skew(records)
        return (
            f"not all ranks have come to it: the other ranks made no new_group call of that name{told}",
            Certainty.CAUSE,
        )
    if isinstance(head.what, KeyWait) and head.what.reason:
        return head.what.reason, Certainty.CAUSE
    if keys_of(head):
        return f"no rank sets {', '.join(map(repr, keys_of(head)[:4]))}", Certainty.CAUSE
    return "what it waits for did not happen; the simulator does not know who should have done it", Certainty.UNDECIDED


def _tags_that_differ(part: Sequence[Blocked]) -> str:
    """A send and a receive that would meet but for their tags."""
    waits = [wait.what for wait in part if isinstance(wait.what, PeerWait)]
    for send in (wait for wait in waits if wait.op == "send"):
        for receive in (wait for wait in waits if wait.op == "recv" and wait.group == send.group):
            meet = send.peer == receive.rank and receive.peer in (send.rank, -1)
            if meet and send.tag != receive.tag:
                got = f"rank {receive.rank} receives with tag {receive.tag}"
                return f"the tags differ: rank {send.rank} sends with tag {send.tag}, {got}"
    return ""


def _name_skew(head: Blocked, part: Sequence[Blocked], records: Records) -> str:
    """Members of one list wait under different names of it."""
    creations = [b.what for b in part if isinstance(b.what, Gathering) and b.what.op == "create"]
    names: dict[str, list[int]] = {}
    for wait in part:
        if isinstance(wait.what, Gathering) and wait.what.op == "create":
            names.setdefault(wait.what.group.name, []).append(wait.rank)
    lists = {gathering.group.ranks for gathering in creations}
    difference = first_difference(records)
    if len(names) > 1 and len(lists) < len(names):
        held = ", ".join(f"'#{name[:8]}' on {listed(ranks)}" for name, ranks in sorted(names.items()))
        earlier = f"; {difference.sentence}" if difference is not None else _count_skew(records)
        return f"the ranks hold different names for the group {list(min(lists))}: {held}{earlier}"
    return difference.sentence if difference is not None and creations else ""


def _count_skew(records: Records) -> str:
    for world in records.worlds.values():
        counts = {rank: world.count(rank) for rank in range(world.size) if rank in records.ranks}
        if len(set(counts.values())) > 1:
            alike: dict[int, list[int]] = {}
            for rank, count in counts.items():
                alike.setdefault(count, []).append(rank)
            held = ", ".join(f"{count} on {listed(ranks)}" for count, ranks in sorted(alike.items()))
            return f"; the ranks have made different numbers of new_group calls ({held})"
    return "; a local-sync group's name is a hash of its ranks and of a count that each process keeps, and these differ"


def _cycle(part: Sequence[Blocked]) -> list[Blocked]:
    """A cycle of waits: each waits for the next one's rank, the last for the first's."""
    by_rank = {b.rank: b for b in reversed(part)}
    for start in sorted(by_rank):
        path, seen = [start], {start: 0}
        while True:
            ahead = [r for r in waits_for(by_rank[path[-1]]) if r in by_rank]
            if not ahead:
                break
            if ahead[0] in seen:
                return [by_rank[rank] for rank in path[seen[ahead[0]] :]]
            seen[ahead[0]] = len(path)
            path.append(ahead[0])
    return []


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
    if never:
        return f"{listed(never)} does not exist in this cluster" if len(never) == 1 else f"{listed(never)} do not exist"
    if ended:
        verb = "has" if len(ended) == 1 else "have"
        what = "taking part in this creation" if op == "create" else f"entering this {op}"
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
    if isinstance(what, Gathering):
        return "let every rank of the group enter the same collectives in the same order, or none"
    if _tags_that_differ(part):
        return "use one tag on both sides"
    kinds = {wait.kind for wait in part}
    if kinds == {"send"}:
        return "post the receive first on one side, or use isend/irecv or batch_isend_irecv"
    if kinds == {"recv"} and _cycle(part):
        return "send before you receive on one side, or use isend/irecv or batch_isend_irecv"
    if isinstance(what, PeerWait):
        return "post the matching send or receive on the other side, on the same group and with the same tag"
    return "set the key on some rank before this wait, or give the wait a time-out and handle it"


def _backend_sentence(head: Blocked) -> str:
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
    }.get(what.group.backend, "Mooncake waits without end: it ignores the group's time-out")


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
