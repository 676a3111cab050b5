"""Right programs: every collective, type and reduction; several in flight; messages; one-rank worlds."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.scenario import Launch, Table
from tests.parity_mooncake.steps import world

table = Table()
OPERATORS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG", "PREMUL_SUM")
TYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
    "float8_e4m3fn",
)


@table(Launch(2), limit_s=20)
def reductions(me: Observer) -> None:
    """Every operator on int32 and on float32."""
    world(me, 2)
    for name in OPERATORS:
        if (op := getattr(dist.ReduceOp, name, None)) is None or name == "PREMUL_SUM":
            continue
        for dtype in (torch.int32, torch.float32):
            me.all_reduce(me.rank + 5, name=f"{name} {dtype}", dtype=dtype, op=op)


@table(Launch(2), limit_s=20)
def types(me: Observer) -> None:
    """A sum and a broadcast of every type."""
    world(me, 2)
    for name in TYPES:
        dtype = getattr(torch, name)
        tensor = torch.ones(3).to(dtype)
        me.call(f"sum {name}", dist.all_reduce, tensor, show=lambda t=tensor: str(t.float().tolist()))
        cast = torch.full((3,), float(me.rank)).to(dtype)
        me.call(f"broadcast {name}", dist.broadcast, cast, src=1, show=lambda t=cast: str(t.float().tolist()))


@table(Launch(3), limit_s=20)
def every_collective(me: Observer) -> None:
    """Each one that torch has, once."""
    world(me, 3)
    n, r = 3, me.rank
    full = partial(torch.full, (2,))
    parts = [full(-1.0) for _ in range(n)]
    me.call("all_gather", dist.all_gather, parts, full(float(r)), show=lambda: [t.tolist() for t in parts])
    flat = torch.full((2 * n,), -1.0)
    me.call("all_gather_into_tensor", dist.all_gather_into_tensor, flat, full(float(r)), show=flat.tolist)
    out = full(-1.0)
    me.call("reduce_scatter", dist.reduce_scatter, out, [full(float(r + s)) for s in range(n)], show=out.tolist)
    out = full(-1.0)
    me.call("reduce_scatter_tensor", dist.reduce_scatter_tensor, out, torch.arange(6.0) + r, show=out.tolist)
    mine = full(r + 1.0)
    me.call("reduce", dist.reduce, mine, dst=1, show=lambda: mine.tolist() if r == 1 else "")
    taken = [full(-1.0) for _ in range(n)] if r == 2 else None
    me.call("gather", dist.gather, full(float(r)), taken, dst=2, show=lambda: [t.tolist() for t in taken or ()])
    given = [full(float(10 + s)) for s in range(n)] if r == 1 else None
    out = full(-1.0)
    me.call("scatter", dist.scatter, out, given, src=1, show=out.tolist)
    swapped = [full(-1.0) for _ in range(n)]
    me.call(
        "all_to_all",
        dist.all_to_all,
        swapped,
        [full(float(10 * r + s)) for s in range(n)],
        show=lambda: [t.tolist() for t in swapped],
    )
    out = torch.full((n,), -1.0)
    me.call("all_to_all_single", dist.all_to_all_single, out, torch.arange(3.0) + 10 * r, show=out.tolist)


@table(Launch(3), limit_s=20)
def uneven_collectives(me: Observer) -> None:
    """all_to_all_single with split sizes, all_gather of unequal sizes in one list, reduce to each root."""
    world(me, 3)
    out = torch.full((3,), -1.0)
    sizes = [1, 1, 1]
    me.call("split", dist.all_to_all_single, out, torch.arange(3.0), sizes, sizes, show=out.tolist)
    for root in range(3):
        tensor = torch.full((2,), me.rank + 1.0)
        me.call(f"reduce {root}", dist.reduce, tensor, dst=root, show=lambda t=tensor: t.tolist())


@table(Launch(3), limit_s=20)
def object_collectives(me: Observer) -> None:
    """The helpers of torch that pickle."""
    world(me, 3)
    found: list[object] = [None] * 3
    me.call("all_gather_object", dist.all_gather_object, found, {"rank": me.rank}, show=lambda: found)
    one = [f"from {me.rank}", me.rank]
    me.call("broadcast_object_list", dist.broadcast_object_list, one, src=1, show=lambda: one)
    taken: list[object] | None = [None] * 3 if me.rank == 0 else None
    me.call("gather_object", dist.gather_object, me.rank, taken, dst=0, show=lambda: taken)
    out: list[object] = [None]
    given = ["a", "b", "c"] if me.rank == 2 else None
    me.call("scatter_object_list", dist.scatter_object_list, out, given, src=2, show=lambda: out)


@table(Launch(2), limit_s=20)
def odd_tensors(me: Observer) -> None:
    """Empty, of no dimension, not contiguous, large."""
    world(me, 2)
    me.all_reduce(1, name="empty", n=0)
    scalar = torch.tensor(me.rank + 1.0)
    me.call("scalar", dist.all_reduce, scalar, show=scalar.item)
    columns = torch.full((2, 3), me.rank + 1.0).t()
    me.call("transposed", dist.all_reduce, columns, show=columns.tolist)
    stepped = torch.full((6,), me.rank + 1.0)
    me.call("stepped", dist.all_reduce, stepped[::2], show=stepped.tolist)
    large = torch.full((500_000,), me.rank + 1.0)
    me.call("large", dist.all_reduce, large, show=lambda: [large.min().item(), large.max().item()])
    me.call("empty broadcast", dist.broadcast, torch.empty(0), src=0)


@table(Launch(2), limit_s=15, races="a third one is refused unless the first has ended: two slots")
def three_in_flight(me: Observer) -> None:
    """Three asynchronous collectives at once."""
    world(me, 2)
    for k in range(3):
        me.call(f"begin {k}", dist.all_reduce, torch.ones(2), async_op=True)


@table(Launch(2), limit_s=20)
def two_in_flight(me: Observer) -> None:
    """Two asynchronous collectives, waited for in the other order."""
    world(me, 2)
    tensors = [torch.full((2,), float(me.rank + k)) for k in range(2)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for k in (1, 0):
        me.call(f"wait {k}", works[k].wait)
        me.note(f"completed {k}", works[k].is_completed())
        me.note(f"success {k}", works[k].is_success())
        me.note(f"value {k}", tensors[k].tolist())
    me.note("local_success", [me.pg.get_local_success(work) for work in works])
    me.note("hints", [me.pg.get_failed_ranks_hint(work).tolist() for work in works])


@table(Launch(2), limit_s=25)
def messages(me: Observer) -> None:
    """In both directions, in a batch, with tags, several of one pair, to oneself."""
    world(me, 2)
    peer = 1 - me.rank
    mine, theirs = torch.full((3,), float(me.rank)), torch.full((3,), -1.0)
    works = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
    for number, work in enumerate(works):
        me.call(f"wait {number}", work.wait)
    me.note("swapped", theirs.tolist())
    batch = [dist.P2POp(dist.isend, mine + 5, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for number, work in enumerate(dist.batch_isend_irecv(batch)):
        me.call(f"batch {number}", work.wait)
    me.note("batch", theirs.tolist())
    if me.rank == 0:
        for k in range(3):
            me.call(f"send {k}", dist.send, torch.full((2,), float(k)), 1)
    else:
        for k in range(3):
            tensor = torch.full((2,), -1.0)
            me.call(f"recv {k}", dist.recv, tensor, 0, show=tensor.tolist)
    me.call("send to oneself", dist.isend, mine, me.rank)


@table(Launch(2), limit_s=20)
def tags(me: Observer) -> None:
    """A tag that the receiver does not give."""
    me.pg.set_p2p_timeout_us(5_000_000)
    world(me, 2)
    if me.rank == 0:
        me.reported("send", dist.isend, torch.ones(2), 1, tag=3)
    else:
        tensor = torch.full((2,), -1.0)
        me.reported("recv", dist.irecv, tensor, 0, tag=4, of=tensor)


@table(Launch(1), limit_s=15)
def world_of_one(me: Observer) -> None:
    """All is local, and nothing waits."""
    me.init(1)
    me.all_reduce(3)
    me.all_gather(2, 1)
    me.broadcast(4, src=0)
    me.call("barrier", dist.barrier)
    me.state()
    group = me.group([0])
    me.all_reduce(5, group, name="sub sum")
    me.reported_all_reduce(2, name="reported")
    me.join()
    me.recover([0])
    me.deactivate([0])
    me.state("put out")


@table(Launch(3), limit_s=15)
def barriers_only(me: Observer) -> None:
    """Groups that only ever meet in barriers."""
    me.init(3)
    group = me.group([0, 2])
    for number in range(3):
        me.call(f"world {number}", dist.barrier)
        if me.rank != 1:
            me.call(f"sub {number}", dist.barrier, group)
    me.state()


@table(Launch(3), limit_s=20)
def what_is_told_of_a_good_work(me: Observer) -> None:
    """Success, hint, and that of a work of another kind."""
    world(me, 3)
    me.reported_all_reduce(me.rank + 1)
    me.reported("barrier", dist.barrier, async_op=True)
    me.call("success of none", me.pg.get_local_success, None)
    me.call("hint of none", me.pg.get_failed_ranks_hint, None)
    me.call("sync", me.pg.sync_after_failure, dist.group.WORLD)
    me.note("backend", dist.get_backend())
    me.note("rank", dist.get_rank())


@table(Launch(4), limit_s=20)
def overlapping_groups(me: Observer) -> None:
    """Pairs, triples and all, of one world, used in one order."""
    world(me, 4)
    groups = [me.group(ranks) for ranks in ([0, 1], [2, 3], [1, 2, 3], [0, 3], [0, 1, 2, 3])]
    for number, group in enumerate(groups):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            me.all_reduce(me.rank + 1, group, name=f"sum {number}")
            me.broadcast(me.rank, group, name=f"cast {number}", group_src=1)
            me.note(f"rank in {number}", dist.get_rank(group))
