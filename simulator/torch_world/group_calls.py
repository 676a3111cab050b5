"""What the simulator sees of `new_group`: every call of every rank, members or not, in order.

torch asks `_process_group_name` for a name exactly when a call has passed its checks and the counter moves, so that is
where a call is counted. The contract (torch's documentation of `new_group`): all ranks of the default group make the
same calls in the same order; `use_local_synchronization=True` asks that of the members only.
"""

from __future__ import annotations

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
    real = c10d._process_group_name

    def _process_group_name(ranks: Any, use_hashed_name: bool) -> str:
        name: str = real(ranks, use_hashed_name)
        context = sim.here()
        if context is not None and context.pending is not None:
            pending: PendingGroup = context.pending
            pending.ranks, pending.name = tuple(ranks), name
            _record(sim, context, pending, sim.sites.capture(1))
        return name

    patches.set(c10d, "_process_group_name", _process_group_name)


def _record(sim: Simulation, context: RankContext, pending: PendingGroup, stack: Stack) -> None:
    rank, ranks = context.rank, pending.ranks
    assert ranks is not None
    if context.outsiders is not None or ranks[0] not in context.cohort_ranks:
        _check_cohort(sim, context, pending, stack)
    if pending.local_sync:
        sim.trace.add(sim.scheduler.env.now, rank, "new_group", pending.desc, ranks, "local")
        return
    world = _world_of(sim, context)
    index = world.counts.get(rank, 0)
    world.counts[rank] = index + 1
    if index == len(world.slots):
        extension = bool(getattr(getattr(pending.options, "_settings", None), "is_extension", False))
        world.slots.append(GroupSlot(index, ranks, pending.desc, pending.backend, extension))
    slot = pending.slot = world.slots[index]
    slot.calls[rank] = stack
    if slot.ranks != ranks:
        slot.others[rank] = ranks
    sim.trace.add(sim.scheduler.env.now, rank, "new_group", pending.desc, ranks, "world")


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


def _world_of(sim: Simulation, context: RankContext) -> WorldRecord:
    default: Any = context.world.default_pg
    size = default.size()
    if context.world_record is not None and context.world_record[0] == (id(default), size):
        found: WorldRecord = context.world_record[1]
        return found
    key = f"{default.comm.key}size {size}"
    record = sim.records.worlds.setdefault(key, WorldRecord(key, size))
    record.members[context.rank] = context.cohort
    if context.joins:
        record.counts[context.rank] = 0  # a new process in a lost rank's slot makes the calls of the launch again
    context.world_record = ((id(default), size), record)
    return record


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
