"""Class `parameter_matching`: what the ranks of one collective, or the two ends of a message, bring."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

from tests.suite.pick import Pick, pattern

PARAMETERS = "parameter_matching"
GLOO_HAS_ALL_TO_ALL = TorchVersion(torch.__version__) >= "2.12"


@pattern(PARAMETERS)
def sizes_differ(p: Pick) -> None:
    """One rank brings a tensor of another size."""
    victim, count = p.rank(), p.number(2, 6)
    call = p.among(["dist.all_reduce(x)", "dist.all_reduce(x, op=dist.ReduceOp.MIN)"])
    p.wrong(f"""
        x = filled(1.0, {count} + (rank == {victim}))
        {call}  # CULPRIT
        out.append(x.tolist())
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right(f"""
        x = filled(1.0, 2 * {count})
        x = x.reshape(2, {count}) if rank == {victim} else x.reshape({count}, 2)
        {call}
        out.append(x.flatten().tolist())
    """)


@pattern(PARAMETERS)
def dtypes_differ(p: Pick) -> None:
    """One rank brings another dtype, as numpy's float64 does."""
    victim = p.rank()
    a, b = p.among(["float32 float64", "float32 int32", "int64 float32", "float32 bfloat16"]).split()
    p.wrong(f"""
        x = filled(1, 4, torch.{b} if rank == {victim} else torch.{a})
        dist.all_reduce(x)  # CULPRIT
        out.append(x.tolist())
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right(f"""
        x = filled(1, 4, torch.{b} if rank == {victim} else torch.{a}).to(torch.{a})
        dist.all_reduce(x)
        out.append(x.tolist())
    """)


@pattern(PARAMETERS)
def reductions_differ(p: Pick) -> None:
    """One rank reduces by another operation."""
    victim = p.rank()
    a, b = p.among(["SUM MAX", "MIN MAX", "PRODUCT SUM"]).split()
    p.wrong(f"""
        x = filled(rank + 1.0, 3)
        dist.all_reduce(x, op=dist.ReduceOp.{b} if rank == {victim} else dist.ReduceOp.{a})  # CULPRIT
        out.append(x.tolist())
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right(f"""
        x = filled(rank + 1.0, 3)
        op = getattr(dist.ReduceOp, "{a}") if rank == {victim} else dist.ReduceOp.{a}
        dist.all_reduce(x, op=op)
        dist.all_reduce(x, op=dist.ReduceOp.{b})
        out.append(x.tolist())
    """)


@pattern(PARAMETERS)
def roots_differ(p: Pick) -> None:
    """One rank takes another rank for the root."""
    root = p.rank()
    other = p.rank(but=[root])
    victim = p.rank(but=[root])
    call = p.among(["broadcast(x, src=root)", "reduce(x, dst=root)"])
    p.wrong(f"""
        root = {other} if rank == {victim} else {root}
        x = filled(rank + 1.0, 8)
        dist.{call}  # CULPRIT
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right(f"""
        root = (world_size + {root}) % world_size if rank == {victim} else {root}
        x = filled(rank + 1.0, 8)
        dist.{call}
        if rank == root:
            out.append(x.tolist())
    """)


@pattern(PARAMETERS)
def gather_to_different_roots(p: Pick) -> None:
    """One rank believes that it is the one that gathers."""
    root = p.rank()
    victim = p.rank(but=[root])
    p.wrong(f"""
        root = rank if rank in ({root}, {victim}) else {root}
        parts = [filled(0.0) for _ in range(world_size)] if rank == root else None
        dist.gather(filled(rank + 1.0), parts, dst=root)  # CULPRIT
    """, "mismatch", p.blamed(victim))  # fmt: skip
    p.right(f"""
        root = {root}
        parts = [filled(0.0) for _ in range(world_size)] if rank == root else None
        dist.gather(filled(rank + 1.0), parts, dst=root)
        scattered = filled(0.0)
        dist.scatter(scattered, parts, src=root)
        out.append(scattered.item())
    """)


@pattern(PARAMETERS, sizes=(2, 6))
def splits_do_not_fit(p: Pick) -> None:
    """What one rank expects from another is not what that one sends."""
    a, b = p.ranks(2)
    p.wrong(f"""
        sends = [2] * world_size
        takes = [2] * world_size
        if rank == {b}:
            takes[{a}] = 3
        x, y = filled(rank + 1.0, sum(sends)), filled(0.0, sum(takes))
        dist.all_to_all_single(y, x, takes, sends)  # CULPRIT
        out.append(y.tolist())
    """, "mismatch", [b], also=[a], silent=True)  # fmt: skip
    p.right("""
        sends = [1 + (rank + 2 * peer) % 3 for peer in range(world_size)]
        takes = [1 + (peer + 2 * rank) % 3 for peer in range(world_size)]
        x, y = filled(rank + 1.0, sum(sends)), filled(0.0, sum(takes))
        dist.all_to_all_single(y, x, takes, sends)
        out.append(y.tolist())
    """)
    p.right(f"""
        sends = [0] * world_size
        takes = [0] * world_size
        if rank == {a}:
            sends[{b}] = 5
        if rank == {b}:
            takes[{a}] = 5
        x, y = filled(rank + 1.0, sum(sends)), filled(0.0, sum(takes))
        dist.all_to_all_single(y, x, takes, sends)
        out.append(y.tolist())
    """)


@pattern(PARAMETERS)
def message_of_another_size(p: Pick) -> None:
    """The receiver's tensor is larger, or smaller, than what is sent."""
    a, b = p.ranks(2)
    more = p.among(["3", "5"])
    p.wrong(f"""
        if rank == {a}:
            dist.send(filled(1.0, 4), dst={b})  # CULPRIT
        elif rank == {b}:
            x = filled(0.0, {more})
            dist.recv(x, src={a})  # CULPRIT
            out.append(x.tolist())
    """, "mismatch", [a, b], silent=True)  # fmt: skip
    p.right(f"""
        if rank == {a}:
            dist.send(torch.arange(6.0).reshape(2, 3).to(filled(0.0).device), dst={b})
        elif rank == {b}:
            whole = filled(0.0, 10)
            dist.recv(whole[2:8], src={a})
            out.append(whole.tolist())
    """)


@pattern(PARAMETERS)
def message_of_another_dtype(p: Pick) -> None:
    """As many bytes, but of another dtype."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            dist.send(filled(1.0, 4), dst={b})  # CULPRIT
        elif rank == {b}:
            x = filled(0, 4, torch.int32)
            dist.recv(x, src={a})  # CULPRIT
            out.append(x.tolist())
    """, "mismatch", [a, b], silent=True)  # fmt: skip
    p.right(f"""
        if rank == {a}:
            dist.send(filled(3, 4, torch.int32), dst={b})
        elif rank == {b}:
            x = filled(0, 4, torch.int32)
            dist.recv(x, src={a})
            out.append(x.float().tolist())
    """)


@pattern(PARAMETERS, backends=("gloo",))
def tags_differ(p: Pick) -> None:
    """The two ends of a message have different tags."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            dist.send(filled(1.0), dst={b}, tag=3)  # CULPRIT
        elif rank == {b}:
            x = filled(0.0)
            dist.recv(x, src={a}, tag=4)  # CULPRIT
            out.append(x.item())
    """, "deadlock mismatch", [a, b])  # fmt: skip
    p.right(f"""
        x, y = filled(0.0), filled(0.0)
        if rank == {a}:
            first, second = dist.isend(filled(1.0), dst={b}, tag=3), dist.isend(filled(2.0), dst={b}, tag=4)
            first.wait()
            second.wait()
        elif rank == {b}:
            late = dist.irecv(y, src={a}, tag=4)
            dist.recv(x, src={a}, tag=3)
            late.wait()
        out.append((x.item(), y.item()))
    """)


