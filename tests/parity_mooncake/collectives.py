"""Collectives and messages: missing and late participants, mismatches, death, what is not supported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Launch, Table
from tests.parity_mooncake.steps import quick, world

table = Table()
Step = Callable[[Observer], None]


@table(Launch(2), limit_s=45)
def missing_participant(me: Observer) -> None:
    """Rank 1 lives and never calls: rank 0 waits for good, whatever time-out it gives."""
    me.init(2, timeout=timedelta(seconds=5))
    me.all_reduce(me.rank + 1)
    if me.rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        me.call("wait(3 s)", work.wait, timedelta(seconds=3))
    else:
        me.wait_until(lambda: False, 50.0)


@table(Launch(2), limit_s=40)
def late_participant(me: Observer) -> None:
    """Rank 1 comes 25 s late."""
    world(me, 2)
    if me.rank == 1:
        me.wait_until(lambda: False, 25.0)
    me.reported_all_reduce(me.rank + 1)


def _sum(value: float, n: int = 4, dtype: torch.dtype = torch.float32, op: dist.ReduceOp = dist.ReduceOp.SUM) -> Step:
    def step(me: Observer) -> None:
        me.all_reduce(value, n=n, dtype=dtype, op=op, name="odd")

    return step


def _cast(value: float, src: int) -> Step:
    return lambda me: me.broadcast(value, n=4, src=src, name="odd")


def _gather(me: Observer) -> None:
    outputs = [torch.full((4,), -9.0) for _ in range(2)]
    me.call("odd", dist.all_gather, outputs, torch.full((4,), 2.0), show=lambda: [t.tolist() for t in outputs])


def _barrier(me: Observer) -> None:
    me.call("odd", dist.barrier)


def _long(me: Observer) -> None:
    tensor = torch.full((4,), 2, dtype=torch.int64)
    me.call("odd", dist.all_reduce, tensor, show=lambda: tensor.tolist()[2:])


MISMATCHES: dict[str, tuple[str, Step, Step]] = {
    "all_reduce_broadcast_0": ("all_reduce meets a broadcast from rank 0", _sum(1), _cast(2, 0)),
    "all_reduce_broadcast_1": ("all_reduce meets a broadcast from rank 1", _sum(1), _cast(2, 1)),
    "all_reduce_barrier": ("all_reduce meets a barrier", _sum(1), _barrier),
    "all_reduce_all_gather": ("all_reduce meets an all_gather", _sum(1), _gather),
    "sizes": ("4 elements meet 8", _sum(1), _sum(2, n=8)),
    "dtypes": ("float32 meets int64, whose first two elements are garbage", _sum(1), _long),
    "reductions": ("SUM meets MAX", _sum(1), _sum(2, op=dist.ReduceOp.MAX)),
    "reductions_swapped": ("MAX meets SUM", _sum(1, op=dist.ReduceOp.MAX), _sum(2)),
    "products": ("PRODUCT meets SUM", _sum(3, op=dist.ReduceOp.PRODUCT), _sum(2)),
    "roots": ("two roots, each its own", _cast(1, 0), _cast(2, 1)),
    "roots_swapped": ("two roots, each the other's", _cast(1, 1), _cast(2, 0)),
    "barrier_all_reduce": ("a barrier meets an all_reduce", _barrier, _sum(2)),
    "broadcast_all_reduce": ("a broadcast from rank 0 meets an all_reduce", _cast(1, 0), _sum(2)),
    "sizes_swapped": ("8 elements meet 4", _sum(1, n=8), _sum(2)),
    "barrier_broadcast": ("a barrier meets a broadcast from rank 0", _barrier, _cast(2, 0)),
    "gather_sum": ("an all_gather meets an all_reduce", _gather, _sum(3)),
}


def _mismatch(me: Observer, odd: tuple[Step, Step], late: int) -> None:
    """What comes of it depends on who writes last into the memory of whom, so one of them comes late."""
    world(me, 2)
    me.meet("first", 0, 1)
    if me.rank == late:
        me.wait_until(lambda: False, 1.0)
    odd[me.rank](me)
    me.all_reduce(me.rank + 1, name="next")
    me.call("barrier", dist.barrier)


for _name, (_what, *_odd) in MISMATCHES.items():
    for _late in (0, 1):
        _program = partial(_mismatch, odd=tuple(_odd), late=_late)
        table.add(
            f"mismatch_{_name}_late_{_late}", _program, f"{_what}; rank {_late} is late", (Launch(2),), limit_s=15
        )


@table(Launch(2), limit_s=20)
def mismatch_of_many_parts(me: Observer) -> None:
    """4 elements meet 4 million, which the backend sends in parts."""
    world(me, 2)
    if me.rank == 0:
        me.all_reduce(1, n=4, name="odd")
    else:
        tensor = torch.full((4_000_000,), 2.0)
        me.call("odd", dist.all_reduce, tensor, show=lambda: "returned")
    me.all_reduce(me.rank + 1, name="next")


@table(Launch(2), limit_s=25)
def two_groups_in_crossed_order(me: Observer) -> None:
    """A deadlock."""
    world(me, 2)
    group = me.group([0, 1])
    first, second = (None, group) if me.rank == 0 else (group, None)
    me.all_reduce(1, first, name="one")
    me.all_reduce(1, second, name="other")


@table(Launch(3), limit_s=55)
def last_rank_dies(me: Observer) -> None:
    """The survivors wait for the whole window of 30 s, then have their own sum."""
    _after_death(me, 2)


@table(Launch(3), limit_s=55)
def middle_rank_dies(me: Observer) -> None:
    """The world keeps a hole."""
    _after_death(me, 1)


def _after_death(me: Observer, victim: int) -> None:
    world(me, 3)
    if me.rank == victim:
        me.die()
    me.wait_until(lambda: False, 0.5)
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.reported_all_reduce(me.rank + 1, name="second")
    me.call("barrier", dist.barrier)


@table(Launch(3), limit_s=60)
def rank_dies_in_flight(me: Observer) -> None:
    """The survivors already wait inside the collective: 40 s."""
    world(me, 3)
    if me.rank == 2:
        me.wait_until(lambda: False, 4.0)
        me.die()
    me.reported_all_reduce(me.rank + 1)
    me.state()
    me.all_reduce(me.rank + 1, name="next")


@table(Launch(3), limit_s=25)
def death_in_a_short_window(me: Observer) -> None:
    """The window is 4 s."""
    quick(me)
    _after_death(me, 2)


@table(Launch(3), limit_s=50)
def death_without_auto_sync(me: Observer) -> None:
    """The collective returns at once; a second one adds what the dead rank left; sync_after_failure takes 29 s."""
    world(me, 3, 3, False, True, False)
    if me.rank == 2:
        me.die()
    me.wait_until(lambda: False, 0.5)
    me.reported_all_reduce(me.rank + 1)
    me.state("failed")
    me.reported_all_reduce(me.rank + 1, name="second")
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.state("synced")
    me.reported_all_reduce(me.rank + 1, name="third")


@table(Launch(3), limit_s=50)
def rank_0_dies(me: Observer) -> None:
    """The coordinator is gone: the others end with SIGABRT."""
    _after_death(me, 0)


@table(Launch(2), limit_s=55)
def send_without_recv(me: Observer) -> None:
    """The send is given up after 40 s, and reported as ok."""
    world(me, 2)
    if me.rank == 0:
        me.reported("send", dist.isend, torch.ones(2), 1)
        me.state()
    else:
        me.wait_for("over 0")


@table(Launch(2), limit_s=55)
def recv_without_send(me: Observer) -> None:
    """The receive is given up after 40 s, and reported as ok."""
    world(me, 2)
    if me.rank == 0:
        tensor = torch.full((2,), -1.0)
        me.reported("recv", dist.irecv, tensor, 1, of=tensor)
        me.state()
    else:
        me.wait_for("over 0")


@table(Launch(2), limit_s=20)
def message_of_another_size(me: Observer) -> None:
    """Both ends of a message of 4 that is received as 8 abort."""
    world(me, 2)
    if me.rank == 0:
        me.call("send", dist.send, torch.arange(4.0), 1)
        me.call("send again", dist.send, torch.arange(8.0), 1)
    else:
        tensor = torch.full((8,), -1.0)
        me.call("recv", dist.recv, tensor, 0, show=tensor.tolist)
        me.call("recv again", dist.recv, tensor[:4], 0)


@table(Launch(2), limit_s=20)
def not_supported(me: Observer) -> None:
    """What this backend refuses."""
    world(me, 2)
    me.call("float16", dist.all_reduce, torch.ones(2, dtype=torch.float16))
    me.call("AVG", dist.all_reduce, torch.ones(2), dist.ReduceOp.AVG)
    me.call("monitored_barrier", dist.monitored_barrier)
    if me.rank == 0:
        me.call("recv any", dist.recv, torch.ones(2))
    me.call("list too long", dist.all_gather, [torch.ones(2)] * 3, torch.ones(2))
    me.call("root out of range", dist.broadcast, torch.ones(2), 5)
    me.all_reduce(me.rank + 1)


@table(Launch(2), limit_s=20)
def options_that_do_not_fit(me: Observer) -> None:
    """Checks at the creation of a group."""
    world(me, 2)
    me.group([0, 1], 1, name="max 1")
    me.group([0, 1], 65, name="max 65")
    me.group([0, 1], 2, False, False, True, name="sync without deactivate")
    me.group([0, 5], name="rank 5")
    me.group([0, 0], name="rank 0 twice")
    me.all_reduce(me.rank + 1)
