"""What the simulator sees of `new_group`: every call of every rank, members or not, in order.

torch asks `_process_group_name` for a name exactly when a call has passed its checks and the counter moves, so that is
where a call is counted. The contract (torch's documentation of `new_group`): all ranks of the default group make the
same calls in the same order; `use_local_synchronization=True` asks that of the members only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.distributed import distributed_c10d as c10d

from simulator.engine.site import Stack
from simulator.records import GroupSlot, WorldRecord
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


@dataclass(slots=True)
class PendingGroup:
    """A `new_group` call under way on one rank; the rank fills in the same object anew at each call."""

    desc: str = ""
    backend: str = ""
    options: Any = None
    stack: Stack = ()
    ranks: tuple[int, ...] | None = None
    name: str = "0"
    slot: GroupSlot | None = None

    def read(self, frame: FrameType, ranks: list[int]) -> PendingGroup:
        """Take what `_new_group_with_tag` was given from its frame, and the list as torch has sorted it."""
        given = frame.f_locals
        self.desc, self.backend = given.get("group_desc") or "", str(given.get("backend") or "")
        self.options, self.ranks = given.get("backend_options"), tuple(ranks)
        return self


def install_group_calls(patches: Patches, sim: Simulation) -> None:
    """Watch `new_group`, and keep torch's registry of groups per rank."""
    _watch_names(patches, sim)
    _watch_calls(patches, sim)
    _watch_registry(patches, sim)


def _watch_calls(patches: Patches, sim: Simulation) -> None:
    """What `_watch_names` cannot see: calls that end before a name is asked for, and what a call gives a joiner."""
    real = c10d._new_group_with_tag

    def _new_group_with_tag(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        local = kwargs.get("use_local_synchronization", False)
        if local or sim.has_joiners:
            ranks = args[0] if args else kwargs.get("ranks")
            _look_at_result(sim, result, ranks if local else None, kwargs.get("group_desc") or "")
        return result

    patches.set(c10d, "_new_group_with_tag", _new_group_with_tag)


def _look_at_result(sim: Simulation, result: Any, ranks: Any, desc: str) -> None:
    """`ranks`: the list of a call with local synchronisation, else None."""
    context = sim.here()
    if context is None:
        return
    call: PendingGroup = context.call
    if ranks and context.rank not in ranks:
        # local synchronisation without this rank: torch returns before it asks for a name (None, or from 2.14 on -100)
        call.ranks, call.slot, call.desc, call.stack = tuple(sorted(ranks)), None, desc, sim.sites.capture(1)
        if call.ranks[0] not in context.cohort_ranks:
            _check_cohort(sim, context, call)
    elif context.joins and call.slot is not None:
        call.slot.returned[context.rank] = _outcome(result)


def _outcome(result: Any) -> str:
    if result is None:
        return "None"
    return "not a member" if result == c10d.GroupMember.NON_GROUP_MEMBER else "a group"


def _watch_names(patches: Patches, sim: Simulation) -> None:
    """Called a million times in a large bring-up, so it does most of its work in one frame.

    What the caller was given is read from its frame, and only where somebody will look at it. The trace gets the calls
    of a list's members, and those that differ from what the first caller of the slot gave.
    """
    real, of_frame = c10d._process_group_name, sim.sites.of_frame
    new_group = c10d._new_group_with_tag.__code__

    def _process_group_name(ranks: Any, use_hashed_name: bool) -> str:
        name: str = real(ranks, use_hashed_name)
        task = sim.scheduler.here()
        if task is None:
            return name
        context: RankContext = task.owner
        frame = sys._getframe(1)
        if frame.f_code is not new_group:
            context.pending = None  # init_process_group or split_group
            return name
        call: PendingGroup = context.call
        call.name, call.stack, call.slot = name, of_frame(frame.f_back), None
        context.pending = call
        if context.outsiders is not None or ranks[0] not in context.cohort_ranks:
            call.read(frame, ranks)
            _check_cohort(sim, context, call)
        if use_hashed_name:
            call.read(frame, ranks)
            _note_mode(sim, context, call, local=True)
            sim.trace.add(sim.scheduler.env.now, context.rank, "new_group", call.desc, call.ranks, "local")
            return name
        if context.joins:
            _note_mode(sim, context, call.read(frame, ranks), local=False)
        default: Any = context.world.default_pg
        kept: Any = context.world_record
        if kept is None or kept[0] is not default or kept[1] != default.size():
            kept = _world_of(sim, context)
        slots, stacks = kept[2].slots, kept[3]
        index = len(stacks)
        stacks.append(call.stack)
        slot = call.slot = slots[index] if index < len(slots) else _new_slot(slots, call.read(frame, ranks))
        if slot.given == ranks and context.rank not in slot.members:
            call.ranks = slot.ranks
            return name
        call.read(frame, ranks)
        if slot.given != ranks:
            slot.others[context.rank] = tuple(ranks)
        sim.trace.add(sim.scheduler.env.now, context.rank, "new_group", call.desc, call.ranks, "world")
        return name

    patches.set(c10d, "_process_group_name", _process_group_name)


def _note_mode(sim: Simulation, context: RankContext, call: PendingGroup, *, local: bool) -> None:
    if call.desc and call.ranks is not None and context.rank in call.ranks:
        calls = sim.records.modes.setdefault((call.desc, call.ranks), {})
        calls[context.rank, context.cohort] = (local, call.stack)


def _new_slot(slots: list[GroupSlot], call: PendingGroup) -> GroupSlot:
    assert call.ranks is not None
    extension = bool(getattr(getattr(call.options, "_settings", None), "is_extension", False))
    ranks = call.ranks
    slot = GroupSlot(len(slots), ranks, call.desc, call.backend, extension, list(ranks), frozenset(ranks))
    slot.name = call.name
    slots.append(slot)
    return slots[-1]


def _check_cohort(sim: Simulation, context: RankContext, call: PendingGroup) -> None:
    """A joiner of a scale-up makes groups within its cohort only; WORLD, of all ranks, is the exception.

    A launched rank may make groups with those who joined, but none that nobody of its own cohort is in.
    """
    assert call.ranks is not None
    whole = context.world.default_pg
    if whole is not None and call.ranks == tuple(range(whole.size())):
        return
    outside = [rank for rank in call.ranks if rank not in context.cohort_ranks]
    if len(outside) == len(call.ranks) or (context.outsiders is not None and outside):
        sim.note(
            "outside_cohort",
            f"group '{call.desc}' {list(call.ranks)} reaches outside the cohort",
            stack=call.stack,
            desc=call.desc,
            ranks=call.ranks,
            outside=tuple(outside),
            cohort=context.cohort,
        )


def _world_of(sim: Simulation, context: RankContext) -> tuple[Any, int, WorldRecord, list[Stack]]:
    """The caller's default group, its size, its record, and the caller's own list in that.

    The same group grown is another record.
    """
    default: Any = context.world.default_pg
    size = default.size()
    key = f"{default.comm.key}size {size}"
    record = sim.records.worlds.setdefault(key, WorldRecord(key, size))
    again = context.joins and context.rank in record.members and context.world_record is None
    if again or context.rank not in record.stacks:
        record.stacks[context.rank] = []  # a new process in a lost rank's slot makes the calls of the launch again
    record.members[context.rank] = context.cohort
    found = (default, size, record, record.stacks[context.rank])
    context.world_record = found
    return found


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
