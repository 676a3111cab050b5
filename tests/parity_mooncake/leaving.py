"""Processes that leave or are stopped: in good order, without a word, as the coordinator, while a joiner waits."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import is_joiner, joiner, nap, primary, quick, world, world_and_deaths

table = Table()


@table(Launch(2), Join(2), limit_s=50)
def joiner_dies_after_it_attached(me: Observer) -> None:
    """It is registered, has not joined, and dies; it is recovered all the same."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.die()
    primary(me, capacity=3)
    me.wait_for("over 2")
    nap(me)
    me.peers([2])
    if me.rank == 0:
        me.recover([2])
    me.flag(f"tried {me.rank}")
    me.wait_for("tried 0")
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=50)
def primary_dies_while_a_joiner_waits(me: Observer) -> None:
    """Rank 1 dies; rank 0 admits the joiner before anybody has seen it."""
    quick(me)
    if is_joiner(me):
        joiner(me, 3, 3)
        me.join()
    else:
        primary(me, capacity=3)
        me.all_reduce(me.rank + 1, name="first")
        me.wait_for_peers([2])
        me.meet("seen", 0, 1)
        if me.rank == 1:
            me.die()
        me.wait_for("over 1")
        nap(me)
        me.recover([2])
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(2), Join(2), limit_s=50)
def rank_0_dies_while_a_joiner_waits(me: Observer) -> None:
    """The joiner waits in join_group; the coordinator's process dies."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.join()
        return
    primary(me, capacity=3)
    me.wait_for_peers([2])
    me.meet("seen", 0, 1)
    if me.rank == 0:
        me.die()
    nap(me, 3.0)
    me.peers([0, 1, 2])
    me.recover([2])


@table(Launch(3), limit_s=25)
def rank_0_dies_and_nobody_calls(me: Observer) -> None:
    """What the others notice while they call nothing, and what a message between them does."""
    world(me, 3)
    if me.rank == 0:
        me.die()
    nap(me, 10.0)
    me.peers([0, 1, 2])
    me.state()
    if me.rank == 1:
        me.call("send", dist.send, torch.ones(2), 2)
    else:
        tensor = torch.zeros(2)
        me.call("recv", dist.recv, tensor, 1, show=tensor.tolist)


@table(Launch(3), limit_s=25)
def leaves_in_good_order(me: Observer) -> None:
    """Rank 2 destroys its groups and goes on living; the others call a collective."""
    quick(me)
    world(me, 3)
    if me.rank == 2:
        me.call("destroy", dist.destroy_process_group)
        return
    nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=25)
def leaves_with_status_0(me: Observer) -> None:
    """Rank 2 ends without an error and without a word; for its peers that is a death."""
    world_and_deaths(me, 3)
    if me.rank == 2:
        me.die(0)
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=25)
def destroys_a_sub_group_alone(me: Observer) -> None:
    """Rank 1 destroys its side of a sub-group of all; the others use it, and the world goes on."""
    quick(me)
    world(me, 3)
    sub = me.group([0, 1, 2])
    me.all_reduce(me.rank + 1, sub, name="sub sum")
    me.meet("used", 0, 1, 2)
    if me.rank == 1:
        me.call("destroy", dist.destroy_process_group, sub)
        me.flag("destroyed")
    me.wait_for("destroyed")
    nap(me)
    if me.rank != 1:
        me.reported_all_reduce(me.rank + 1, name="sub", group=sub)
        me.state("sub", sub)
    me.all_reduce(me.rank + 1, name="world")


@table(Launch(3), limit_s=45)
def stopped_process(me: Observer) -> None:
    """Rank 2 is stopped, not ended: its peers wait."""
    world_and_deaths(me, 3)
    if me.rank == 2:
        me.note("stops", True)
        os.kill(os.getpid(), signal.SIGSTOP)
    nap(me)
    me.reported_all_reduce(me.rank + 1)


def _made_again(me: Observer, meet: bool) -> None:
    world(me, 2)
    group = me.group([0, 1], name="sub")
    me.all_reduce(me.rank + 1, group, name="sub sum")
    me.call("destroy sub", dist.destroy_process_group, group)
    me.all_reduce(me.rank + 1, name="world sum")
    again = me.group([0, 1], name="sub again")
    me.all_reduce(me.rank + 1, again, name="sub again sum")
    me.call("barrier", dist.barrier)
    me.call("destroy", dist.destroy_process_group)
    if meet:
        me.meet("destroyed", 0, 1)
        nap(me, 1.0)
    me.init(2, name="init again")
    me.all_reduce(me.rank + 1, name="world again")


@table(Launch(2), limit_s=25)
def destroyed_and_made_again(me: Observer) -> None:
    """A sub-group, then the world, then a new world in the same processes, once both have destroyed the old one."""
    _made_again(me, True)


@table(Launch(2), limit_s=25, races="a rank that is quicker than its peer attaches to the old world, and runs alone")
def destroyed_and_made_again_at_once(me: Observer) -> None:
    """The same, and nobody waits before the new world."""
    _made_again(me, False)
