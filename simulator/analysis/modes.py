"""Groups that some members create with `use_local_synchronization` and others without: they do not find each other.

Not found: members that all launched together and differ in this, unless a description (`group_desc`) tells which calls
are meant to be the same; calls without one are left out.
"""

from __future__ import annotations

from simulator.analysis.facts import by_stack, listed, spelled
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.site import Stack
from simulator.records import Records

Calls = dict[tuple[int, str], tuple[bool, Stack]]
"""(rank, cohort) to whether the call is local, and its stack."""


def unlike_modes(records: Records) -> list[Finding]:
    """The first such group; the later ones have the same cause, or follow from it."""
    for (desc, ranks), noted in records.modes.items():
        counted = _launched(records, desc, ranks)
        # A rank that came later is counted by position alone, so only what it was seen to call tells.
        both = {who for who in counted if who[1] == "launch"}
        local = {who[0]: stack for who, (is_local, stack) in noted.items() if is_local and who not in both}
        others = {who: call for who, call in noted.items() if not call[0]}
        world = {rank: stack for (rank, _), (_, stack) in {**counted, **others}.items()}
        if local and world:
            return [_finding(desc, ranks, local, world)]
    return []


def _launched(records: Records, desc: str, ranks: tuple[int, ...]) -> Calls:
    """The calls without local synchronisation, those of non-members too: they have to make them."""
    return {
        (rank, cohort): (False, record.stacks[rank][slot.index])
        for record in records.worlds.values()
        for slot in record.slots
        if (slot.desc, slot.ranks) == (desc, ranks)
        for rank, cohort in record.members.items()
        if rank not in slot.others and record.count(rank) > slot.index
    }


def _finding(desc: str, ranks: tuple[int, ...], local: dict[int, Stack], world: dict[int, Stack]) -> Finding:
    sides: tuple[Side, ...] = (
        *by_stack("local", f"new_group({spelled(ranks)}, use_local_synchronization=True)", local),
        *by_stack("without", f"new_group({spelled(ranks)})", world),
    )
    return Finding(
        kind=Verdict.MISMATCH,
        level=Level.CONTRACT,
        certainty=Certainty.CAUSE,
        title=f"group '{desc}' {spelled(ranks)} is created with use_local_synchronization by {listed(local)}, without "
        f"by {listed(world)}",
        group=desc,
        group_ranks=ranks,
        sides=sides,
        cause="with local synchronisation torch names a group by its ranks and the number of groups that the process "
        "has, without by the number of new_group calls so far; so the members look for each other under different "
        "names",
        remedy="give use_local_synchronization alike on all members, whenever they were started",
        at_other_level="the group hangs in its creation, runs alone on Mooncake, or meets another one by its number",
    )
