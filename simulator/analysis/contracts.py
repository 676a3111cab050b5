"""The contract of new_group: calls that differ between ranks, or that some never make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.analysis.facts import RunFacts, by_stack, final_blocked, grouped, listed, notes_of, some, spelled
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.barrier_model import predict_store_barrier
from simulator.engine.site import Stack
from simulator.records import GroupSlot, Records, WorldRecord


@dataclass(frozen=True, slots=True)
class Difference:
    """The first `new_group` call that is not the same on all ranks of one default group."""

    slot: GroupSlot
    sides: tuple[Side, ...]
    skipped: str = ""

    @property
    def lists(self) -> set[tuple[int, ...]]:
        """All lists that were given."""
        return {self.slot.ranks, *self.slot.others.values()}

    @property
    def sentence(self) -> str:
        parts = [f"{side.doing} on {listed(side.ranks)}" + at_place(side.stack) for side in self.sides]
        skipped = f"; {self.skipped}" if self.skipped else ""
        return f"new_group call {self.slot.index + 1} of the default group is " + ", and ".join(parts) + skipped


def at_place(stack: Stack) -> str:
    """Where a call stands, in brackets."""
    return f" ({stack[0].place})" if stack else ""


def first_difference(records: Records) -> Difference | None:
    """The earliest slot in which ranks gave different lists, if any."""
    for world in records.worlds.values():
        for slot in world.slots:
            if slot.others:
                return Difference(world.settled(slot), _lists(slot), _who_skipped(slot, world))
    return None


def _who_skipped(slot: GroupSlot, world: WorldRecord) -> str:
    """If some ranks make here the call that the others make next, they have skipped this one."""
    if slot.index + 1 >= len(world.slots):
        return ""
    following = world.settled(world.slots[slot.index + 1])
    given = {rank: slot.others.get(rank, slot.ranks) for rank in slot.calls}
    later = {rank: following.others.get(rank, following.ranks) for rank in following.calls}
    for ahead in sorted(set(given.values())):
        early = [rank for rank in given if given[rank] == ahead]
        behind = [rank for rank in later if rank not in early and later[rank] == ahead]
        missed = {given[rank] for rank in behind}
        if early and len(missed) == 1 and missed != {ahead}:
            verb = "has" if len(early) == 1 else "have"
            return f"{listed(early)} {verb} skipped new_group({list(missed.pop())})"
    return ""


def _lists(slot: GroupSlot) -> tuple[Side, ...]:
    by_list: dict[tuple[int, ...], dict[int, Stack]] = {}
    for rank, stack in sorted(slot.calls.items()):
        by_list.setdefault(slot.others.get(rank, slot.ranks), {})[rank] = stack
    return tuple(side for ranks, stacks in by_list.items() for side in by_stack("gave", spelled(ranks), stacks))


# -- calls that some ranks never make ------------------------------------------------------------------------


def missing_calls(records: Records, facts: RunFacts) -> list[Finding]:
    """World-mode `new_group` calls that some rank of the default group never made and never will."""
    findings = []
    for world in records.worlds.values():
        late = [world.settled(slot) for slot in world.slots[world.shortest() :]]
        slots = [slot for slot in late if _is_short(slot, world, records)]
        if slots:
            findings.append(_missing_call(world, slots, records, facts))
    return findings


def _absent(slot: GroupSlot, world: WorldRecord) -> list[int]:
    return [rank for rank in range(world.size) if rank not in slot.calls]


def _is_short(slot: GroupSlot, world: WorldRecord, records: Records) -> bool:
    """Somebody is absent for good: it finished, or its default group is another one (it was there before)."""
    if slot.extension and len(slot.ranks) == world.size:
        return False  # a joiner attaches to the WORLD that the others have: nobody else has to call
    if _repeats(slot, world, records):
        return False
    absent = _absent(slot, world)
    elsewhere = {rank for other in records.worlds.values() if other is not world for rank in other.members}
    gone = [
        rank
        for rank in absent
        if rank not in records.ranks
        or records.ranks[rank].status == "ok"
        or (rank in elsewhere and rank not in world.members)
    ]
    return bool(absent) and len(gone) == len(absent)


def _repeats(slot: GroupSlot, world: WorldRecord, records: Records) -> bool:
    """Ranks that took a lost slot make a call again that the others of its list made before the world grew."""
    callers = {rank: records.ranks[rank].cohort for rank in slot.calls}
    if not all(cohort.startswith("recover") for cohort in callers.values()):
        return False
    for other in records.worlds.values():
        if other is world or other.store != world.store:
            continue
        for made in other.slots:
            same = (made.ranks, made.desc, made.backend) == (slot.ranks, slot.desc, slot.backend)
            if same and set(slot.ranks) <= {*other.settled(made).calls, *callers}:
                return True
    return False


def _missing_call(world: WorldRecord, slots: Sequence[GroupSlot], records: Records, facts: RunFacts) -> Finding:
    slot = slots[0]
    absent = _absent(slot, world)
    cohorts = {records.ranks[rank].cohort for rank in slot.calls}
    outsiders = [rank for rank in absent if rank not in records.ranks or records.ranks[rank].cohort not in cohorts]
    joiners = any(_kind(rank, records, facts) == "scale" for rank in slot.calls)
    harmless = not outsiders and not any(rank in slot.ranks for rank in absent)
    waiting = by_stack("called" if harmless else "waiting", f"new_group({spelled(slot.ranks)})", slot.calls)
    missing = _absentees(absent, outsiders, records)
    more = [s.desc or spelled(s.ranks) for s in slots[1:]]
    return Finding(
        kind=Verdict.DEADLOCK,
        level=Level.CONTRACT,
        certainty=Certainty.SUSPECT if harmless else Certainty.CAUSE,
        title=f"new_group '{slot.label}' {spelled(slot.ranks)} is collective over all {world.size} ranks "
        "of the default group, and some never call it" + (f" (nor {len(more)} more: {some(more)})" if more else ""),
        group=slot.label,
        group_ranks=slot.ranks,
        sides=(*waiting, *missing),
        cause=_why_missing(slot, outsiders, joiners),
        remedy=_remedy(slot, joiners),
        at_other_level=_what_torch_does(slot, world, records, facts),
        warning=harmless,
    )


def _absentees(absent: Sequence[int], outsiders: Sequence[int], records: Records) -> list[Side]:
    """What those do who never make the call; those of an earlier cohort are told apart."""
    sides = grouped("missing", absent, records, final_blocked(records))
    return [
        replace(side, doing=f"launched before, {side.doing}") if set(side.ranks) <= set(outsiders) else side
        for side in sides
    ]


def _kind(rank: int, records: Records, facts: RunFacts) -> str:
    record = records.ranks.get(rank)
    return facts.cohorts[record.cohort][0] if record is not None and record.cohort in facts.cohorts else ""


def _why_missing(slot: GroupSlot, outsiders: Sequence[int], joiners: bool) -> str:
    callers = listed(slot.calls)
    if joiners and outsiders:
        return (
            f"{callers} joined later and create group '{slot.label}' by a call that every rank of the default group "
            f"has to make; {listed(outsiders)} had created their groups before and do not run this code again"
        )
    verb = "calls" if len(slot.calls) == 1 else "call"
    return f"{callers} {verb} new_group for group '{slot.label}' and the other ranks skip the call"


def _remedy(slot: GroupSlot, joiners: bool) -> str:
    if joiners:
        return (
            "create the joiners' groups among themselves: use_local_synchronization=True, global ranks shifted by "
            "rank_offset, and for Mooncake is_extension (recovered_rank) False and no max_group_size; only WORLD is "
            "extended"
        )
    return (
        "let every rank of the default group make the same new_group calls in the same order, members or not; "
        "or pass use_local_synchronization=True if the members alone are meant to meet"
    )


def _what_torch_does(slot: GroupSlot, world: WorldRecord, records: Records, facts: RunFacts) -> str:
    """What the installed torch did at this call, and what its optional barrier would do."""
    callers = sorted(slot.calls)
    if any(facts.init_barrier.get(rank, False) for rank in callers):
        return f"torch {facts.torch_version} runs a store barrier after new_group here (TORCH_DIST_INIT_BARRIER=1)"
    alone = [note for note in notes_of(records, "local_only") if note.rank in slot.calls]
    then = f"the call returns on {listed(callers)}"
    if alone:
        then += (
            "; there is no such group to attach to, so Mooncake runs it alone, without an error: every collective on "
            "it gives each rank its own data back"
        )
    elif slot.returned:
        then += f" ({some(sorted(set(slot.returned.values())))})"
    barrier = f"; {_with_barrier(slot, world, records)}"
    return (
        f"torch {facts.torch_version} has no barrier after new_group (TORCH_DIST_INIT_BARRIER is not 1): "
        f"{then}{barrier}"
    )


def _with_barrier(slot: GroupSlot, world: WorldRecord, records: Records) -> str:
    """What the store barrier of TORCH_DIST_INIT_BARRIER=1 would do with this call.

    Its keys outlive a group: a group of the same name that others made before has left them behind.
    """
    arrivals: dict[int, int] = {}
    for other in records.worlds.values():
        if other is not world and other.store == world.store and slot.index < len(other.slots):
            arrivals.update(dict.fromkeys(other.settled(other.slots[slot.index]).calls, other.size))
    before = listed(arrivals) if arrivals else ""
    callers = [rank for rank in slot.calls if rank not in arrivals] or list(slot.calls)
    passed = predict_store_barrier({**arrivals, **{rank: world.size for rank in callers if rank not in arrivals}})
    hung = [rank for rank in callers if not passed[rank]]
    if hung:
        return f"with TORCH_DIST_INIT_BARRIER=1 {listed(hung)} would wait in the store barrier"
    return (
        f"with TORCH_DIST_INIT_BARRIER=1 {listed(callers)} would pass the store barrier too, by the stale key of the "
        f"group that {before} made under the same name"
    )


# -- different lists, crossed names ----------------------------------------------------------------------------


def crossed_groups(records: Records) -> list[Finding]:
    """Two lists of ranks under one group name."""
    findings: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Finding] = {}
    difference = first_difference(records)
    for note in notes_of(records, "crossed"):
        mine, other = note.facts["group"], note.facts["other"]
        key = (mine.name, *sorted((mine.ranks, other.ranks)))
        if key in findings:
            continue
        sides: tuple[Side, ...] = (
            Side("gave", (note.facts["other_rank"],), spelled(other.ranks), note.facts["other_stack"]),
            Side("gave", (note.rank,), spelled(mine.ranks), note.stack),
        )
        if difference is not None and {mine.ranks, other.ranks} <= difference.lists:
            sides = difference.sides
        findings[key] = _crossing(mine.name, mine.label, mine.ranks, sides)
    return list(findings.values())


def _crossing(name: str, label: str, ranks: tuple[int, ...], sides: tuple[Side, ...]) -> Finding:
    return Finding(
        kind=Verdict.MISMATCH,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"two lists of ranks meet under the one group name '{name}'",
        group=label,
        group_ranks=ranks,
        sides=sides,
        cause="the ranks called init_process_group with different world sizes under one store"
        if label == "WORLD"
        else "torch names a group by the number of new_group calls that this rank has made, so calls with different "
        "lists at the same position share a name",
        remedy="use one world size, or another store"
        if label == "WORLD"
        else "let every rank create all lists in one order, members or not; or pass use_local_synchronization=True",
        at_other_level="what a real backend does depends on timing: a right result, crossed groups, or a hang",
    )


def differing_calls(records: Records) -> list[Finding]:
    """The first difference as a finding of its own, for runs in which nothing came of it."""
    difference = first_difference(records)
    if difference is None:
        return []
    slot = difference.slot
    return [
        Finding(
            kind=Verdict.MISMATCH,
            level=Level.CONTRACT,
            certainty=Certainty.CAUSE,
            title=f"new_group call {slot.index + 1} of the default group differs between ranks",
            group=slot.label,
            group_ranks=slot.ranks,
            sides=difference.sides,
            cause="all ranks must make the same new_group calls in the same order; from here on the counter that names "
            "groups means different groups on different ranks",
            remedy="let every rank create all lists in one order, members or not",
            at_other_level="the installed torch does not check this; a later group hangs, crosses or joins strangers",
        )
    ]
