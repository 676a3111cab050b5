"""Programs of several classes, as frameworks have them: grids, pipelines, experts, checkpoints, wrapped modules."""

from __future__ import annotations

from tests.suite.calls import CALLS, MOVED
from tests.suite.messages import BUFFERS
from tests.suite.parameters import PARAMETERS
from tests.suite.pick import Pick, pattern
from tests.suite.shared import SHARED


@pattern(SHARED, sizes=(4, 4))
def tensor_and_data_parallel(p: Pick) -> None:
    """One rank reduces over the data group first: no cycle comes of it, since all others agree."""
    victim = p.rank()
    groups = """
        tensor = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
        data = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
        activation, gradient = filled(rank + 1.0, 2), filled(rank + 2.0, 3)
    """
    p.right(f"""
        {groups.strip()}
        if rank == {victim}:
            dist.all_reduce(gradient, group=data)
            dist.all_reduce(activation, group=tensor)
        else:
            dist.all_reduce(activation, group=tensor)
            dist.all_reduce(gradient, group=data)
        out.append((activation.tolist(), gradient.tolist()))
    """)
    p.right(f"""
        {groups.strip()}
        work = dist.all_reduce(gradient, group=data, async_op=True)
        if rank == {victim}:
            time.sleep(0.02)
        dist.all_reduce(activation, group=tensor)
        work.wait()
        out.append((activation.tolist(), gradient.tolist()))
    """)


@pattern(CALLS, sizes=(2, 6))
def experts_without_tokens(p: Pick) -> None:
    """A rank without tokens leaves out the exchange with the experts."""
    victim = p.rank()
    p.wrong(f"""
        tokens = 0 if rank == {victim} else 2 + rank
        x = filled(float(rank), tokens)
        if tokens:
            counts = filled(0, world_size, torch.int64)
            dist.all_to_all_single(counts, filled(tokens, world_size, torch.int64))  # CULPRIT
            out.append(counts.tolist())
        total = filled(float(tokens))
        dist.all_reduce(total)  # CULPRIT
        out.append(total.item())
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        tokens = 0 if rank == {victim} else 2 + rank
        sends = [(tokens + peer) // world_size for peer in range(world_size)]
        takes = filled(0, world_size, torch.int64)
        dist.all_to_all_single(takes, torch.tensor(sends, device=takes.device))
        x = filled(float(rank), sum(sends))
        y = filled(0.0, int(takes.sum().item()))
        dist.all_to_all_single(y, x, takes.tolist(), sends)
        back = filled(0.0, sum(sends))
        dist.all_to_all_single(back, y, sends, takes.tolist())
        out.append((y.tolist(), back.tolist()))
    """)


@pattern(BUFFERS, sizes=(2, 5), backends=("gloo",))
def pipeline_with_warm_up(p: Pick) -> None:
    """One forward, one backward: the last stage wants one micro-batch more before it sends gradients back."""
    batches = p.number(2, 4)
    early = "world_size - 1 - rank"
    body = """
        x = filled(0.0)
        warm_up = min({batches}, {warm_up})
        works, forward, backward = [], 0, 0

        def run_forward():
            if rank:
                dist.recv(x, src=rank - 1)
            if rank < world_size - 1:
                {send}

        def run_backward():
            if rank < world_size - 1:
                dist.recv(x, src=rank + 1)
            if rank:
                dist.send(x + 1, dst=rank - 1)

        for _ in range(warm_up):
            run_forward()
        for _ in range({batches} - warm_up):
            run_forward()
            run_backward()
        for _ in range(warm_up):
            run_backward()
        for work in works:
            work.wait()
        out.append(x.item())
    """
    blocking, later = "dist.send(x + 1, dst=rank + 1)", "works.append(dist.isend(x + 1, dst=rank + 1))"
    p.right(body.format(batches=batches, warm_up=early, send=later))
    if p.n > 2:
        p.right(body.format(batches=batches, warm_up=batches, send=blocking))
    p.wrong(f"""
        x = filled(0.0)
        for step in range({batches}):
            if rank:
                dist.recv(x, src=rank - 1)  # CULPRIT
            if rank < world_size - 1:
                dist.send(x + 1, dst=rank + 1)  # CULPRIT
        for step in range({batches} + (rank == world_size - 1)):
            if rank < world_size - 1:
                dist.recv(x, src=rank + 1)  # CULPRIT
            if rank:
                dist.send(x + 1, dst=rank - 1)  # CULPRIT
        out.append(x.item())
    """, "deadlock", [p.n - 1], also=[p.n - 2])  # fmt: skip


