"""The elastic protocol on WORLD: how it goes well, and each misuse."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import admit, is_joiner, joiner, primary, world

table = Table()


@table(Launch(2), Join(2, 3), limit_s=20)
def scale_up(me: Observer) -> None:
    """2 primaries with capacity 4, 2 joiners, from the first collective to the last."""
    if is_joiner(me):
        joiner(me)
        me.wait_for("attached 2", "attached 3")
        me.state("isolated")
        me.peers([0, 1, 2, 3])
        me.meet("look", 0, 1, 2, 3)
        me.meet("looked", 0, 1, 2, 3)
    else:
        me.init(2, 4)
        me.state("alone")
        me.meet("alone", 0, 1)
        me.flag(f"up {me.rank}")
        me.all_reduce(me.rank + 1)
        me.peers([2, 3], name="peer_state early")
        me.meet("look", 0, 1, 2, 3)
        me.peers([2, 3], name="peer_state attached")
        me.meet("looked", 0, 1, 2, 3)
    admit(me, [2, 3])
    me.all_reduce(me.rank + 1, name="joint")
    me.state("joint")
    me.all_gather(me.rank, 4)
    me.call("process_group_ranks", dist.get_process_group_ranks, dist.group.WORLD)
    me.broadcast(me.rank, src=3)
    me.call("barrier", dist.barrier)


@table(Launch(2), Join(2, 3), limit_s=15)
def isolated_joiner_is_local(me: Observer) -> None:
    """Collectives of a joiner that has not joined return at once with its own data."""
    if is_joiner(me):
        joiner(me)
        me.all_reduce(me.rank + 1)
        me.all_gather(me.rank, 4, own=me.rank)
        me.broadcast(me.rank, src=0)
        me.broadcast(me.rank, src=me.rank, name="broadcast own")
        me.call("barrier", dist.barrier)
        me.reported_all_reduce(me.rank + 1, name="reported")
        return
    primary(me)
    me.wait_for("attached 2", "attached 3")
    me.all_reduce(me.rank + 1, name="primaries go on")


@table(Launch(2), Join(2), limit_s=12)
def peer_beyond_capacity(me: Observer) -> None:
    """Ranks that the group has no slot for."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.peers([0, 1, 2, 3])
        return
    primary(me, capacity=3)
    me.peers([3])
    me.peers([-1])
    me.peers([])
    me.recover([3])
    me.recover([])
    me.wait_for("attached 2")


@table(Launch(2), Join(2, 3), limit_s=15)
def two_primaries_recover(me: Observer) -> None:
    """Both primaries recover the same joiners at once: both are told that it was applied."""
    if is_joiner(me):
        joiner(me)
    else:
        primary(me)
    admit(me, [2, 3], by=(0, 1))
    me.all_reduce(me.rank + 1)
    me.note("world_size", dist.get_world_size())


@table(Launch(2), Join(2), limit_s=20)
def recover_before_registration(me: Observer) -> None:
    """Recovering a rank that does not exist yet is refused at once; later it works."""
    if is_joiner(me):
        me.wait_for("tried 0", "tried 1")
        joiner(me, 3, 3)
        me.join()
    else:
        primary(me, capacity=3)
        me.recover([2], name="early")
        me.state("early")
        me.flag(f"tried {me.rank}")
        admit(me, [2])
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=40)
def recover_who_never_joins(me: Observer) -> None:
    """The joiner registers and never calls join_group."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.wait_for("over 0", "over 1")
        return
    primary(me, capacity=3)
    me.wait_for("attached 2")
    me.peers([2])
    me.recover([2])
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=25)
def recover_waits_for_the_joiner(me: Observer) -> None:
    """The joiner joins 5 s after it is recovered."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.wait_for("about 0", "about 1")
        me.wait_until(lambda: False, 5.0)
        me.join()
    else:
        primary(me, capacity=3)
        me.wait_for("attached 2")
        me.flag(f"about {me.rank}")
        me.recover([2])
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2, 3), limit_s=45)
def recover_two_of_which_one_joins(me: Observer) -> None:
    """Both are refused after 20 s; the one that has joined can be admitted then, and leaves a hole."""
    if is_joiner(me):
        joiner(me)
        if me.rank == 2:
            me.wait_for("over 0", "over 1")
            return
        me.join()
    else:
        primary(me)
        me.wait_for_peers([3])
        me.meet("both", 0, 1)
        me.recover([2, 3])
        me.recover([3])
    me.state()
    me.all_reduce(me.rank + 1)
    me.note("slots", dist.get_world_size())


