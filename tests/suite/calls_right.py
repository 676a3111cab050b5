"""Class `call_matching`: programs that are right although the ranks take different ways."""

from __future__ import annotations

from tests.suite.calls import CALLS
from tests.suite.pick import Pick, pattern


@pattern(CALLS)
def returns_early(p: Pick) -> None:
    """Some ranks return after their last collective; the others go on alone or in a group."""
    half = (p.n + 1) // 2
    c = p.collective()
    p.right(f"""
        group = dist.new_group({list(range(half))})
        {c.setup}
        {c.call}
        out.append({c.value})
        if rank >= {half}:
            return out
        for _ in range({p.number(1, 4)}):
            dist.all_reduce(x, group=group) if rank % 2 else dist.all_reduce(x, group=group)
        return out
    """, end=False)  # fmt: skip


@pattern(CALLS, sizes=(4, 8))
def groups_at_their_own_pace(p: Pick) -> None:
    """Disjoint groups make different numbers of calls."""
    half = p.n // 2
    first, second = p.number(1, 5), p.number(1, 5)
    p.right(f"""
        low, high = dist.new_group({list(range(half))}), dist.new_group({list(range(half, p.n))})
        x = filled(1.0)
        if rank < {half}:
            for _ in range({first}):
                dist.all_reduce(x, group=low)
        else:
            for _ in range({second}):
                dist.broadcast(x, src={half}, group=high)
        dist.barrier()
        out.append(x.item())
    """)


@pattern(CALLS, sizes=(3, 8))
def only_two_talk(p: Pick) -> None:
    """Two ranks exchange messages while the others are in the next collective already."""
    a, b = p.ranks(2)
    p.right(f"""
        {p.connect}
        x = filled(0.0)
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            ops = [dist.P2POp(dist.isend, filled(rank + 1.0), peer), dist.P2POp(dist.irecv, x, peer)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        dist.barrier()
        out.append(x.item())
    """)


@pattern(CALLS)
def called_from_everywhere(p: Pick) -> None:
    """Every rank makes the same calls, from functions and lines of its own."""
    c, d = p.collective("c"), p.collective("d")
    p.right(f"""
        def even():
            {c.setup}
            {c.call}
            return {c.value}

        def odd():
            {c.setup}
            time.sleep(0.01)
            {c.call}
            return {c.value}

        out.append((odd if rank % 2 else even)())
        {d.setup}
        {d.call}
        out.append({d.value})
    """)


@pattern(CALLS, sizes=(3, 8))
def non_members_call_too(p: Pick) -> None:
    """Ranks outside a group call new_group and hand the result on: nothing happens there."""
    members = p.ranks(p.n - 1)
    p.right(f"""
        group = dist.new_group({members})
        x = filled(1.0)
        if rank in {members}:
            dist.all_reduce(x, group=group)
        if dist.get_rank(group) >= 0:
            dist.barrier(group=group)
        dist.barrier()
        out.append(x.item())
    """)


@pattern(CALLS)
def groups_of_one(p: Pick) -> None:
    """Each rank has a group of its own, and uses it as often as it likes."""
    p.right("""
        own = [dist.new_group([other]) for other in range(world_size)][rank]
        x = filled(rank + 1.0)
        for _ in range(rank + 1):
            dist.all_reduce(x, group=own)
        dist.all_reduce(x)
        out.append(x.item())
    """)


@pattern(CALLS, sizes=(4, 8))
def pipeline(p: Pick) -> None:
    """A chain of stages: each one receives, computes and sends; the ends differ."""
    rounds = p.number(1, 3)
    p.right(f"""
        x = filled(0.0, 2)
        for step in range({rounds}):
            if rank:
                dist.recv(x, src=rank - 1)
            else:
                x = filled(float(step), 2)
            x += 1
            if rank < world_size - 1:
                dist.send(x, dst=rank + 1)
        total = filled(x[0].item())
        dist.all_reduce(total)
        out.append(total.item())
    """)


@pattern(CALLS)
def exception_that_is_handled(p: Pick) -> None:
    """A rank recovers from its own error and still takes part."""
    victim, c = p.rank(), p.collective()
    p.right(f"""
        {c.setup}
        try:
            if rank == {victim}:
                raise ValueError("a bad sample")
            out.append("good sample")
        except ValueError:
            out.append("sample left out")
        finally:
            {c.call}
        out.append({c.value})
    """)


@pattern(CALLS)
def table_of_calls(p: Pick) -> None:
    """Ranks look their call up in a table, and find the same one."""
    p.right("""
        x = filled(rank + 1.0, 2)
        calls = {"sum": lambda: dist.all_reduce(x), "first": lambda: dist.broadcast(x, src=0)}
        for name in ("sum", "first") if rank % 2 else sorted(calls, reverse=True):
            calls[name]()
            out.append(x.tolist())
    """)


@pattern(CALLS, sizes=(2, 6))
def work_until_all_are_done(p: Pick) -> None:
    """Ranks have different amounts of work, and vote whether to go on."""
    p.right("""
        left, rounds = rank + 1, 0
        while True:
            left = max(0, left - 1)
            rounds += 1
            vote = filled(float(left))
            dist.all_reduce(vote, op=dist.ReduceOp.MAX)
            if not vote.item():
                break
        out.append(rounds)
    """)
