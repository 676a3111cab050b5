"""Class `invalid_parameter`: arguments that torch or the backend refuses, on some ranks or on all."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

INVALID = "invalid_parameter"


@pattern(INVALID, sizes=(3, 8))
def root_outside_the_group(p: Pick) -> None:
    """A group rank is given for the global rank of the root."""
    members = list(range(1, p.n))
    p.wrong(f"""
        group = dist.new_group({members})
        if rank in {members}:
            x = filled(rank + 1.0)
            dist.broadcast(x, src=0, group=group)  # CULPRIT
            out.append(x.item())
        dist.barrier()
    """, "exception wrong_ranks", members)  # fmt: skip
    p.right(f"""
        group = dist.new_group({members})
        if rank in {members}:
            x = filled(rank + 1.0)
            dist.broadcast(x, src=1, group=group)
            dist.broadcast(x, group_src={len(members) - 1}, group=group)
            out.append(x.item())
        dist.barrier()
    """)


@pattern(INVALID, backends=("gloo",))
def negative_tag(p: Pick) -> None:
    """A tag that is computed falls below zero on one side."""
    a, b = p.ranks(2)
    p.wrong(f"""
        x = filled(0.0)
        if rank == {a}:
            dist.send(filled(1.0), dst={b}, tag=rank - {a + 1})  # CULPRIT
        elif rank == {b}:
            dist.recv(x, src={a}, tag=0)
        out.append(x.item())
    """, "exception", [a])  # fmt: skip
    p.right(f"""
        x = filled(0.0)
        if rank == {a}:
            dist.send(filled(1.0), dst={b}, tag=rank - {a})
        elif rank == {b}:
            dist.recv(x, src={a}, tag=0)
        out.append(x.item())
    """)


@pattern(INVALID)
def message_to_oneself(p: Pick) -> None:
    """The peer is computed, and is the rank itself."""
    a, b = p.ranks(2)
    p.wrong(f"""
        x = filled(0.0)
        if rank == {a}:
            dist.send(filled(1.0), dst=rank)  # CULPRIT
        elif rank == {b}:
            dist.recv(x, src={a})
        out.append(x.item())
    """, "exception", [a])  # fmt: skip


@pattern(INVALID)
def too_few_places_to_gather(p: Pick) -> None:
    """The root's list has no place for itself."""
    root = p.rank()
    p.wrong(f"""
        parts = [filled(0.0) for _ in range(world_size - 1)] if rank == {root} else None
        dist.gather(filled(rank + 1.0), parts, dst={root})  # CULPRIT
    """, "exception", [root])  # fmt: skip
    p.right(f"""
        parts = [filled(0.0) for _ in range(world_size)] if rank == {root} else None
        dist.gather(filled(rank + 1.0), parts, dst={root})
        out.append([part.item() for part in parts or ()])
    """)


@pattern(INVALID)
def nothing_to_scatter(p: Pick) -> None:
    """The source gives no list; or all ranks give one."""
    root = p.rank()
    p.wrong(f"""
        part = filled(0.0)
        dist.scatter(part, None, src={root})  # CULPRIT
        out.append(part.item())
    """, "exception", [root])  # fmt: skip
    p.wrong(f"""
        part, parts = filled(0.0), [filled(float(peer)) for peer in range(world_size)]
        dist.scatter(part, parts, src={root})  # CULPRIT
        out.append(part.item())
    """, "exception", p.others(root))  # fmt: skip
    p.right(f"""
        part, parts = filled(0.0), [filled(float(peer)) for peer in range(world_size)]
        dist.scatter(part, parts if rank == {root} else None, src={root})
        out.append(part.item())
    """)


@pattern(INVALID)
def splits_that_do_not_add_up(p: Pick) -> None:
    """One rank's splits are not the size of its tensor."""
    victim = p.rank()
    p.wrong(f"""
        sends = [1] * world_size
        if rank == {victim}:
            sends[0] += 1
        y = filled(0.0, world_size)
        dist.all_to_all_single(y, filled(1.0, world_size), [1] * world_size, sends)  # CULPRIT
        out.append(y.tolist())
    """, "exception", [victim])  # fmt: skip


@pattern(INVALID)
def parts_of_another_dtype(p: Pick) -> None:
    """One rank's list for all_gather has another dtype than its tensor."""
    victim = p.rank()
    p.wrong(f"""
        dtype = torch.float64 if rank == {victim} else torch.float32
        parts = [filled(0, 2, dtype) for _ in range(world_size)]
        dist.all_gather(parts, filled(rank + 1.0, 2))  # CULPRIT
        out.append(parts[0].tolist())
    """, "exception", [victim])  # fmt: skip