@table(Launch(2), Join(2), limit_s=45)
def join_without_recover(me: Observer) -> None:
    """Nobody admits the joiner: it waits, and the primaries go on."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.flag("joins")
        me.join()
        return
    primary(me, capacity=3)
    me.wait_for("joins")
    me.wait_for_peers([2])
    me.all_reduce(me.rank + 1)
    me.state()


@table(Launch(2), limit_s=12)
def join_by_active(me: Observer) -> None:
    """An active rank has nothing to join."""
    world(me, 2)
    me.join()
    me.join(name="again")
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=12)
def join_twice(me: Observer) -> None:
    """A joiner that was admitted joins once more."""
    if is_joiner(me):
        joiner(me, 3, 3)
    else:
        primary(me, capacity=3)
    admit(me, [2])
    if is_joiner(me):
        me.join(name="again")
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=20)
def joiner_first(me: Observer) -> None:
    """The joiner starts 3 s before the primaries."""
    if is_joiner(me):
        me.init(3, 3, True)
        me.note("world_size", dist.get_world_size())
        me.join()
    else:
        me.wait_until(lambda: False, 3.0)
        primary(me, capacity=3)
        me.wait_for_peers([2])
        me.recover([2], status_only=True)
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=25)
def third_without_extension(me: Observer) -> None:
    """A third rank inits with world_size 3 and without the flag."""
    if is_joiner(me):
        me.wait_for("up 0", "up 1")
        me.init(3, 3)
        return
    primary(me, capacity=3)
    me.all_reduce(me.rank + 1)
    me.peers([2])


@table(Launch(2), Join(2), limit_s=20)
def joiner_with_another_capacity(me: Observer) -> None:
    """The joiner's max_group_size differs: its communicator is invalid and local."""
    if not is_joiner(me):
        primary(me, capacity=4)
        me.wait_for("over 2")
        me.peers([2])
        me.all_reduce(me.rank + 1)
        return
    joiner(me, 3, 3)
    me.state()
    me.all_reduce(me.rank + 1)
    me.peers([0, 1, 2])
    me.join()
    me.recover([0])
    me.call("activate", me.pg.activate_ranks, dist.group.WORLD, [0])
    me.deactivate([0])
    me.call("send", dist.send, torch.ones(1), 0)
    me.call("recv", dist.recv, torch.ones(1), 0)
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.call("barrier", dist.barrier)


@table(Launch(2), Join(2), limit_s=12)
def joiner_as_rank_0(me: Observer) -> None:
    """The joiner forgets its offset, and takes rank 0: the store's address is taken."""
    if is_joiner(me):
        me.wait_for("up 0", "up 1")
        me.rank = 0
        me.init(1, 3, True)
        return
    primary(me, capacity=3)
    me.wait_for("over 2")
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=45)
def joiner_as_rank_1(me: Observer) -> None:
    """The joiner forgets its offset, and takes rank 1, which is healthy."""
    if is_joiner(me):
        me.wait_for("up 0", "up 1")
        me.rank = 1
        me.init(2, 3, True)
        return
    primary(me, capacity=3)
    me.all_reduce(me.rank + 1)
    me.wait_for("over 2")
    me.all_reduce(me.rank + 1, name="again")


@table(Launch(2), Join(2), limit_s=60)
def joiner_dies_in_join(me: Observer) -> None:
    """The joiner is killed inside join_group."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.flag("pid", str(os.getpid()))
        me.join()
        return
    primary(me, capacity=3)
    me.wait_for_peers([2])
    me.meet("seen", 0, 1)
    if me.rank == 0:
        os.kill(int(me.text("pid")), signal.SIGKILL)
        me.flag("killed")
    me.wait_for("killed")
    me.wait_until(lambda: False, 0.3)
    me.peers([2], name="peer_state after")
    if me.rank == 0:
        me.recover([2], name="first")
        me.recover([2], name="second")
        me.flag("recovered")
    me.wait_for("recovered")
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(2), limit_s=12)
def activate_active(me: Observer) -> None:
    """Activating who is active changes nothing."""
    world(me, 2)
    me.state("before")
    me.recover([1])
    me.call("activate", me.pg.activate_ranks, dist.group.WORLD, [0, 1])
    me.call("activate none", me.pg.activate_ranks, dist.group.WORLD, [])
    me.state("after")


@table(Launch(4), limit_s=25)
def deactivate_two_of_four(me: Observer) -> None:
    """Ranks 1 and 3 leave; what the others and they can do; rank 3 comes back in place."""
    world(me, 4)
    me.meet("ready", 0, 1, 2, 3)
    if me.rank == 0:
        me.deactivate([1, 3])
        me.flag("out")
    me.wait_for("out")
    me.wait_until(lambda: False, 0.5)
    me.state("out")
    me.all_reduce(me.rank + 1)
    if me.rank in (0, 2):
        me.all_gather(me.rank, dist.get_world_size(), own=me.rank)
        me.all_gather(me.rank, 4, name="all_gather of 4")
        tensor = torch.ones(2)
        me.call("broadcast src=1", dist.broadcast, tensor, src=1, show=lambda: "stale")
    me.meet("looked", 0, 1, 2, 3)
    if me.rank == 3:
        me.join()
    if me.rank == 0:
        me.wait_for_peers([3])
        me.recover([3])
        me.flag("back")
    if me.rank != 1:
        me.wait_for("back")
        me.wait_until(lambda: False, 0.5)
        me.state("back")
        me.all_reduce(me.rank + 1, name="with rank 3")


@table(
    Launch(2),
    Join(2, 3),
    limit_s=25,
    races="3 of 4 measured runs hung all, one let rank 1's collective complete alone, 22 controlled ones went well",
)
def activation_inside_a_collective(me: Observer) -> None:
    """Rank 1 is inside an all_reduce when rank 0 admits the joiners."""
    if is_joiner(me):
        joiner(me)
        me.join()
    else:
        primary(me)
        me.all_reduce(me.rank + 1, name="first")
        me.wait_for_peers([2, 3])
        if me.rank == 1:
            me.flag("inside")
            me.all_reduce(2, name="early")
        else:
            me.wait_for("inside")
            me.wait_until(lambda: False, 1.0)
            me.recover([2, 3])
    me.all_reduce(me.rank + 1, name="later")
