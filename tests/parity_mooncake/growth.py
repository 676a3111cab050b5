"""Growth and recovery beyond the simple case: stages, cohorts, replacements, sub-groups, capacity, masks given."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import admit, admit_next, is_joiner, joiner, member, primary

table = Table()


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
            admit_next(me, [2])
        me.all_reduce(me.rank + 1, name="three")
        me.state("three")
        me.flag("stage 2")
        admit_next(me, [3])
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
            admit_next(me, [2])
        me.all_reduce(me.rank + 1, name="three")
        me.flag("stage 2")
        admit_next(me, [3], by=2)
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
        admit_next(me, [2, 3])
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
