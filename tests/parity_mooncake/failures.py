"""Death, deactivation and what comes after, beyond the simple cases."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Launch, Table
from tests.parity_mooncake.steps import member, nap, quick, world, world_and_deaths

table = Table()


@table(Launch(4), limit_s=25)
def two_die_at_once(me: Observer) -> None:
    """Ranks 1 and 3 of 4."""
    world_and_deaths(me, 4, 1, 3)
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.reported_all_reduce(me.rank + 1, name="next")


@table(Launch(4), limit_s=30)
def two_die_one_after_the_other(me: Observer) -> None:
    """Rank 3, and after a collective rank 1."""
    world_and_deaths(me, 4, 3)
    me.reported_all_reduce(me.rank + 1)
    me.state("one dead")
    if me.rank == 1:
        me.die()
    nap(me)
    me.reported_all_reduce(me.rank + 1, name="next")
    me.state("two dead")


@table(Launch(2), limit_s=25)
def all_but_one_die(me: Observer) -> None:
    """Rank 0 alone is left."""
    world_and_deaths(me, 2, 1)
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.reported_all_reduce(me.rank + 1, name="next")
    me.call("barrier", dist.barrier)


def _dead_in(me: Observer, victim: int, step: Callable[[Observer], None]) -> None:
    world_and_deaths(me, 3, victim)
    step(me)
    me.state()
    me.all_reduce(me.rank + 1, name="next")


@table(Launch(3), limit_s=25)
def barrier_with_a_dead_rank(me: Observer) -> None:
    """Returns after the window, and says that it failed."""
    _dead_in(me, 1, lambda me: me.reported("barrier", dist.barrier, async_op=True))


@table(Launch(3), limit_s=25)
def broadcast_from_a_dead_root(me: Observer) -> None:
    """Returns after the window; the data are whatever lay there."""
    _dead_in(me, 1, lambda me: me.reported("broadcast", dist.broadcast, torch.ones(2), src=1, async_op=True))


@table(Launch(3), limit_s=25)
def broadcast_to_a_dead_rank(me: Observer) -> None:
    """The living ones have the data."""

    def step(me: Observer) -> None:
        tensor = torch.full((2,), float(me.rank))
        me.reported("broadcast", dist.broadcast, tensor, src=0, async_op=True, of=tensor)

    _dead_in(me, 1, step)


@table(Launch(3), limit_s=25)
def all_gather_with_a_dead_rank(me: Observer) -> None:
    """The living ones' slots are right."""

    def step(me: Observer) -> None:
        parts = [torch.full((1,), -1.0) for _ in range(3)]
        me.reported("all_gather", dist.all_gather, parts, torch.full((1,), float(me.rank)), async_op=True)
        me.note("slots of 0 and 2", [parts[0].item(), parts[2].item()])

    _dead_in(me, 1, step)


@table(Launch(3), limit_s=50)
def sync_call_with_a_dead_rank(me: Observer) -> None:
    """A plain call raises nothing."""
    world_and_deaths(me, 3, 2)
    me.all_reduce(me.rank + 1)
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.call("sync again", me.pg.sync_after_failure, dist.group.WORLD)
    me.state()


@table(Launch(3), limit_s=50)
def death_without_auto_deactivation(me: Observer) -> None:
    """Neither deactivation nor sync: the mask stays, and every collective fails."""
    world_and_deaths(me, 3, 2, options=(3, False, False, False))
    me.reported_all_reduce(me.rank + 1)
    me.state("failed")
    me.reported_all_reduce(me.rank + 1, name="second")
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.state("synced")
    me.meet("synced", 0, 1)
    if me.rank == 0:
        me.deactivate([2], name="deactivate the dead")
        me.flag("deactivated")
    me.wait_for("deactivated")
    me.state("deactivated")


@table(Launch(3), limit_s=58)
def messages_with_a_dead_rank(me: Observer) -> None:
    """Send to and receive from it."""
    quick(me)
    me.pg.set_p2p_timeout_us(5_000_000)
    world(me, 3)
    if me.rank == 2:
        me.die()
    nap(me)
    if me.rank == 0:
        me.reported("send", dist.isend, torch.ones(2), 2)
    else:
        tensor = torch.full((2,), -1.0)
        me.reported("recv", dist.irecv, tensor, 2, of=tensor)
    me.state()


