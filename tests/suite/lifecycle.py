"""Class `request_lifecycle`: an asynchronous call from its issue to its wait, a group from its making to its end.

The wrong ones read or write a tensor that is still in use, or use what is gone. Real gloo mostly says nothing.
"""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

LIFECYCLE = "request_lifecycle"


@pattern(LIFECYCLE)
def read_before_the_wait(p: Pick) -> None:
    """The result is read while the collective may still run."""
    victim = p.rank()
    p.wrong(f"""
        x = filled(rank + 1.0, 4)
        work = dist.all_reduce(x, async_op=True)
        if rank == {victim}:
            out.append(x.sum().item())  # CULPRIT
        work.wait()
        out.append(x.tolist())
    """, "race", [victim], silent=True)  # fmt: skip
    p.right(f"""
        x = filled(rank + 1.0, 4)
        before = x.sum().item()
        work = dist.all_reduce(x, async_op=True)
        if rank == {victim}:
            out.append(before)
        work.wait()
        work.wait()
        out.append(x.tolist())
    """)


@pattern(LIFECYCLE)
def written_before_the_wait(p: Pick) -> None:
    """The buffer of a send is used for the next value before the send is over."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            x = filled(1.0, 4)
            work = dist.isend(x, dst={b})
            x.zero_()  # CULPRIT
            work.wait()
        elif rank == {b}:
            y = filled(0.0, 4)
            dist.recv(y, src={a})
            out.append(y.tolist())
    """, "race", [a], silent=True)  # fmt: skip
    p.right(f"""
        if rank == {a}:
            x = filled(1.0, 4)
            work = dist.isend(x.clone(), dst={b})
            x.zero_()
            work.wait()
        elif rank == {b}:
            y = filled(0.0, 4)
            work = dist.irecv(y, src={a})
            work.wait()
            out.append(y.tolist())
    """)


@pattern(LIFECYCLE)
def input_changed_in_flight(p: Pick) -> None:
    """The input of a gather is changed in place between issue and wait."""
    victim = p.rank()
    p.wrong(f"""
        x, whole = filled(rank + 1.0, 2), filled(0.0, 2 * world_size)
        work = dist.all_gather_into_tensor(whole, x, async_op=True)
        if rank == {victim}:
            x.mul_(2)  # CULPRIT
        work.wait()
        out.append(whole.tolist())
    """, "race", [victim], silent=True)  # fmt: skip
    p.right("""
        x, whole = filled(rank + 1.0, 2), filled(0.0, 2 * world_size)
        work = dist.all_gather_into_tensor(whole, x, async_op=True)
        other = filled(1.0, 2).mul_(2)
        work.wait()
        x.mul_(2)
        out.append((whole.tolist(), x.tolist(), other.tolist()))
    """)


@pattern(LIFECYCLE)
def one_buffer_for_two_receives(p: Pick) -> None:
    """Two receives are posted into one tensor."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            for value in (1.0, 2.0):
                dist.send(filled(value), dst={b})
        elif rank == {b}:
            x = filled(0.0)
            works = [dist.irecv(x, src={a})]
            works.append(dist.irecv(x, src={a}))  # CULPRIT
            for work in works:
                work.wait()
            out.append(x.item())
    """, "race", [b], silent=True)  # fmt: skip
    p.right(f"""
        if rank == {a}:
            for value in (1.0, 2.0):
                dist.send(filled(value), dst={b})
        elif rank == {b}:
            x = filled(0.0, 2)
            works = [dist.irecv(x[:1], src={a}), dist.irecv(x[1:], src={a})]
            for work in reversed(works):
                work.wait()
            out.append(x.tolist())
    """)


@pattern(LIFECYCLE)
def waits_for_the_wrong_handle(p: Pick) -> None:
    """One handle is waited for twice, the other never."""
    p.wrong("""
        x, y = filled(1.0, 2), filled(2.0, 2)
        first = dist.all_reduce(x, async_op=True)
        second = dist.all_reduce(y, async_op=True)
        first.wait()
        first.wait()
        out.append((x.tolist(), y.tolist()))  # CULPRIT
    """, "race leak", p.all, silent=True)  # fmt: skip
    p.right("""
        x, y = filled(1.0, 2), filled(2.0, 2)
        first = dist.all_reduce(x, async_op=True)
        second = dist.all_reduce(y, async_op=True)
        second.wait()
        out.append(y.tolist())
        first.wait()
        out.append(x.tolist())
    """)


@pattern(LIFECYCLE)
def used_after_destroy(p: Pick) -> None:
    """The default group is destroyed, and then used."""
    p.wrong("""
        x = filled(1.0)
        dist.all_reduce(x)
        out.append(x.item())
        dist.barrier()
        dist.destroy_process_group()
        dist.all_reduce(x)  # CULPRIT
    """, "exception", p.all)  # fmt: skip
    p.right("""
        x = filled(1.0)
        dist.all_reduce(x)
        dist.barrier()
        dist.destroy_process_group()
        out.append(dist.is_initialized())
        if dist.is_initialized():
            dist.all_reduce(x)
        out.append(x.item())
    """, end=False)  # fmt: skip


