"""Groups of one list of ranks that have several names: which they are, and where the ranks began to differ.

torch names a group by a count of groups that each process keeps, or, with local synchronisation, by a hash.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.contracts import at_place, first_difference
from simulator.analysis.facts import listed, some, spelled
from simulator.records import Blocked, Gathering, GroupSlot, Records, WorldRecord

_HASH_DIGITS = 40


def renamed(part: Sequence[Blocked], records: Records) -> list[Gathering]:
    """What waits on groups of one list of ranks with several names: their creations, else, if the new_group calls of
    the ranks differ, their collectives."""
    created = [b.what for b in part if isinstance(b.what, Gathering) and b.what.op == "create"]
    waits = created
    if not created and first_difference(records) is not None:
        waits = [b.what for b in part if isinstance(b.what, Gathering)]
    names: dict[tuple[int, ...], set[str]] = {}
    for wait in waits:
        names.setdefault(wait.group.ranks, set()).add(wait.group.name)
    return [wait for wait in waits if len(names[wait.group.ranks]) > 1]


def name_skew(part: Sequence[Blocked], records: Records) -> str:
    """Why members of one list wait under different names of it; empty if they do not."""
    difference = first_difference(records)
    creations = [b.what for b in part if isinstance(b.what, Gathering) and b.what.op == "create"]
    counted = creations or (renamed(part, records) if difference is not None else [])
    names: dict[str, list[int]] = {}
    known = {id(gathering) for gathering in counted}
    for wait in part:
        if isinstance(wait.what, Gathering) and id(wait.what) in known:
            names.setdefault(wait.what.group.name, []).append(wait.rank)
    lists = {gathering.group.ranks for gathering in counted}
    if len(names) > 1 and len(lists) < len(names):
        held = ", ".join(f"'#{name[:8]}' on {listed(ranks)}" for name, ranks in sorted(names.items()))
        earlier = f"; {difference.sentence}" if difference is not None else _why(names, records)
        return f"the ranks hold different names for the group {list(min(lists))}: {held}{earlier}"
    return difference.sentence if difference is not None and creations else ""


def _why(names: dict[str, list[int]], records: Records) -> str:
    hashes = [name for name in names if _is_hash(name)]
    if hashes and len(hashes) < len(names):
        local = listed(rank for name in hashes for rank in names[name])
        return f"; the names say that use_local_synchronization was given on {local}, and not on the others"
    return before_growth(records) or count_skew(records) or _by_kind(bool(hashes))


def _is_hash(name: str) -> bool:
    return len(name) >= _HASH_DIGITS


def _by_kind(hashed: bool) -> str:
    if hashed:
        return (
            "; a local-sync group's name is a hash of its ranks and of a count that each process keeps, and these "
            "differ"
        )
    return "; the name is a count of the groups that each process has made, and these counts differ"


def count_skew(records: Records) -> str:
    """The ranks of one default group made more or fewer calls."""
    for world in records.worlds.values():
        counts = {rank: world.count(rank) for rank in range(world.size) if rank in records.ranks}
        if len(set(counts.values())) > 1:
            alike: dict[int, list[int]] = {}
            for rank, count in counts.items():
                alike.setdefault(count, []).append(rank)
            held = ", ".join(f"{count} on {listed(ranks)}" for count, ranks in sorted(alike.items()))
            return f"; the ranks have made different numbers of new_group calls ({held})"
    return ""


def before_growth(records: Records) -> str:
    """Groups that some ranks made while the default group was smaller, and that those who came with its growth have
    not made."""
    for grown in records.worlds.values():
        for small in records.worlds.values():
            if small.size < grown.size and _store_of(small) == _store_of(grown) and small.slots:
                came = [rank for rank in grown.stacks if rank not in small.stacks]
                if came:
                    return _growth(small, grown, came)
    return ""


def _growth(small: WorldRecord, grown: WorldRecord, came: Sequence[int]) -> str:
    made = some([_call(small.settled(slot)) for slot in small.slots], 3)
    verb = "has" if len(came) == 1 else "have"
    return (
        f"; {listed(small.stacks)} had made {made} before the default group grew to {grown.size} ranks, and "
        f"{listed(came)}, which came then, {verb} not"
    )


def _call(slot: GroupSlot) -> str:
    stacks = list(slot.calls.values())
    return f"new_group({spelled(slot.ranks)})" + (at_place(stacks[0]) if stacks else "")


def _store_of(world: WorldRecord) -> str:
    return world.key.rpartition("size ")[0]
