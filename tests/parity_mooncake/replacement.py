"""A new process in the slot of a dead one; two processes of one rank."""

from __future__ import annotations

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Join, Launch, Recover, Table
from tests.parity_mooncake.steps import admit_next, is_joiner, member, primary, quick, world

table = Table()


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
        admit_next(me, [1])
        if me.rank == 0:
            me.wait_for_peers([1], sub, within_s=10)
            me.recover([1], sub, name="recover sub")
    me.all_reduce(me.rank + 1, name="whole")
    if member(sub):
        me.all_reduce(me.rank + 1, sub, name="sub sum")
        me.state("sub", sub)
