"""Class `local_concurrency`: threads of one rank, and asynchronous calls of one rank, that get in each other's way."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

THREADS = "local_concurrency"
GLOO = ("gloo",)
"""NCCL asks for one order of the calls on two communicators."""


@pattern(THREADS, sizes=(2, 4))
def two_threads_on_one_group(p: Pick) -> None:
    """Two threads call collectives of different sizes on one group, in no order."""
    p.wrong(f"""
        group = dist.new_group()

        def work(count):
            time.sleep(0.01 * ((rank + count) % {p.number(2, 3)}))
            x = filled(1.0, count)
            dist.all_reduce(x, group=group)  # CULPRIT

        threads = [threading.Thread(target=work, args=(count,)) for count in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """, "race mismatch", [], also=p.all, explore=True, real=False)  # fmt: skip
    if p.backend == "nccl":
        return
    p.right("""
        groups = {count: dist.new_group() for count in (3, 5)}

        def work(count):
            time.sleep(0.01 * ((rank + count) % 3))
            x = filled(1.0, count)
            dist.all_reduce(x, group=groups[count])
            results[count] = x.tolist()

        results = {}
        threads = [threading.Thread(target=work, args=(count,)) for count in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.append(sorted(results.items()))
    """)


@pattern(THREADS, sizes=(2, 4))
def thread_beside_the_main_one(p: Pick) -> None:
    """A helper thread and the main thread call the same collective on WORLD, in no order."""
    p.wrong("""
        y = filled(rank + 1.0)

        def help_out():
            dist.all_reduce(y)  # CULPRIT

        helper = threading.Thread(target=help_out)
        helper.start()
        x = filled(10.0 * (rank + 1))
        dist.all_reduce(x)  # CULPRIT
        helper.join()
        out.append((x.item(), y.item()))
    """, "race", [], also=p.all, explore=True, real=False)  # fmt: skip
    p.right("""
        y = filled(rank + 1.0)

        def help_out():
            dist.all_reduce(y)

        helper = threading.Thread(target=help_out)
        helper.start()
        helper.join()
        x = filled(10.0 * (rank + 1))
        dist.all_reduce(x)
        out.append((x.item(), y.item()))
    """)


@pattern(THREADS, sizes=(2, 4))
def handed_over_by_an_event(p: Pick) -> None:
    """Two threads use one group, one after the other: an event hands it over."""
    p.right("""
        first_is_over = threading.Event()
        x, y = filled(rank + 1.0), filled(rank + 2.0)

        def first():
            dist.all_reduce(x)
            first_is_over.set()

        thread = threading.Thread(target=first)
        thread.start()
        first_is_over.wait()
        dist.all_reduce(y)
        thread.join()
        out.append((x.item(), y.item()))
    """)


@pattern(THREADS)
def two_calls_on_one_tensor(p: Pick) -> None:
    """Two asynchronous calls on different groups write one tensor at the same time."""
    p.wrong("""
        first, second = dist.new_group(), dist.new_group()
        x = filled(rank + 1.0, 4)
        works = [dist.all_reduce(x, group=first, async_op=True)]
        works.append(dist.all_reduce(x, group=second, async_op=True))  # CULPRIT
        for work in works:
            work.wait()
    """, "race", p.all, silent=True)  # fmt: skip
    p.right("""
        first, second = dist.new_group(), dist.new_group()
        x = filled(rank + 1.0, 4)
        works = [dist.all_reduce(x[:2], group=first, async_op=True)]
        works.append(dist.all_reduce(x[2:], group=second, async_op=True))
        for work in works:
            work.wait()
        out.append(x.tolist())
    """)


@pattern(THREADS, sizes=(2, 4))
def thread_writes_what_is_reduced(p: Pick) -> None:
    """A thread fills a tensor while a collective may read it."""
    victim = p.rank()
    p.wrong(f"""
        x = filled(rank + 1.0, 4)
        work = dist.all_reduce(x, async_op=True)
        if rank == {victim}:
            loader = threading.Thread(target=lambda: x.fill_(7.0))  # CULPRIT
            loader.start()
            loader.join()
        work.wait()
    """, "race", [victim], silent=True)  # fmt: skip
    p.right(f"""
        x, batch = filled(rank + 1.0, 4), filled(0.0, 4)
        work = dist.all_reduce(x, async_op=True)
        if rank == {victim}:
            loader = threading.Thread(target=lambda: batch.fill_(7.0))
            loader.start()
            loader.join()
        work.wait()
        out.append((x.tolist(), batch.tolist()))
    """)


@pattern(THREADS, backends=GLOO)
def send_and_reduce_one_tensor(p: Pick) -> None:
    """A tensor is sent while a reduction writes it."""
    a, b = p.ranks(2)
    p.wrong(f"""
        pair = dist.new_group([{a}, {b}])
        x, y = filled(rank + 1.0, 4), filled(0.0, 4)
        work = None
        if rank == {a}:
            work = dist.isend(x, dst={b}, group=pair)
        dist.all_reduce(x)  # CULPRIT
        if rank == {b}:
            dist.recv(y, src={a}, group=pair)
        if work is not None:
            work.wait()
    """, "race", [a], silent=True)  # fmt: skip
    p.right(f"""
        pair = dist.new_group([{a}, {b}])
        x, y = filled(rank + 1.0, 4), filled(0.0, 4)
        work = None
        if rank == {a}:
            work = dist.isend(x.clone(), dst={b}, group=pair)
        dist.all_reduce(x)
        if rank == {b}:
            dist.recv(y, src={a}, group=pair)
        if work is not None:
            work.wait()
        out.append((x.tolist(), y.tolist()))
    """)


@pattern(THREADS, sizes=(2, 4))
def worker_with_a_queue(p: Pick) -> None:
    """One thread makes all calls; others put their tensors into its queue, in one order."""
    p.right("""
        import queue

        jobs, done = queue.Queue(), []

        def communicate():
            while True:
                x = jobs.get()
                if x is None:
                    return
                dist.all_reduce(x)
                done.append(x.tolist())

        worker = threading.Thread(target=communicate)
        worker.start()
        for step in range(3):
            jobs.put(filled(float(rank + step)))
        jobs.put(None)
        worker.join()
        out.append(done)
        dist.barrier()
    """)


@pattern(THREADS, backends=GLOO, sizes=(2, 4))
def thread_with_its_own_group(p: Pick) -> None:
    """A heart-beat runs in a thread, on a group of its own, while the main thread works on WORLD."""
    beats = p.number(1, 3)
    p.right(f"""
        heart = dist.new_group()

        def beat():
            for _ in range({beats}):
                dist.barrier(group=heart)
                time.sleep(0.005)

        thread = threading.Thread(target=beat)
        thread.start()
        for step in range(3):
            x = filled(float(rank + step))
            dist.all_reduce(x)
            out.append(x.item())
        thread.join()
    """)


@pattern(THREADS)
def many_calls_in_flight(p: Pick) -> None:
    """Several asynchronous calls on tensors of their own, on one group, waited for in another order."""
    p.right("""
        tensors = [filled(float(rank + step), 2) for step in range(4)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for index in (2, 0, 3, 1):
            works[index].wait()
        out.append([tensor.tolist() for tensor in tensors])
    """)