@pattern(INVALID)
def rank_that_does_not_exist(p: Pick) -> None:
    """A list of ranks is made for one rank more than there are."""
    ranks = p.among(["range(world_size + 1)", "[0, world_size]", "[0, 1, 1]"])
    p.wrong(f"""
        group = dist.new_group(list({ranks}))  # CULPRIT
        dist.barrier(group=group)
    """, "exception wrong_ranks", p.all)  # fmt: skip
    p.right("""
        group = dist.new_group(list(range(world_size)))
        dist.barrier(group=group)
    """)


@pattern(INVALID, backends=("gloo",))
def reduction_that_gloo_lacks(p: Pick) -> None:
    """A reduction, or a dtype, that the backend does not have."""
    p.wrong("""
        x = filled(1, 2, torch.int16)
        dist.all_reduce(x)  # CULPRIT
        out.append(x.tolist())
    """, "exception", p.all)  # fmt: skip
    p.wrong("""
        x = filled(1.0, 2)
        dist.all_reduce(x, op=dist.ReduceOp.BOR)  # CULPRIT
        out.append(x.tolist())
    """, "exception", p.all)  # fmt: skip
    p.right("""
        x = filled(rank, 2, torch.int16)
        try:
            dist.all_reduce(x)
        except RuntimeError:
            x = x.to(torch.int32)
            dist.all_reduce(x)
        out.append(x.tolist())
    """)


@pattern(INVALID, backends=("nccl",))
def reduction_that_nccl_lacks(p: Pick) -> None:
    """A reduction that the backend does not have."""
    p.wrong("""
        x = filled(1, 2, torch.int32)
        dist.all_reduce(x, op=dist.ReduceOp.BXOR)  # CULPRIT
        out.append(x.tolist())
    """, "exception", p.all)  # fmt: skip
    p.right("""
        x = filled(rank % 2, 2, torch.int32)
        bits = filled(0, 2 * world_size, torch.int32)
        dist.all_gather_into_tensor(bits, x)
        out.append(bits.reshape(world_size, 2).sum(0).remainder(2).tolist())
    """)


@pattern(INVALID)
def every_other_element(p: Pick) -> None:
    """A view with gaps: gloo takes the memory as it lies, NCCL refuses it."""
    kinds = "mismatch" if p.backend == "gloo" else "exception"
    p.wrong("""
        x = filled(rank + 1.0, 8)[::2]
        dist.all_reduce(x)  # CULPRIT
        out.append(x.tolist())
    """, kinds, p.all, silent=True)  # fmt: skip
    p.right("""
        x = filled(rank + 1.0, 8)
        part = x[::2].contiguous()
        dist.all_reduce(part)
        dist.all_reduce(x[2:4])
        x[::2] = part
        out.append(x.tolist())
    """)


@pattern(INVALID, backends=("gloo",))
def peer_that_does_not_exist(p: Pick) -> None:
    """The last rank of a chain sends to the next one as well."""
    p.wrong("""
        x = filled(0.0)
        if rank:
            dist.recv(x, src=rank - 1)
        dist.send(x + 1, dst=rank + 1)  # CULPRIT
        out.append(x.item())
    """, "exception crash", [p.n - 1])  # fmt: skip


@pattern(INVALID)
def fall_back_together(p: Pick) -> None:
    """All ranks try what is refused, and all take the same way out."""
    root = p.rank()
    p.right(f"""
        x = filled(rank + 1.0, 4)
        try:
            dist.all_to_all_single(torch.empty_like(x), x, [1] * (world_size + 1), [1] * (world_size + 1))
        except (RuntimeError, ValueError):
            dist.broadcast(x, src={root})
        out.append(x.tolist())
    """)


@pattern(INVALID, sizes=(3, 8))
def global_and_group_ranks(p: Pick) -> None:
    """Global ranks and group ranks side by side, each where it belongs."""
    members = p.ranks(p.n - 1)
    last = members[-1]
    p.right(f"""
        group = dist.new_group({members})
        if rank in {members}:
            x = filled(float(dist.get_rank(group)))
            if rank == {last}:
                dist.send(x, group_dst=0, group=group)
            elif dist.get_rank(group) == 0:
                dist.recv(x, src={last}, group=group)
            dist.broadcast(x, src={members[0]}, group=group)
            out.append(x.item())
    """)