@pattern(BUFFERS, sizes=(2, 6))
def ring_attention(p: Pick) -> None:
    """Blocks go round a ring; one rank forgets that the ring is closed."""
    last = p.n - 1
    p.wrong(f"""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        block, total = filled(float(rank), 2), filled(0.0, 2)
        for step in range(world_size):
            total += block
            coming = filled(0.0, 2)
            ops = [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, coming, left)]
            if rank == {last}:
                ops = ops[1:]
            for work in dist.batch_isend_irecv(ops):  # CULPRIT
                work.wait()  # CULPRIT
            block = coming
        out.append(total.tolist())
    """, "deadlock", [last], also=p.all)  # fmt: skip
    p.right("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        block, total = filled(float(rank), 2), filled(0.0, 2)
        for step in range(world_size):
            coming = filled(0.0, 2)
            ops = [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, coming, left)]
            works = dist.batch_isend_irecv(ops)
            total += block
            for work in works:
                work.wait()
            block = coming
        out.append(total.tolist())
    """)


@pattern(PARAMETERS)
def buckets_in_another_order(p: Pick) -> None:
    """One rank registers its parameters in another order, so its buckets have other sizes."""
    victim = p.rank()
    p.wrong(f"""
        sizes = [2, 5, 3]
        if rank == {victim}:
            sizes.sort()
        works = []
        for size in sizes:
            bucket = filled(rank + 1.0, size)
            works.append((bucket, dist.all_reduce(bucket, async_op=True)))  # CULPRIT
        for bucket, work in works:
            work.wait()  # CULPRIT
            out.append(bucket.tolist())
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right(f"""
        sizes = [2, 5, 3] if rank == {victim} else list((2, 5, 3))
        works = []
        for size in sorted(sizes):
            bucket = filled(rank + 1.0, size)
            works.append((bucket, dist.all_reduce(bucket, async_op=True)))
        for bucket, work in reversed(works):
            work.wait()
            out.append(bucket.tolist())
    """)


@pattern(CALLS)
def stops_by_its_own_loss(p: Pick) -> None:
    """Each rank stops early by its own loss instead of the common one."""
    victim = p.rank()
    p.wrong(f"""
        loss = filled(4.0 if rank == {victim} else 8.0)
        for step in range(4):
            gradient = filled(1.0, 2)
            dist.all_reduce(gradient)  # CULPRIT
            loss /= 2
            if loss.item() < 1.0:
                break
        dist.barrier()  # CULPRIT
        out.append(loss.item())
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        loss = filled(4.0 if rank == {victim} else 8.0)
        for step in range(8):
            gradient = filled(1.0, 2)
            dist.all_reduce(gradient)
            loss /= 2
            common = loss.clone()
            dist.all_reduce(common, op=dist.ReduceOp.MAX)
            if common.item() < 1.0:
                break
        dist.barrier()
        out.append(step)
    """)


@pattern(CALLS)
def metrics_on_rank_0(p: Pick) -> None:
    """Only rank 0 evaluates, and the metric reduces inside."""
    p.wrong("""
        def accuracy(hits):
            counts = filled(float(hits), 2)
            dist.all_reduce(counts)  # CULPRIT
            return counts[0].item()

        if rank == 0:
            out.append(accuracy(3))
        x = filled(1.0)
        dist.broadcast(x, src=0)  # CULPRIT
        out.append(x.item())
    """, MOVED, p.blamed(0))  # fmt: skip
    p.right("""
        def accuracy(hits):
            counts = filled(float(hits), 2)
            dist.all_reduce(counts)
            return counts[0].item()

        value = accuracy(rank)
        if rank == 0:
            out.append(value)
        x = filled(value if rank == 0 else 0.0)
        dist.broadcast(x, src=0)
        out.append(x.item())
    """)


