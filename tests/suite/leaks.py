"""Class `resource_leak`: work and messages that are issued and then left to themselves."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

LEAKS = "resource_leak"
KINDS = {"gloo": "leak", "nccl": "leak deadlock"}
"""On NCCL the first message of a pair connects the two, and the host waits for the other one."""


@pattern(LEAKS)
def send_that_nobody_receives(p: Pick) -> None:
    """A message is sent without a wait, and never received."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            dist.isend(filled(1.0), dst={b})  # CULPRIT
        x = filled(1.0)
        dist.all_reduce(x)
        out.append(x.item())
    """, KINDS[p.backend], [a], also=p.all, silent=True)  # fmt: skip
    if p.backend == "nccl":
        return
    p.right(f"""
        if rank == {a}:
            work = dist.isend(filled(1.0), dst={b})
        x = filled(1.0)
        dist.all_reduce(x)
        if rank == {b}:
            dist.recv(x, src={a})
        elif rank == {a}:
            work.wait()
        out.append(x.item())
    """)


@pattern(LEAKS)
def receive_that_is_forgotten(p: Pick) -> None:
    """A receive is posted for a message that never comes, and nobody waits for it."""
    a, b = p.ranks(2)
    p.wrong(f"""
        x, y = filled(1.0), filled(0.0)
        if rank == {a}:
            dist.irecv(y, src={b})  # CULPRIT
        dist.all_reduce(x)
        out.append(x.item())
    """, KINDS[p.backend], [a], also=p.all, silent=True)  # fmt: skip
    if p.backend == "nccl":
        return
    p.right(f"""
        x, y = filled(1.0), filled(0.0)
        if rank == {a}:
            work = dist.irecv(y, src={b})
        dist.all_reduce(x)
        if rank == {a}:
            work.wait()
        elif rank == {b}:
            dist.send(x, dst={a})
        out.append((x.item(), y.item()))
    """)


@pattern(LEAKS)
def handle_that_is_dropped(p: Pick) -> None:
    """The handle of a collective is dropped on all ranks, and so is its result."""
    p.wrong("""
        statistics, x = filled(rank + 1.0, 2), filled(1.0)
        dist.all_reduce(statistics, async_op=True)  # CULPRIT
        dist.all_reduce(x)
        out.append(x.item())
    """, "leak race", p.all, silent=True)  # fmt: skip
    p.right("""
        statistics, x = filled(rank + 1.0, 2), filled(1.0)
        pending = {"statistics": dist.all_reduce(statistics, async_op=True)}
        dist.all_reduce(x)
        for name in list(pending):
            pending.pop(name).wait()
        out.append((x.item(), statistics.tolist()))
    """)


@pattern(LEAKS)
def one_rank_does_not_wait(p: Pick) -> None:
    """One rank leaves without a wait for its part of an asynchronous collective."""
    victim = p.rank()
    p.wrong(f"""
        x = filled(rank + 1.0, 3)
        work = dist.all_reduce(x, async_op=True)  # CULPRIT
        if rank != {victim}:
            work.wait()
            out.append(x.tolist())
    """, "leak race", [victim], silent=True)  # fmt: skip
    p.right(f"""
        x = filled(rank + 1.0, 3)
        work = dist.all_reduce(x, async_op=True)
        if rank == {victim}:
            time.sleep(0.02)
        work.wait()
        if rank != {victim}:
            out.append(x.tolist())
    """)


@pattern(LEAKS)
def last_of_a_list_forgotten(p: Pick) -> None:
    """A loop over handles ends one too early."""
    count = p.number(2, 4)
    p.wrong(f"""
        parts = [filled(float(step)) for step in range({count})]
        works = [dist.all_reduce(part, async_op=True) for part in parts]  # CULPRIT
        for work in works[:-1]:
            work.wait()
        out.append([part.item() for part in parts[:-1]])
    """, "leak race", p.all, silent=True)  # fmt: skip
    p.right(f"""
        parts = [filled(float(step)) for step in range({count})]
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        works[-1].wait()
        for work in works[:-1]:
            work.wait()
        out.append([part.item() for part in parts])
    """)


@pattern(LEAKS, backends=("gloo",))
def destroyed_with_a_send_in_flight(p: Pick) -> None:
    """The sender destroys its groups before the receiver has come."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            dist.isend(filled(1.0), dst={b})  # CULPRIT
            dist.destroy_process_group()
        elif rank == {b}:
            time.sleep(0.3)
            x = filled(0.0)
            dist.recv(x, src={a})  # CULPRIT
            out.append(x.item())
    """, "leak exception", [a], also=[b])  # fmt: skip
    p.right(f"""
        if rank == {a}:
            work = dist.isend(filled(1.0), dst={b})
            work.wait()
        elif rank == {b}:
            time.sleep(0.1)
            x = filled(0.0)
            dist.recv(x, src={a})
            out.append(x.item())
        dist.barrier()
        dist.destroy_process_group()
    """, end=False)  # fmt: skip


@pattern(LEAKS)
def a_group_for_each_step(p: Pick) -> None:
    """Groups are made and destroyed in a loop, by all ranks."""
    p.right(f"""
        for step in range({p.number(2, 4)}):
            group = dist.new_group()
            x = filled(float(rank + step))
            dist.all_reduce(x, group=group)
            out.append(x.item())
            dist.barrier(group=group)
            dist.destroy_process_group(group)
    """, end=False)  # fmt: skip


@pattern(LEAKS)
def batch_waited_for_later(p: Pick) -> None:
    """The works of a batch are kept, and waited for after a collective."""
    p.right("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x = filled(0.0)
        ops = [dist.P2POp(dist.isend, filled(float(rank)), right), dist.P2POp(dist.irecv, x, left)]
        works = dist.batch_isend_irecv(ops)
        total = filled(1.0)
        dist.all_reduce(total)
        for work in works:
            work.wait()
        out.append((x.item(), total.item()))
    """)


@pattern(LEAKS)
def result_that_nobody_needs(p: Pick) -> None:
    """Every handle is waited for, though the result is used on one rank only."""
    root = p.rank()
    p.right(f"""
        x = filled(rank + 1.0, 2)
        work = dist.reduce(x, dst={root}, async_op=True)
        total = filled(1.0)
        dist.all_reduce(total)
        work.wait()
        if rank == {root}:
            out.append(x.tolist())
        del work, x
        out.append(total.item())
    """)