@pattern(PARAMETERS)
def objects_from_different_sources(p: Pick) -> None:
    """One rank expects the objects from another source."""
    root = p.rank()
    victim = p.rank(but=[root])
    p.wrong(f"""
        objects = [("settings", rank)]
        dist.broadcast_object_list(objects, src=rank if rank == {victim} else {root})  # CULPRIT
        out.append(objects)
    """, "mismatch", p.blamed(victim))  # fmt: skip
    p.right(f"""
        objects = [("settings", "x" * 40 * rank), None] if rank == {root} else [None, None]
        dist.broadcast_object_list(objects, src={root})
        everybody = [None] * world_size
        dist.all_gather_object(everybody, "y" * (7 * rank + 1))
        out.append((objects, everybody))
    """)


@pattern(PARAMETERS)
def objects_in_lists_of_different_length(p: Pick) -> None:
    """One rank expects one object more."""
    root = p.rank()
    victim = p.rank(but=[root])
    p.wrong(f"""
        objects = [("settings", rank)] + [None] * (rank == {victim})
        dist.broadcast_object_list(objects, src={root})  # CULPRIT
        out.append(objects)
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip


@pattern(PARAMETERS)
def parts_differ(p: Pick) -> None:
    """One rank gathers parts of another size."""
    victim = p.rank()
    p.wrong(f"""
        count = 3 if rank == {victim} else 2
        whole = filled(0.0, count * world_size)
        dist.all_gather_into_tensor(whole, filled(rank + 1.0, count))  # CULPRIT
        out.append(whole.tolist())
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip
    p.right("""
        count = 1 + rank % 3
        counts = [filled(0, 1, torch.int64) for _ in range(world_size)]
        dist.all_gather(counts, filled(count, 1, torch.int64))
        most = max(int(c.item()) for c in counts)
        padded = filled(0.0, most)
        padded[:count] = rank + 1.0
        whole = filled(0.0, most * world_size)
        dist.all_gather_into_tensor(whole, padded)
        out.append(whole.tolist())
    """)


@pattern(PARAMETERS)
def objects_against_tensors(p: Pick) -> None:
    """One rank broadcasts objects where the others broadcast a tensor."""
    root = p.rank()
    victim = p.rank(but=[root])
    p.wrong(f"""
        if rank == {victim}:
            dist.broadcast_object_list([None], src={root})  # CULPRIT
        else:
            x = filled(1.0, 16)
            dist.broadcast(x, src={root})  # CULPRIT
    """, "mismatch", p.blamed(victim), silent=True)  # fmt: skip


@pattern(PARAMETERS, sizes=(3, 8))
def unsorted_lists(p: Pick) -> None:
    """Ranks name a group's members in any order; torch sorts them, and the code asks torch."""
    members = p.ranks(p.n - 1)
    mixed = members[1:] + members[:1]
    p.right(f"""
        group = dist.new_group({mixed} if rank % 2 else {members})
        if rank in {members}:
            parts = [filled(-1.0) for _ in range({len(members)})]
            dist.all_gather(parts, filled(float(rank)), group=group)
            out.append([int(part.item()) for part in parts] == dist.get_process_group_ranks(group))
            x = filled(float(rank))
            dist.broadcast(x, src=dist.get_global_rank(group, 0), group=group)
            out.append(x.item())
    """)


@pattern(PARAMETERS)
def lists_of_tensors(p: Pick) -> None:
    """Lists of tensors, one for each rank, as all_to_all and reduce_scatter take them."""
    exchange = "pass" if p.backend == "gloo" and not GLOO_HAS_ALL_TO_ALL else "dist.all_to_all(takes, sends)"
    p.right(f"""
        sends = [filled(10.0 * rank + peer, 2) for peer in range(world_size)]
        takes = [filled(0.0, 2) for _ in range(world_size)]
        {exchange}
        shares = filled(0.0, 2)
        dist.reduce_scatter(shares, sends)
        out.append(([take.tolist() for take in takes], shares.tolist()))
    """)
