"""The groups of one rank that change while they are in use, and the calls of `mooncake.pg` that change them.

    for target in world_targets(state):
        admit(target, [4, 5], rank=0, patience)        # one caller per group suffices

What the calls ask of their callers, as measured on mooncake-transfer-engine 0.3.13:

- `recover_ranks` blocks up to 20 s with the interpreter's lock held if a rank has not joined.  So peers are looked at
  first, and it is called when all are there.
- A rank that is inside a collective of the group while its membership changes may hang, or get its own data back.  So
  the caller sees to it that no member is: all of them wait at the store (`Registry.agree`).
- The caller returns before the other members have the new view.  So each waits for it (`wait_view`).
- Torch's tables keep the old ranks.  So `GroupCoordinator` speaks in group ranks only.
- Joining blocks with the lock held until somebody admits, at most 300 s.  So a joiner calls it when it is told to.

Not here: who decides, and when (`elastic`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from refimpl.distributed.backend_options import is_mooncake
from refimpl.distributed.cohort import named
from refimpl.distributed.contract import CreationPlan
from refimpl.distributed.layout import ParallelLayout, Rank
from refimpl.distributed.parallel_state import ParallelState
from refimpl.distributed.registry import ElasticError, Patience

MASK_ENTRY_BYTES = 4
"""A mask of active ranks has one int32 for each slot."""


class Target(NamedTuple):
    """A process group whose membership changes."""

    name: str
    group: Any
    """Torch's ProcessGroup."""
    ranks: tuple[Rank, ...] | None
    """Global ranks of its members, ascending; None for WORLD, whose slots are the global ranks."""

    def slots(self, ranks: Sequence[int]) -> list[int]:
        """Group ranks of those of the global `ranks` that belong to it."""
        if self.ranks is None:
            return list(ranks)
        return [self.ranks.index(Rank(rank)) for rank in ranks if rank in self.ranks]

    def leader(self, active: Sequence[int]) -> int:
        """The lowest member among the global ranks `active`; -1 if there is none.  It makes the calls."""
        return next((rank for rank in active if self.ranks is None or rank in self.ranks), -1)


def world_targets(state: ParallelState) -> list[Target]:
    """The groups that a scale-up extends: the default group and the two of WORLD.  No others.

    Raises: ElasticError for a backend whose groups cannot change.
    """
    if not is_mooncake(state.world.options.backend):
        raise ElasticError(
            f"backend {state.world.options.backend!r} has fixed groups; give 'mooncake' or 'mooncake-cpu'"
        )
    default = Target("default", dist.group.WORLD, None)
    return [
        default,
        Target("world:device", state.world.device_group, None),
        Target("world:cpu", state.world.cpu_group, None),
    ]


def launch_targets(state: ParallelState) -> list[Target]:
    """The groups in which a recovered rank has to be active again: WORLD, and each sub-group it was launched in.

    In the order of creation, so that all members go through them alike.  Groups of one rank need nobody's consent.
    """
    targets = world_targets(state)
    for name, group in state.groups.items():
        if name == group.name and group.world_size > 1:
            targets.append(Target(f"{name}:device", group.device_group, group.ranks))
            targets.append(Target(f"{name}:cpu", group.cpu_group, group.ranks))
    return targets


def is_active(target: Target, slots: Sequence[int]) -> list[bool]:
    """Whether each of the group ranks `slots` is active, as this rank sees it."""
    from mooncake import pg

    mask = pg.get_active_ranks(target.group).tolist()
    size = len(mask)
    return [slot < size and mask[slot] == 1 for slot in slots]


def have_joined(target: Target, slots: Sequence[int]) -> bool:
    """Whether each of the group ranks `slots` has called `join_group`.  Does not wait."""
    from mooncake import pg

    return all(pg.get_peer_state(target.group, list(slots)))