@pattern(LIFECYCLE)
def started_twice(p: Pick) -> None:
    """The default group is made twice."""
    p.wrong(f"""
        x = filled(1.0)
        dist.all_reduce(x)
        dist.init_process_group("{p.backend}")  # CULPRIT
        out.append(x.item())
    """, "exception", p.all)  # fmt: skip
    p.right(f"""
        x = filled(1.0)
        dist.all_reduce(x)
        if not dist.is_initialized():
            dist.init_process_group("{p.backend}")
        dist.all_reduce(x)
        out.append(x.item())
    """)


@pattern(LIFECYCLE)
def destroyed_too_early(p: Pick) -> None:
    """One rank destroys the default group and leaves; the others have a collective to go."""
    victim = p.rank()
    p.wrong(f"""
        x = filled(1.0)
        dist.all_reduce(x)
        if rank == {victim}:
            dist.destroy_process_group()
            return out
        dist.all_reduce(x)  # CULPRIT
        out.append(x.item())
    """, "deadlock", p.blamed(victim))  # fmt: skip
    p.right("""
        x = filled(1.0)
        dist.all_reduce(x)
        out.append(x.item())
        dist.barrier()
        dist.destroy_process_group()
    """, end=False)  # fmt: skip


@pattern(LIFECYCLE, backends=("gloo",), sizes=(2, 4), context=False)
def too_late_for_the_time_out(p: Pick) -> None:
    """One rank comes after the time-out of the group."""
    victim = p.rank()
    p.wrong(f"""
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank == {victim}:
            time.sleep(3)
        x = filled(1.0)
        dist.all_reduce(x, group=group)  # CULPRIT
        out.append(x.item())
    """, "timeout deadlock", [victim], also=p.all)  # fmt: skip
    p.right(f"""
        group = dist.new_group(timeout=timedelta(seconds=20))
        if rank == {victim}:
            time.sleep(0.5)
        x = filled(1.0)
        dist.all_reduce(x, group=group)
        out.append(x.item())
    """)


@pattern(LIFECYCLE, backends=("gloo",), sizes=(2, 4))
def time_out_that_is_meant(p: Pick) -> None:
    """A rank asks again and again, with a short time-out each time."""
    late = p.rank()
    p.right(f"""
        store = dist.distributed_c10d._get_default_store()
        if rank == {late}:
            time.sleep(0.5)
            store.set("ready", "yes")
        tries = 0
        while True:
            try:
                store.wait(["ready"], timedelta(milliseconds=150))
                break
            except dist.DistStoreError:
                tries += 1
        out.append(store.get("ready").decode())
        dist.barrier()
    """)


@pattern(LIFECYCLE)
def polls_before_it_waits(p: Pick) -> None:
    """is_completed is asked until it is true, then comes the wait."""
    late = p.rank()
    p.right(f"""
        if rank == {late}:
            time.sleep(0.05)
        x = filled(rank + 1.0, 3)
        work = dist.all_reduce(x, async_op=True)
        polls = 0
        while not work.is_completed():
            polls += 1
            time.sleep(0.005)
        work.wait()
        out.append(x.tolist())
    """)


@pattern(LIFECYCLE)
def waits_elsewhere(p: Pick) -> None:
    """Handles are kept with their tensors, and another function waits for them."""
    p.right("""
        def finish(pending):
            while pending:
                tensor, work = pending.pop()
                work.wait()
                out.append(tensor.tolist())

        pending = []
        for step in range(3):
            x = filled(float(rank + step), 2)
            pending.append((x, dist.all_reduce(x, async_op=True)))
        finish(pending)
    """)


@pattern(LIFECYCLE)
def future_of_a_collective(p: Pick) -> None:
    """The wait is that of the work's future."""
    p.right("""
        x = filled(rank + 1.0, 2)
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        total = future.wait()
        out.append((x.tolist(), [part.tolist() for part in total]))
        work.wait()
    """)


@pattern(LIFECYCLE)
def two_lives(p: Pick) -> None:
    """The default group is destroyed on all ranks and made again, under a prefix of its own in the store."""
    p.right(f"""
        store = dist.distributed_c10d._get_default_store()
        x = filled(rank + 1.0)
        dist.all_reduce(x)
        dist.barrier()
        dist.destroy_process_group()
        again = dist.PrefixStore("second-life", store)
        dist.init_process_group("{p.backend}", store=again, rank=rank, world_size=world_size)
        dist.all_reduce(x)
        out.append(x.item())
    """)
