"""Capacity, masks that the user gives, states of peers, and ranks that are admitted twice."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import admit, is_joiner, joiner, member, primary

table = Table()


@table(Launch(2), Join(3), limit_s=25)
def joiner_leaves_a_gap(me: Observer) -> None:
    """Rank 3 joins, rank 2 never comes: a hole from the start."""
    if is_joiner(me):
        joiner(me)
    else:
        primary(me)
    admit(me, [3])
    me.state()
    me.all_reduce(me.rank + 1)
    me.broadcast(me.rank, src=3)


@table(Launch(2), Join(2), limit_s=25)
def joiner_states_another_size(me: Observer) -> None:
    """The joiner says world_size 3 where the capacity is 4."""
    if is_joiner(me):
        joiner(me, 3, 4)
    else:
        primary(me)
    admit(me, [2])
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(4), limit_s=25)
def capacity_exceeded(me: Observer) -> None:
    """Rank 4 of 5, where there are four slots."""
    if is_joiner(me):
        joiner(me, 5, 4)
        joiner(me, 5, 5)
        me.state()
        me.join()
        return
    primary(me)
    me.wait_for("over 4")
    me.recover([4])
    me.all_reduce(me.rank + 1)


def _masked(me: Observer, length: int) -> None:
    """Each side gives a tensor of its own; slots beyond the capacity keep their value."""
    mask = torch.full((length,), 9, dtype=torch.int32)
    if is_joiner(me):
        me.wait_for("up 0", "up 1")
        me.call("init", dist.init_process_group, "mooncake-cpu", rank=me.rank, world_size=4, **_given(me, mask, True))
        me.note("isolated mask", mask.tolist())
    else:
        me.call("init", dist.init_process_group, "mooncake-cpu", rank=me.rank, world_size=2, **_given(me, mask, False))
        me.note("early mask", mask.tolist())
        me.flag(f"up {me.rank}")
    admit(me, [2, 3])
    me.all_reduce(me.rank + 1)
    me.note("joint mask", mask.tolist())
    mask.zero_()
    me.all_reduce(me.rank + 1, name="after it was zeroed")
    me.note("zeroed mask", mask.tolist())
    me.note("same tensor", me.pg.get_active_ranks(dist.group.WORLD).data_ptr() == mask.data_ptr())


def _given(me: Observer, mask: torch.Tensor, extension: bool) -> dict[str, object]:
    return {"pg_options": me.pg.MooncakeBackendOptions(mask, extension, 4)}


@table(Launch(2), Join(2, 3), limit_s=25)
def mask_of_the_user(me: Observer) -> None:
    """A tensor of as many slots as the capacity."""
    _masked(me, 4)


@table(Launch(2), Join(2, 3), limit_s=25)
def longer_mask_of_the_user(me: Observer) -> None:
    """A tensor with two slots more."""
    _masked(me, 6)


@table(Launch(1), Join(1), limit_s=20)
def world_of_one_grows(me: Observer) -> None:
    """From 1 rank to 2."""
    if is_joiner(me):
        joiner(me, 2, 2, after=(0,))
    else:
        me.init(1, 2)
        me.all_reduce(1, name="alone")
        me.call("barrier", dist.barrier)
        me.state("alone")
        me.flag("up 0")
    admit(me, [1])
    me.all_reduce(me.rank + 1)
    me.state()


@table(Launch(2), limit_s=15)
def largest_capacity(me: Observer) -> None:
    """64 slots are the most; 0 and less mean the size."""
    me.init(2, 64)
    me.note("slots", me.pg.get_active_ranks(dist.group.WORLD).numel())
    for limit in (0, -1, 2, 64):
        group = me.group([0, 1], limit, name=f"max {limit}")
        if member(group):
            me.note(f"max {limit}: slots", me.pg.get_active_ranks(group).numel())
            me.all_reduce(me.rank + 1, group, name=f"max {limit}: sum")


@table(Launch(2), Join(2), limit_s=20)
def peer_state_in_all_phases(me: Observer) -> None:
    """Never there, attached, waiting in join, active, put out."""
    if is_joiner(me):
        me.wait_for("asked 0", "asked 1")
        joiner(me, 3, 3)
        me.peers([0, 1, 2], name="isolated")
        me.wait_for("attached seen 0", "attached seen 1")
        me.join()
        me.peers([0, 1, 2], name="active")
    else:
        primary(me, capacity=3)
        me.peers([0, 1, 2], name="never there")
        me.flag(f"asked {me.rank}")
        me.wait_for("attached 2")
        me.peers([0, 1, 2], name="attached")
        me.flag(f"attached seen {me.rank}")
        me.wait_for_peers([2])
        me.peers([0, 1, 2], name="waiting")
        me.meet("waiting", 0, 1)
        if me.rank == 0:
            me.recover([2])
            me.flag("admitted")
        me.wait_for("admitted")
        me.peers([0, 1, 2], name="active")
    me.meet("active", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([2])
        me.flag("out")
    me.wait_for("out")
    me.wait_until(lambda: False, 0.5)
    me.peers([0, 1, 2], name="put out")


@table(Launch(2), Join(2), limit_s=20)
def recovered_twice(me: Observer) -> None:
    """Recovering a rank that was admitted already changes nothing."""
    if is_joiner(me):
        joiner(me, 3, 3)
    else:
        primary(me, capacity=3)
    admit(me, [2])
    if me.rank == 1:
        me.recover([2], name="again")
        me.recover([1, 2], name="with itself")
    if me.rank == 0:
        me.recover([2, 2], name="twice in one list")
    me.all_reduce(me.rank + 1)
    me.state()
