"""Growth and recovery beyond the simple case: stages, cohorts, replacements, sub-groups, capacity, masks given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Recover, Table
from tests.parity_mooncake.steps import admit, is_joiner, joiner, member, primary, quick, world

table = Table()


def _active_admit(me: Observer, ranks: Sequence[int], by: int = 0) -> None:
    me.wait_for_peers(ranks)
    if me.rank == by:
        me.recover(ranks)
        me.flag(f"admitted {list(ranks)}")
    me.wait_for(f"admitted {list(ranks)}")


@table(Launch(2), Join(2), Join(3), limit_s=25)
def three_stages(me: Observer) -> None:
    """2, then 3, then 4 ranks."""
    if me.rank == 3:
        me.wait_for("stage 2")
        joiner(me)
        me.state("isolated")
        me.join()
    else:
        if me.rank == 2:
            joiner(me)
            me.join()
        else:
            primary(me)
            _active_admit(me, [2])
        me.all_reduce(me.rank + 1, name="three")
        me.state("three")
        me.flag("stage 2")
        _active_admit(me, [3])
    me.all_reduce(me.rank + 1, name="four")
    me.state("four")


@table(Launch(2), Join(2), Join(3), limit_s=25)
def a_joiner_admits_the_next(me: Observer) -> None:
    """Rank 2, itself a joiner, recovers rank 3."""
    if me.rank == 3:
        me.wait_for("stage 2")
        joiner(me)
        me.join()
    else:
        if me.rank == 2:
            joiner(me)
            me.join()
        else:
            primary(me)
            _active_admit(me, [2])
        me.all_reduce(me.rank + 1, name="three")
        me.flag("stage 2")
        _active_admit(me, [3], by=2)
    me.all_reduce(me.rank + 1, name="four")


def _two_cohorts(me: Observer, meet: bool) -> None:
    """Rank 0 admits the one, rank 1 the other, at the same time."""
    if is_joiner(me):
        joiner(me)
        me.join()
    else:
        primary(me)
        me.wait_for_peers([2, 3])
        me.meet("both", 0, 1)
        me.recover([2 + me.rank], status_only=True)
    if meet:
        me.meet("admitted", 0, 1, 2, 3)
        me.wait_until(lambda: False, 0.5)
    me.all_reduce(me.rank + 1)
    me.state()


@table(Launch(2), Join(2), Join(3), limit_s=25)
def two_cohorts_at_once(me: Observer) -> None:
    """Rank 0 admits the one, rank 1 the other, at the same time; all meet before the next collective."""
    _two_cohorts(me, True)


@table(
    Launch(2), Join(2), Join(3), limit_s=25, races="each begins with the view that it has by then: sums of 3 and of 4"
)
def two_cohorts_that_do_not_meet(me: Observer) -> None:
    """The same, and the next collective begins at once."""
    _two_cohorts(me, False)


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


@table(
    Launch(2),
    Join(2),
    Join(3),
    limit_s=45,
    races="both register again and again and take the slot from each other, or the later one is refused after 30 s",
)
def two_joiners_of_one_rank(me: Observer) -> None:
    """Two processes attach as rank 2, one after the other."""
    if is_joiner(me):
        me.wait_for("attached 2" if me.rank == 3 else "up 0", "up 1")
        me.rank = 2
        me.init(3, 3, True)
        me.state()
        me.flag("attached 2")
        if me.process.rank == 3:
            me.flag("both")
        return
    primary(me, capacity=3)
    me.wait_for("both")
    me.all_reduce(me.rank + 1)
    me.state()


@table(Launch(2), Join(2), limit_s=25)
def joiner_calls_first_after_admission(me: Observer) -> None:
    """The joiner's collective begins before the primaries know; no barrier in between."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.join()
        me.all_reduce(3, name="at once")
        me.reported_all_reduce(3, name="again")
    else:
        primary(me, capacity=3)
        me.wait_for_peers([2])
        if me.rank == 0:
            me.recover([2])
            me.flag("admitted")
        me.wait_for("admitted")
        me.wait_until(lambda: False, 2.0)
        me.all_reduce(me.rank + 1, name="at once")
        me.reported_all_reduce(me.rank + 1, name="again")


@table(Launch(2), Join(2), limit_s=45)
def isolated_joiner_recovers(me: Observer) -> None:
    """A joiner that has not joined tries to admit itself, and to put others out."""
    if is_joiner(me):
        joiner(me, 3, 3)
        me.recover([2], name="recover itself")
        me.recover([0], name="recover an active one")
        me.deactivate([1])
        me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
        me.state()
        return
    primary(me, capacity=3)
    me.wait_for("over 2")
    me.state()
    me.all_reduce(me.rank + 1)


