"""Death, deactivation and what comes after, beyond the simple cases."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import is_joiner, joiner, member, primary, quick, world

table = Table()


def _nap(me: Observer, seconds: float = 0.5) -> None:
    me.wait_until(lambda: False, seconds)


def _world_and_deaths(me: Observer, size: int, *victims: int, options: tuple[object, ...] = ()) -> None:
    quick(me)
    world(me, size, *options)
    if me.rank in victims:
        me.die()
    _nap(me)


@table(Launch(4), limit_s=25)
def two_die_at_once(me: Observer) -> None:
    """Ranks 1 and 3 of 4."""
    _world_and_deaths(me, 4, 1, 3)
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.reported_all_reduce(me.rank + 1, name="next")


@table(Launch(4), limit_s=30)
def two_die_one_after_the_other(me: Observer) -> None:
    """Rank 3, and after a collective rank 1."""
    _world_and_deaths(me, 4, 3)
    me.reported_all_reduce(me.rank + 1)
    me.state("one dead")
    if me.rank == 1:
        me.die()
    _nap(me)
    me.reported_all_reduce(me.rank + 1, name="next")
    me.state("two dead")


@table(Launch(2), limit_s=25)
def all_but_one_die(me: Observer) -> None:
    """Rank 0 alone is left."""
    _world_and_deaths(me, 2, 1)
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.reported_all_reduce(me.rank + 1, name="next")
    me.call("barrier", dist.barrier)


def _dead_in(me: Observer, victim: int, step: Callable[[Observer], None]) -> None:
    _world_and_deaths(me, 3, victim)
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
    _world_and_deaths(me, 3, 2)
    me.all_reduce(me.rank + 1)
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.call("sync again", me.pg.sync_after_failure, dist.group.WORLD)
    me.state()


@table(Launch(3), limit_s=50)
def death_without_auto_deactivation(me: Observer) -> None:
    """Neither deactivation nor sync: the mask stays, and every collective fails."""
    _world_and_deaths(me, 3, 2, options=(3, False, False, False))
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
    _nap(me)
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
        _nap(me, 6.0)
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=55)
def window_alone_is_short(me: Observer) -> None:
    """Only the window is set, to 4 s; rank 2 dies in flight."""
    me.pg.set_fault_reconciliation_window_us(4_000_000)
    world(me, 3)
    if me.rank == 2:
        _nap(me, 3.0)
        me.die()
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=30)
def dies_in_flight_in_a_short_window(me: Observer) -> None:
    """Both are set, to 2 s and 4 s; rank 2 dies in flight."""
    quick(me)
    world(me, 3)
    if me.rank == 2:
        _nap(me, 3.0)
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
    _nap(me, 20.0)
    me.peers([0, 1, 2], name="after 35 s")
    me.state("after 35 s")


@table(Launch(3), limit_s=30)
def groups_after_a_death(me: Observer) -> None:
    """The survivors create a group of their own; one that names the dead rank never comes to be."""
    _world_and_deaths(me, 3, 2)
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
    _nap(me)
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
    _world_and_deaths(me, 3, 2)
    me.all_reduce(me.rank + 1)
    found: list[object] = [None] * dist.get_world_size()
    me.call("objects", dist.all_gather_object, found, {"rank": me.rank}, show=lambda: found)


@table(Launch(3), limit_s=25)
def collectives_in_a_world_with_a_hole(me: Observer) -> None:
    """Rank 1 is out: sizes of lists, roots, messages, and the objects' helper."""
    world(me, 3)
    me.meet("ready", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([1])
        me.flag("out")
    me.wait_for("out")
    _nap(me)
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
    _nap(me)
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
    _nap(me)
    if me.rank == 2:
        me.deactivate([1], name="by the one that is out")
        me.flag("put out")
    me.wait_for("put out")
    _nap(me)
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
    _nap(me)
    if me.rank == 2:
        me.die()
    _nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.peers([2])
    if me.rank == 0:
        me.recover([2])
    me.flag(f"tried {me.rank}")
    me.wait_for("tried 0")
    me.state()


@table(Launch(2), Join(2), limit_s=50)
def joiner_dies_after_it_attached(me: Observer) -> None:
    """It is registered, has not joined, and dies; it is recovered all the same."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.die()
    primary(me, capacity=3)
    me.wait_for("over 2")
    _nap(me)
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
        _nap(me)
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
    _nap(me, 3.0)
    me.peers([0, 1, 2])
    me.recover([2])


@table(Launch(3), limit_s=25)
def rank_0_dies_and_nobody_calls(me: Observer) -> None:
    """What the others notice while they call nothing, and what a message between them does."""
    world(me, 3)
    if me.rank == 0:
        me.die()
    _nap(me, 10.0)
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
    _nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), limit_s=25)
def leaves_with_status_0(me: Observer) -> None:
    """Rank 2 ends without an error and without a word; for its peers that is a death."""
    _world_and_deaths(me, 3)
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
    _nap(me)
    if me.rank != 1:
        me.reported_all_reduce(me.rank + 1, name="sub", group=sub)
        me.state("sub", sub)
    me.all_reduce(me.rank + 1, name="world")


@table(Launch(3), limit_s=45)
def stopped_process(me: Observer) -> None:
    """Rank 2 is stopped, not ended: its peers wait."""
    _world_and_deaths(me, 3)
    if me.rank == 2:
        me.note("stops", True)
        os.kill(os.getpid(), signal.SIGSTOP)
    _nap(me)
    me.reported_all_reduce(me.rank + 1)


@table(Launch(2), limit_s=20)
def destroyed_and_made_again(me: Observer) -> None:
    """A sub-group, then the world, then a new world in the same processes."""
    world(me, 2)
    group = me.group([0, 1], name="sub")
    me.all_reduce(me.rank + 1, group, name="sub sum")
    me.call("destroy sub", dist.destroy_process_group, group)
    me.all_reduce(me.rank + 1, name="world sum")
    again = me.group([0, 1], name="sub again")
    me.all_reduce(me.rank + 1, again, name="sub again sum")
    me.call("barrier", dist.barrier)
    me.call("destroy", dist.destroy_process_group)
    me.init(2, name="init again")
    me.all_reduce(me.rank + 1, name="world again")


@table(Launch(3), limit_s=30)
def two_in_flight_at_a_death(me: Observer) -> None:
    """Two asynchronous sums are begun before the first one is waited for."""
    _world_and_deaths(me, 3, 2)
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
    _nap(me)
    me.reported_all_reduce(me.rank + 1)
    me.state("sub", both)
    me.reported_all_reduce(me.rank + 1, name="sub", group=both)
