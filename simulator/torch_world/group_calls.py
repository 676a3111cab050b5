"""What the simulator sees of `new_group`: every call of every rank, members or not, in order.

torch asks `_process_group_name` for a name exactly when a call has passed its checks and the counter moves, so that is
where a call is counted. The contract (torch's documentation of `new_group`): all ranks of the default group make the
same calls in the same order; `use_local_synchronization=True` asks that of the members only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed import distributed_c10d as c10d

from simulator.engine.site import Stack
from simulator.records import GroupSlot, WorldRecord
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


@dataclass(slots=True)
class PendingGroup:
    """A `new_group` call under way on one rank. `ranks` is known once torch has sorted and checked them."""

    desc: str
    backend: str
    local_sync: bool
    options: Any
    ranks: tuple[int, ...] | None = None
    name: str = "0"
    slot: GroupSlot | None = None


def install_group_calls(patches: Patches, sim: Simulation) -> None:
    """Watch `new_group`, and keep torch's registry of groups per rank."""
    _watch_calls(patches, sim)
    _watch_names(patches, sim)
    _watch_registry(patches, sim)


def _watch_calls(patches: Patches, sim: Simulation) -> None:
    real = c10d._new_group_with_tag

    def _new_group_with_tag(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        backend_options: Any = None,
        pg_tag: Any = None,
        use_local_synchronization: bool = False,
        group_desc: Any = None,
        **more: Any,
    ) -> Any:
        context = sim.here()
        if context is None:
            return real(
                ranks, timeout, backend, backend_options, pg_tag, use_local_synchronization, group_desc, **more
            )  # fmt: skip
        pending = context.pending = PendingGroup(
            group_desc or "", str(backend or ""), use_local_synchronization, backend_options
        )
        try:
            result = real(
                ranks, timeout, backend, backend_options, pg_tag, use_local_synchronization, group_desc, **more
            )  # fmt: skip
        finally:
            context.pending = None
        if result is None and use_local_synchronization and ranks:
            # torch returned before it asked for a name: this rank is not in the list
            pending.ranks = tuple(sorted(ranks))
            if pending.ranks[0] not in context.cohort_ranks:
                _check_cohort(sim, context, pending, sim.sites.capture(0))
        if context.joins and pending.slot is not None:
            pending.slot.returned[context.rank] = _outcome(result)
        return result

    patches.set(c10d, "_new_group_with_tag", _new_group_with_tag)


def _outcome(result: Any) -> str:
    if result is None:
        return "None"
    return "not a member" if result == c10d.GroupMember.NON_GROUP_MEMBER else "a group"


def _watch_names(patches: Patches, sim: Simulation) -> None:
    """Called a million times in a large bring-up, so it does its work in one frame."""
    real = c10d._process_group_name
    scheduler, of_frame, add = sim.scheduler, sim.sites.of_frame, sim.trace.add

    def _process_group_name(ranks: Any, use_hashed_name: bool) -> str:
        name: str = real(ranks, use_hashed_name)
        task = scheduler.here()
        if task is not None and task.owner.pending is not None:
            context: RankContext = task.owner
            pending: PendingGroup = context.pending
            pending.ranks, pending.name = tuple(ranks), name
            stack = of_frame(sys._getframe(1))
            if context.outsiders is not None or ranks[0] not in context.cohort_ranks:
                _check_cohort(sim, context, pending, stack)
            mode = "local" if pending.local_sync else _count(sim, context, pending, stack)
            add(scheduler.env.now, context.rank, "new_group", pending.desc, pending.ranks, mode)
        return name

    patches.set(c10d, "_process_group_name", _process_group_name)


def _count(sim: Simulation, context: RankContext, pending: PendingGroup, stack: Stack) -> str:
    """Note a world-mode call in the next slot of its default group."""
    ranks, (world, stacks) = pending.ranks, _world_of(sim, context)
    assert ranks is not None
    index = len(stacks)
    stacks.append(stack)
    if index == len(world.slots):
        extension = bool(getattr(getattr(pending.options, "_settings", None), "is_extension", False))
        world.slots.append(GroupSlot(index, ranks, pending.desc, pending.backend, extension))
    slot = pending.slot = world.slots[index]
    if slot.ranks == ranks:
        pending.ranks = slot.ranks
    else:
        slot.others[context.rank] = ranks
    return "world"


def _check_cohort(sim: Simulation, context: RankContext, pending: PendingGroup, stack: Stack) -> None:
    """A joiner of a scale-up makes groups within its cohort only; WORLD, of all ranks, is the exception.

    A launched rank may make groups with those who joined, but none that nobody of its own cohort is in.
    """
    assert pending.ranks is not None
    whole = context.world.default_pg
    if whole is not None and pending.ranks == tuple(range(whole.size())):
        return
    outside = [rank for rank in pending.ranks if rank not in context.cohort_ranks]
    if len(outside) == len(pending.ranks) or (context.outsiders is not None and outside):
        sim.note(
            "outside_cohort",
            f"group '{pending.desc}' {list(pending.ranks)} reaches outside the cohort",
            stack=stack,
            desc=pending.desc,
            ranks=pending.ranks,
            outside=tuple(outside),
            cohort=context.cohort,
        )


def _world_of(sim: Simulation, context: RankContext) -> tuple[WorldRecord, list[Stack]]:
    """The record of the caller's default group, and its own list in it. The same group grown is another record."""
    default: Any = context.world.default_pg
    size = default.size()
    kept = context.world_record
    if kept is not None and kept[0] is default and kept[1] == size:
        return kept[2], kept[3]
    key = f"{default.comm.key}size {size}"
    record = sim.records.worlds.setdefault(key, WorldRecord(key, size))
    again = context.joins and context.rank in record.members and kept is None
    if again or context.rank not in record.stacks:
        record.stacks[context.rank] = []  # a new process in a lost rank's slot makes the calls of the launch again
    record.members[context.rank] = context.cohort
    stacks = record.stacks[context.rank]
    context.world_record = (default, size, record, stacks)
    return record, stacks


def _watch_registry(patches: Patches, sim: Simulation) -> None:
    """torch's C++ registry of groups is kept per thread in a simulation; remember what each rank has."""

    def following(name: str, follow: Callable[..., None]) -> None:
        real = getattr(c10d, name)

        def call(*args: Any) -> None:
            real(*args)
            task = sim.scheduler.here()
            if task is not None:
                known = task.owner.registered_on.setdefault(task.number, {})
                follow(task.owner.registered, known, *args)

        patches.set(c10d, name, call)

    def register(groups: dict[str, Any], known: dict[str, None], name: str, group: Any) -> None:
        groups[name], known[name] = group, None

    def unregister(groups: dict[str, Any], known: dict[str, None], name: str) -> None:
        groups.pop(name, None)
        known.pop(name, None)

    def clear(groups: dict[str, Any], known: dict[str, None]) -> None:
        groups.clear()
        known.clear()

    following("_register_process_group", register)
    following("_unregister_process_group", unregister)
    following("_unregister_all_process_groups", clear)