@table(Launch(2), Join(2), limit_s=58)
def joiner_sends_before_it_joins(me: Observer) -> None:
    """Messages of an isolated rank."""
    if is_joiner(me):
        me.pg.set_p2p_timeout_us(3_000_000)
        joiner(me, 3, 3)
        tensor = torch.full((2,), -1.0)
        me.reported("recv", dist.irecv, tensor, 1, of=tensor)
        return
    me.pg.set_p2p_timeout_us(3_000_000)
    primary(me, capacity=3)
    me.wait_for("attached 2")
    me.reported("send to the joiner", dist.isend, torch.ones(2), group=None, group_dst=2)
    me.all_reduce(me.rank + 1)


def _extended(me: Observer, sub_capacity: int, joined: bool) -> None:
    if is_joiner(me):
        joiner(me)
        sub = me.group([0, 1, 2, 3], sub_capacity, True, name="sub")
        if not member(sub):
            return
        me.meet("sub", 2, 3)
        me.state("sub attached", sub)
        me.meet("looked", 2, 3)
        me.join()
        if joined:
            me.join(sub, name="join sub")
    else:
        me.init(2, 4)
        sub = me.group([0, 1], sub_capacity, name="sub")
        me.flag(f"up {me.rank}")
        _active_admit(me, [2, 3])
        if joined:
            me.wait_for_peers([2, 3], sub)
            if me.rank == 0:
                me.recover([2, 3], sub, name="recover sub")
                me.flag("sub")
            me.wait_for("sub")
    me.all_reduce(me.rank + 1, name="world")
    me.state("sub", sub)
    me.all_reduce(me.rank + 1, sub, name="sub sum")
    if joined:
        me.call("sub ranks", dist.get_process_group_ranks, sub)
        me.call("group_rank of 2", dist.get_group_rank, sub, 2)
        me.call("global_rank of 2", dist.get_global_rank, sub, 2)
        me.broadcast(me.rank, sub, name="from group rank 2", group_src=2)
        me.broadcast(me.rank, sub, name="from rank 0", src=0)
        if not is_joiner(me):
            me.broadcast(me.rank, sub, name="from rank 2", src=2)


@table(Launch(2), Join(2, 3), limit_s=30)
def scale_with_an_extended_sub_group(me: Observer) -> None:
    """A sub-group [0, 1] with room for 4 grows with the world."""
    _extended(me, 4, True)


@table(Launch(2), Join(2, 3), limit_s=30)
def extended_sub_group_never_joined(me: Observer) -> None:
    """The joiners attach to the sub-group and join WORLD only: the sub-group stays local for them."""
    _extended(me, 4, False)


@table(Launch(2), Join(2, 3), limit_s=30)
def scale_with_fixed_sub_groups(me: Observer) -> None:
    """Each cohort has its own sub-group; WORLD alone grows."""
    if is_joiner(me):
        joiner(me)
        mine = me.group([2, 3], name="own", use_local_synchronization=True)
    else:
        me.init(2, 4)
        mine = me.group([0, 1], name="own")
        me.flag(f"up {me.rank}")
    admit(me, [2, 3])
    me.all_reduce(me.rank + 1, name="world")
    me.all_reduce(me.rank + 1, mine, name="own sum")
    me.state("own", mine)


def _replaced(me: Observer, *options: object, capacity: tuple[object, ...] = (3,)) -> None:
    quick(me)
    if me.process.role == "recover":
        me.wait_for("seen 0")
        me.init(3, *options)
        me.state("attached")
        me.join()
    else:
        world(me, 3, *capacity)
        if me.rank == 1:
            me.die()
        me.wait_until(lambda: False, 0.5)
        me.reported_all_reduce(me.rank + 1, name="failed")
        me.state("failed")
        me.flag(f"seen {me.rank}")
        me.wait_for_peers([1])
        me.peers([0, 1, 2], name="peers")
        if me.rank == 0:
            me.recover([1])
            me.flag("admitted")
        me.wait_for("admitted")
        me.wait_until(lambda: False, 0.5)
    me.state("whole")
    me.all_reduce(me.rank + 1, name="whole")


@table(Launch(3), Recover(1, at_s=4.0), limit_s=30)
def replacement(me: Observer) -> None:
    """Rank 1 dies; a new process takes its slot as an extension."""
    _replaced(me, 3, True)