@pattern(CALLS, sizes=(3, 6))
def checkpoint_by_the_first_of_each_group(p: Pick) -> None:
    """The ranks that save wait for all in a barrier, but only one of the others comes along."""
    half = p.n // 2
    savers, others = p.all[:half], p.all[half:]
    come = others[p.number(0, len(others) - 1)]
    p.wrong(f"""
        savers = dist.new_group({savers})
        if rank in {savers}:
            shards = [None] * {half}
            dist.all_gather_object(shards, rank, group=savers)
            out.append(shards)
        if rank in {[*savers, come]}:
            dist.barrier()  # CULPRIT
    """, "deadlock", [rank for rank in others if rank != come], also=p.all)  # fmt: skip
    p.right(f"""
        savers = dist.new_group({savers})
        if rank in {savers}:
            shards = [None] * {half}
            dist.all_gather_object(shards, rank, group=savers)
            out.append(shards)
        dist.barrier()
    """)


@pattern(CALLS, backends=("gloo",), sizes=(4, 8))
def mesh_of_two_dimensions(p: Pick) -> None:
    """A DeviceMesh with named dimensions; each rank uses its own row and column."""
    columns = 2
    rows = p.n // columns
    p.right(f"""
        from torch.distributed.device_mesh import DeviceMesh

        if world_size == {rows * columns}:
            mesh = DeviceMesh("cpu", torch.arange(world_size).reshape({rows}, {columns}), mesh_dim_names=("dp", "tp"))
            for name in ("tp", "dp"):
                x = filled(float(rank))
                dist.all_reduce(x, group=mesh.get_group(name))
                out.append((x.item(), mesh.get_local_rank(name)))
        dist.barrier()
    """, end=False)  # fmt: skip


@pattern(CALLS, backends=("gloo",), sizes=(2, 4))
def data_parallel_module(p: Pick) -> None:
    """A step of DistributedDataParallel, with a layer that one rank does not use."""
    victim = p.rank()
    model = """
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        layers = torch.nn.ModuleDict(dict(first=torch.nn.Linear(2, 2), second=torch.nn.Linear(2, 1)))

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = layers

            def forward(self, x, short):
                hidden = self.layers["first"](x)
                return hidden.sum() if short else self.layers["second"](hidden).sum()
    """
    p.wrong(f"""
        {model.strip()}

        replica = DistributedDataParallel(Model())
        replica(filled(1.0, 2), rank == {victim}).backward()  # CULPRIT
        out.append([float(value.grad.sum()) for value in layers["first"].parameters()])
        dist.barrier()  # CULPRIT
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        {model.strip()}

        replica = DistributedDataParallel(Model(), find_unused_parameters=True)
        replica(filled(1.0, 2), rank == {victim}).backward()
        out.append([float(value.grad.sum()) for value in layers["first"].parameters()])
        dist.barrier()
    """)


@pattern(CALLS, backends=("gloo",))
def monitored_barriers(p: Pick) -> None:
    """monitored_barrier beside other calls, on WORLD and on a group."""
    members = p.ranks(max(2, p.n - 1))
    p.right(f"""
        group = dist.new_group({members})
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        x = filled(1.0)
        dist.all_reduce(x)
        if rank in {members}:
            dist.monitored_barrier(group, timeout=timedelta(seconds=20), wait_all_ranks=True)
        out.append(x.item())
    """)


@pattern(CALLS, backends=("gloo",), sizes=(2, 4))
def functional_collectives(p: Pick) -> None:
    """Functional collectives return at once; their results wait when they are used."""
    p.right("""
        import torch.distributed._functional_collectives as functional

        x = filled(rank + 1.0, world_size)
        total = functional.all_reduce(x, "sum", dist.group.WORLD)
        parts = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        share = functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)
        out.append(((total + 1).tolist(), parts.sum().item(), share.tolist()))
        dist.barrier()
    """)


@pattern(PARAMETERS)
def sharded_parameters(p: Pick) -> None:
    """Gradients are reduced and scattered, parameters gathered, with padding for sizes that do not divide."""
    count = p.number(3, 9)
    p.right(f"""
        whole = torch.arange({count}.0).to(filled(0.0).device)
        share = -(-{count} // world_size)
        padded = torch.nn.functional.pad(whole, (0, share * world_size - {count}))
        mine = filled(0.0, share)
        dist.reduce_scatter_tensor(mine, padded)
        mine -= 1
        gathered = filled(0.0, share * world_size)
        dist.all_gather_into_tensor(gathered, mine)
        out.append(gathered[:{count}].tolist())
    """)