def admit(target: Target, ranks: Sequence[int], patience: Patience) -> None:
    """Make the global `ranks` active in the group, all or none.

    Raises: ElasticError when one of them does not join in time, or is dropped.
    """
    from mooncake import pg

    slots = target.slots(ranks)
    if not _wait_until(lambda: have_joined(target, slots), patience.admit_s, patience.poll_s):
        raise ElasticError(f"{named(list(ranks))} did not call join_group on {target.name!r} in {patience.admit_s:g} s")
    answer = pg.recover_ranks(target.group, slots)
    if answer.status != pg.ProposalStatus.Applied:
        status = str(answer.status).rpartition(".")[2]
        left_out = f", left out: group ranks {list(answer.dropped_ranks)}" if answer.dropped_ranks else ""
        reason = f" ({answer.reject_reason})" if answer.reject_reason else ""
        raise ElasticError(f"activation in {target.name!r} ended as {status}{reason}{left_out}")


def dismiss(target: Target, ranks: Sequence[int]) -> None:
    """Make the global `ranks` inactive in the group, and let go of those that still wait to be admitted.

    A rank leaves `join_group` only by being admitted, so it is, alone, for a moment.  Takes up to 20 s for each that
    died while it waited.
    """
    from mooncake import pg

    slots = target.slots(ranks)
    for slot, active in zip(slots, is_active(target, slots), strict=True):
        if not active and have_joined(target, [slot]):
            pg.recover_ranks(target.group, [slot])
    active_slots = [slot for slot, active in zip(slots, is_active(target, slots), strict=True) if active]
    if active_slots:
        pg.deactivate_ranks(target.group, active_slots)


def join(target: Target) -> None:
    """Enter the group.  Blocks, with the interpreter's lock held, until a member admits this rank."""
    from mooncake import pg

    pg.join_group(target.group)


def wait_view(target: Target, ranks: Sequence[int], active: bool, patience: Patience) -> None:
    """Wait until this rank sees all of `ranks` active, or all inactive.

    Raises: ElasticError when it does not in time.
    """
    slots = target.slots(ranks)
    if not _wait_until(lambda: set(is_active(target, slots)) <= {active}, patience.step_s, patience.poll_s):
        state = "active" if active else "inactive"
        raise ElasticError(
            f"this rank did not see {named(list(ranks))} {state} in {target.name!r} in {patience.step_s:g} s"
        )


class Sum(NamedTuple):
    """What came of an all_reduce."""

    numbers: list[int]
    whole: bool
    """False when a member was lost in it: then it is the sum of those who are left."""


def add_up(target: Target, numbers: Sequence[int]) -> Sum:
    """Sum of each of the `numbers` over the group, as int64.  Collective over its active members."""
    from mooncake import pg

    summed = torch.tensor(numbers, dtype=torch.int64, device=pg.get_active_ranks(target.group).device)
    work = dist.all_reduce(summed, group=target.group, async_op=True)
    work.wait()
    whole = pg.get_local_success(work)
    return Sum(summed.tolist(), whole)


def _wait_until(holds: Callable[[], bool], limit_s: float, poll_s: float) -> bool:
    """Look until `holds()` or the time is over."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(poll_s)
    return True


class ReservedMask(NamedTuple):
    """The masks of active ranks that one group of this rank holds for its whole life."""

    name: str
    slots: int
    """Ranks that the group may reach."""
    used: int
    """Ranks that it starts with."""
    masks: int
    """How many of them: one for each process group."""

    @property
    def reserved_bytes(self) -> int:
        return self.slots * self.masks * MASK_ENTRY_BYTES

    @property
    def idle_bytes(self) -> int:
        """For slots that nobody fills."""
        return (self.slots - self.used) * self.masks * MASK_ENTRY_BYTES


def reserved_masks(layout: ParallelLayout, plan: CreationPlan) -> list[ReservedMask]:
    """What each rank reserves if it creates the groups of `layout` as `plan` says: int32 masks on device and host.

    A group that may grow has a slot for each rank that it may reach, so a `max_world_size` far above the world costs.
    """
    sizes = {"default": layout.world_size, "world": layout.world_size}
    sizes |= {name: len(layout.rank_lists(name)[0]) for name in layout.created()}
    return [
        ReservedMask(name, plan[name].max_world_size or size, size, 1 if name == "default" else 2)
        for name, size in sizes.items()
    ]