@table(Launch(2), limit_s=48)
def short_message_time_out(me: Observer) -> None:
    """`set_p2p_timeout_us` of 5 s, and nobody receives."""
    me.pg.set_p2p_timeout_us(5_000_000)
    world(me, 2)
    if me.rank == 0:
        me.reported("send", dist.isend, torch.ones(2), 1)
    else:
        me.wait_for("over 0")


@table(Launch(3), limit_s=30)
def short_collective_time_out(me: Observer) -> None:
    """`set_collective_timeout_us` of 2 s, and one is 6 s late but lives."""
    me.pg.set_collective_timeout_us(2_000_000)
    world(me, 3)
    if me.rank == 2:
        nap(me, 6.0)
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=55)
def window_alone_is_short(me: Observer) -> None:
    """Only the window is set, to 4 s; rank 2 dies in flight."""
    me.pg.set_fault_reconciliation_window_us(4_000_000)
    world(me, 3)
    if me.rank == 2:
        nap(me, 3.0)
        me.die()
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=30)
def dies_in_flight_in_a_short_window(me: Observer) -> None:
    """Both are set, to 2 s and 4 s; rank 2 dies in flight."""
    quick(me)
    world(me, 3)
    if me.rank == 2:
        nap(me, 3.0)
        me.die()
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=48)
def unseen_death(me: Observer) -> None:
    """Nobody calls anything: what the heart-beats alone tell after 40 s."""
    world(me, 3)
    if me.rank == 2:
        me.die()
    me.peers([0, 1, 2], name="at once")
    me.state("at once")
    me.wait_until(lambda: not all(me.pg.get_peer_state(dist.group.WORLD, [2])), 15.0, every_s=0.5)
    me.peers([0, 1, 2], name="after 15 s")
    nap(me, 20.0)
    me.peers([0, 1, 2], name="after 35 s")
    me.state("after 35 s")


@table(Launch(3), limit_s=30)
def groups_after_a_death(me: Observer) -> None:
    """The survivors create a group of their own; one that names the dead rank never comes to be."""
    world_and_deaths(me, 3, 2)
    me.reported_all_reduce(me.rank + 1)
    group = me.group([0, 1], name="survivors")
    if member(group):
        me.all_reduce(me.rank + 1, group, name="survivors' sum")
    me.group([0, 1, 2], name="with the dead")


@table(Launch(3), limit_s=25)
def sub_group_of_the_dead(me: Observer) -> None:
    """The death is met in a sub-group first."""
    quick(me)
    world(me, 3)
    pair = me.group([0, 2])
    others = me.group([0, 1])
    if me.rank == 2:
        me.die()
    nap(me)
    if me.rank == 0:
        me.reported_all_reduce(1, group=pair, name="pair")
        me.state("pair", pair)
    me.flag(f"pair {me.rank}")
    me.wait_for("pair 0")
    me.all_reduce(me.rank + 1, others, name="others")
    me.reported_all_reduce(me.rank + 1, name="world")
    me.state()


@table(Launch(3), limit_s=25)
def object_collective_with_a_dead_rank(me: Observer) -> None:
    """all_gather_object among the living after the death was seen, in a world without a hole."""
    world_and_deaths(me, 3, 2)
    me.all_reduce(me.rank + 1)
    found: list[object] = [None] * dist.get_world_size()
    me.call("objects", dist.all_gather_object, found, {"rank": me.rank}, show=lambda: found)


@table(Launch(3), limit_s=30)
def two_in_flight_at_a_death(me: Observer) -> None:
    """Two asynchronous sums are begun before the first one is waited for."""
    world_and_deaths(me, 3, 2)
    first, second = torch.full((2,), me.rank + 1.0), torch.full((2,), me.rank + 10.0)
    one, two = dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)
    me.call("first", one.wait)
    me.call("second", two.wait)
    me.note("values", [first.tolist(), second.tolist()])
    me.state()


@table(Launch(3), limit_s=40)
def the_second_group_learns_of_the_death(me: Observer) -> None:
    """After the death was seen in WORLD, a sub-group with the dead rank goes on at once."""
    quick(me)
    world(me, 3)
    both = me.group([0, 1, 2])
    if me.rank == 2:
        me.die()
    nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.state("sub", both)
    me.reported_all_reduce(me.rank + 1, name="sub", group=both)