@table(Launch(3), Recover(1, at_s=4.0), limit_s=30)
def replacement_without_capacity(me: Observer) -> None:
    """The same, without any options at the launch."""
    _replaced(me, 3, True, capacity=())


@table(Launch(3), Recover(1, at_s=4.0), limit_s=30)
def replacement_created_anew(me: Observer) -> None:
    """The new process does not say that it is an extension."""
    quick(me)
    if me.process.role == "recover":
        me.wait_for("seen 0")
        me.init(3)
        me.state("attached")
        me.join()
        return
    world(me, 3)
    if me.rank == 1:
        me.die()
    me.wait_until(lambda: False, 0.5)
    me.reported_all_reduce(me.rank + 1, name="failed")
    me.flag(f"seen {me.rank}")
    me.wait_for("over 1'", within_s=12)
    me.state("later")
    me.peers([0, 1, 2])


@table(Launch(3), Recover(1, at_s=3.0), limit_s=45)
def replacement_before_the_death_is_seen(me: Observer) -> None:
    """Nobody has run a collective since the death; the slot counts as healthy."""
    if me.process.role == "recover":
        me.init(3, 3, True)
        me.join()
    else:
        world(me, 3, 3)
        if me.rank == 1:
            me.die()
        me.wait_until(lambda: False, 2.0)
        me.peers([0, 1, 2], name="peers")
        me.state("unseen")
        me.wait_for_peers([1], within_s=5)
        me.peers([1], name="peer later")
        if me.rank == 0:
            me.recover([1])
            me.flag("admitted")
        me.wait_for("admitted")
        me.wait_until(lambda: False, 0.5)
    me.all_reduce(me.rank + 1)
    me.state()


@table(Launch(3), Recover(1, at_s=4.0), limit_s=30)
def replacement_in_a_sub_group(me: Observer) -> None:
    """Rank 1 dies; its successor is recovered in WORLD and in the sub-group [0, 1]."""
    quick(me)
    if me.process.role == "recover":
        me.wait_for("seen 0")
        me.init(3, 3, True)
        sub = me.group([0, 1], 2, True, name="sub")
        if member(sub):
            me.state("sub attached", sub)
        me.join()
        if member(sub):
            me.join(sub, name="join sub")
    else:
        world(me, 3, 3)
        sub = me.group([0, 1], 2, name="sub")
        if me.rank == 1:
            me.die()
        me.wait_until(lambda: False, 0.5)
        me.reported_all_reduce(me.rank + 1, name="failed")
        me.state("failed")
        if me.rank == 0:
            me.state("sub failed", sub)
        me.flag(f"seen {me.rank}")
        _active_admit(me, [1])
        if me.rank == 0:
            me.wait_for_peers([1], sub, within_s=10)
            me.recover([1], sub, name="recover sub")
    me.all_reduce(me.rank + 1, name="whole")
    if member(sub):
        me.all_reduce(me.rank + 1, sub, name="sub sum")
        me.state("sub", sub)


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


@table(Launch(2), Join(2), limit_s=20)
def group_before_the_joiner_joins(me: Observer) -> None:
    """The joiner creates a one-rank group and one over itself, before and after join_group."""
    if is_joiner(me):
        joiner(me, 3, 3)
        own = me.group([2], use_local_synchronization=True, name="own")
        me.all_reduce(3, own, name="own sum")
    else:
        primary(me, capacity=3)
    admit(me, [2])
    me.all_reduce(me.rank + 1, name="world")
    if is_joiner(me):
        me.all_reduce(3, own, name="own sum later")


@table(Launch(2), Join(2), limit_s=25)
def scale_down_and_up(me: Observer) -> None:
    """The joiner is put out and comes back in place."""
    if is_joiner(me):
        joiner(me, 3, 3)
    else:
        primary(me, capacity=3)
    admit(me, [2])
    me.all_reduce(me.rank + 1, name="three")
    me.meet("three", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([2])
        me.flag("out")
    me.wait_for("out")
    me.wait_until(lambda: False, 0.5)
    if me.rank != 2:
        me.all_reduce(me.rank + 1, name="two")
    me.state("two")
    me.meet("two", 0, 1, 2)
    if me.rank == 2:
        me.join(name="rejoin")
    else:
        me.wait_for_peers([2])
        if me.rank == 1:
            me.recover([2], name="readmit")
            me.flag("readmitted")
        me.wait_for("readmitted")
        me.wait_until(lambda: False, 0.5)
    me.all_reduce(me.rank + 1, name="three again")
    me.state("three again")
