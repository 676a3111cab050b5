"""Ranks that are put out, and what they and the others can do then."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import is_joiner, joiner, nap, primary, world

table = Table()


@table(Launch(3), limit_s=25)
def collectives_in_a_world_with_a_hole(me: Observer) -> None:
    """Rank 1 is out: sizes of lists, roots, messages, and the objects' helper."""
    world(me, 3)
    me.meet("ready", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([1])
        me.flag("out")
    me.wait_for("out")
    nap(me)
    if me.rank == 1:
        me.broadcast(1, src=0, name="broadcast of the one that is out")
        me.call("barrier of the one that is out", dist.barrier)
        me.pg.set_p2p_timeout_us(3_000_000)
        me.call("isend of the one that is out", dist.isend, torch.ones(2), 0)
        return
    me.state()
    parts = [torch.full((1,), -1.0) for _ in range(3)]
    me.call("all_gather", dist.all_gather, parts, torch.full((1,), float(me.rank)), show=lambda: "returned")
    me.note("slots of 0 and 2", [parts[0].item(), parts[2].item()])
    me.call("all_gather of 2", dist.all_gather, parts[:2], torch.ones(1))
    me.broadcast(me.rank, src=2)
    scattered = torch.full((1,), -1.0)
    given = [torch.full((1,), float(r)) for r in range(3)]
    me.call("reduce_scatter", dist.reduce_scatter, scattered, given, show=scattered.tolist)
    if me.rank == 0:
        me.call("send", dist.send, torch.ones(2), 2)
    else:
        tensor = torch.zeros(2)
        me.call("recv", dist.recv, tensor, 0, show=tensor.tolist)
    me.call("barrier", dist.barrier)


def _deactivation(me: Observer, size: int, by: int, ranks: list[int]) -> None:
    world(me, size)
    me.meet("ready", *range(size))
    if me.rank == by:
        me.deactivate(ranks)
        me.flag("out")
    me.wait_for("out")
    nap(me)
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(3), limit_s=15)
def deactivate_all_but_one(me: Observer) -> None:
    """Rank 0 puts out the others."""
    _deactivation(me, 3, 0, [1, 2])


@table(Launch(3), limit_s=15)
def deactivate_oneself(me: Observer) -> None:
    """Rank 2 puts itself out."""
    _deactivation(me, 3, 2, [2])


@table(Launch(3), limit_s=15)
def deactivate_rank_0(me: Observer) -> None:
    """The coordinator's rank is put out; its process lives."""
    _deactivation(me, 3, 1, [0])


@table(Launch(2), limit_s=25)
def deactivate_everybody(me: Observer) -> None:
    """Nobody is left."""
    _deactivation(me, 2, 0, [0, 1])


@table(Launch(3), limit_s=25)
def deactivations_that_do_not_fit(me: Observer) -> None:
    """Out of range, twice, an empty list, one that is out already, by one that is out."""
    world(me, 3)
    me.meet("ready", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([3])
        me.deactivate([-1])
        me.deactivate([])
        me.deactivate([2, 2])
        me.deactivate([2], name="again")
        me.flag("out")
    me.wait_for("out")
    nap(me)
    if me.rank == 2:
        me.deactivate([1], name="by the one that is out")
        me.flag("put out")
    me.wait_for("put out")
    nap(me)
    me.state()


@table(Launch(2), Join(2), limit_s=25)
def deactivate_a_joiner_that_waits(me: Observer) -> None:
    """It is registered, or joining, and not active."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.wait_for("go")
        me.join()
        return
    primary(me, capacity=3)
    me.wait_for("attached 2")
    if me.rank == 0:
        me.deactivate([2], name="registered")
        me.flag("go")
        me.wait_for_peers([2])
        me.deactivate([2], name="joining")
        me.state()


@table(Launch(3), limit_s=45)
def activate_without_join(me: Observer) -> None:
    """A deactivated rank that does not call join_group is recovered."""
    world(me, 3)
    me.meet("ready", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([2])
        me.recover([2])
        me.flag("tried")
    me.wait_for("tried")
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(3), limit_s=58)
def deactivated_rank_dies(me: Observer) -> None:
    """Its death is nobody's business; recovering it is."""
    world(me, 3)
    me.meet("ready", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([2])
        me.flag("out")
    me.wait_for("out")
    nap(me)
    if me.rank == 2:
        me.die()
    nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.peers([2])
    if me.rank == 0:
        me.recover([2])
    me.flag(f"tried {me.rank}")
    me.wait_for("tried 0")
    me.state()
