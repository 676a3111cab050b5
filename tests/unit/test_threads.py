"""A rank's threads and locks: they belong to the rank, block in virtual time, and are real again outside it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Verdict, simulate
from simulator.engine.scheduler import Limits


def results(body: Callable[[int], Any], ranks: int = 2, **options: Any) -> dict[int, Any]:
    """What the ranks return; each of them must do well."""
    return simulate(body, ranks, **options).raise_if_bad().results


def both(value: Any) -> dict[int, Any]:
    """The same result on two ranks."""
    return {0: value, 1: value}


def in_a_thread(target: Callable[[], Any], **options: Any) -> threading.Thread:
    thread = threading.Thread(target=target, **options)
    thread.start()
    return thread


# -- each primitive, in virtual time ------------------------------------------------------------------------------


def test_a_lock_blocks_in_virtual_time() -> None:
    """The second thread gets it when the first lets go, a virtual second later."""

    def body(rank: int) -> list[Any]:
        lock, seen = threading.Lock(), []

        def second() -> None:
            with lock:
                seen.append(time.monotonic())

        with lock:
            thread = in_a_thread(second)
            seen.append((lock.locked(), lock.acquire(False), lock.acquire(timeout=0.25), time.monotonic()))
            time.sleep(1)
        thread.join()
        return seen

    (first, then) = results(body)[1]
    assert first[:3] == (True, False, False) and first[3] == pytest.approx(0.25, abs=1e-3)
    assert then == pytest.approx(1.25, abs=1e-3)


def test_an_rlock_counts_and_belongs_to_its_thread() -> None:
    """Acquired twice by one thread, released twice; another thread cannot release it."""

    def body(rank: int) -> list[Any]:
        lock, seen = threading.RLock(), []

        def other() -> None:
            seen.append(lock.acquire(blocking=False))
            with pytest.raises(RuntimeError, match="cannot release un-acquired lock"):
                lock.release()
            seen.append(lock.acquire(timeout=10))

        with lock, lock:
            thread = in_a_thread(other)
            time.sleep(1)
        thread.join()
        return [*seen, round(time.monotonic(), 2)]

    assert results(body) == both([False, True, 1.0])


def test_conditions_hand_over_work() -> None:
    """wait_for, notify and time-outs of wait."""

    def body(rank: int) -> list[Any]:
        ready, jobs, seen = threading.Condition(), [], []

        def worker() -> None:
            with ready:
                seen.append(ready.wait_for(lambda: bool(jobs)))
                seen.append(jobs.pop())
                seen.append(ready.wait(timeout=0.5))

        thread = in_a_thread(worker)
        time.sleep(1)
        with ready:
            jobs.append("job")
            ready.notify()
        thread.join()
        return [*seen, round(time.monotonic(), 6)]

    assert results(body) == both([True, "job", False, 1.5])


def test_events_semaphores_and_barriers_hold_threads() -> None:
    """Four threads meet at a barrier, two at a time pass a semaphore, an event lets all of them go."""

    def body(rank: int) -> list[float]:
        go, gate, door, left = threading.Event(), threading.Barrier(5), threading.Semaphore(2), []

        def worker() -> None:
            gate.wait()
            assert not go.wait(timeout=0.125)
            assert go.wait()
            with door:
                time.sleep(1)
                left.append(time.monotonic())

        threads = [in_a_thread(worker) for _ in range(4)]
        gate.wait()
        time.sleep(2)
        go.set()
        for thread in threads:
            thread.join()
        return left

    assert results(body) == both([3.0, 3.0, 4.0, 4.0])


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, "SimpleQueue"])
def test_queues_block_and_time_out(kind: Any) -> None:
    """get waits for put; an empty queue raises Empty after the virtual time-out."""

    def body(rank: int) -> list[Any]:
        jobs = queue.SimpleQueue() if kind == "SimpleQueue" else kind()
        thread = in_a_thread(lambda: (time.sleep(1), jobs.put(rank)))
        seen = [jobs.get(), time.monotonic()]
        with pytest.raises(queue.Empty):
            jobs.get(timeout=0.5)
        with pytest.raises(queue.Empty):
            jobs.get_nowait()
        thread.join()
        return [*seen, jobs.empty()]

    assert results(body) == {0: [0, 1.0, True], 1: [1, 1.0, True]}


def test_a_full_queue_and_its_join_wait_for_the_consumer() -> None:
    """put blocks on a full queue; join returns when each job is done."""

    def body(rank: int) -> float:
        jobs: queue.Queue[int] = queue.Queue(maxsize=1)

        def consume() -> None:
            for _ in range(3):
                jobs.get()
                time.sleep(1)
                jobs.task_done()

        in_a_thread(consume)
        for job in range(3):
            jobs.put(job)
        jobs.join()
        return time.monotonic()

    assert results(body) == both(3.0)


def test_thread_pools_run_jobs_and_hand_back_results() -> None:
    """submit, map, as_completed, time-outs of result, and a second pool on another rank at the same time."""

    def body(rank: int) -> list[Any]:
        def job(seconds: float) -> float:
            time.sleep(seconds)
            return seconds

        with ThreadPoolExecutor(max_workers=2) as pool:
            first: Future[float] = pool.submit(job, 3)
            with pytest.raises(TimeoutError):
                first.result(timeout=1)
            order = [future.result() for future in as_completed([first, pool.submit(job, 0.5)])]
            return [order, list(pool.map(job, [1, 2])), time.monotonic()]

    assert results(body, 3)[2] == [[0.5, 3], [1, 2], 5.0]


def test_a_pool_that_nobody_shuts_down_ends_with_its_rank() -> None:
    """As the interpreter does at exit: idle workers are told to end, so this is no deadlock."""

    def body(rank: int) -> int:
        pool = ThreadPoolExecutor(max_workers=2)
        kept.append(pool)
        return pool.submit(lambda: rank).result()

    kept: list[Any] = []
    assert results(body) == {0: 0, 1: 1}


def test_timers_fire_in_virtual_time() -> None:
    """And can be cancelled."""

    def body(rank: int) -> list[float]:
        fired: list[float] = []
        timers = [threading.Timer(seconds, lambda: fired.append(time.monotonic())) for seconds in (5, 2, 3)]
        for timer in timers:
            timer.start()
        time.sleep(1)
        timers[2].cancel()
        for timer in timers:
            timer.join()
        return fired

    assert results(body) == both([2.0, 5.0])


# -- the life of a thread -----------------------------------------------------------------------------------------


def test_join_waits_in_virtual_time() -> None:
    """With a time-out it gives up; is_alive says what is so in the simulation."""

    def body(rank: int) -> list[Any]:
        thread = threading.Thread(target=time.sleep, args=[2])
        seen = [thread.is_alive(), thread.ident]
        thread.start()
        seen += [thread.is_alive(), thread.ident is not None]
        thread.join(timeout=0.5)
        seen += [thread.is_alive(), time.monotonic()]
        thread.join()
        seen += [thread.is_alive(), time.monotonic()]
        thread.join()
        return seen

    assert results(body) == both([False, None, True, True, True, 0.5, False, 2.0])


def test_is_alive_may_be_polled() -> None:
    """A loop without a sleep lets the thread run."""

    def body(rank: int) -> bool:
        thread = in_a_thread(lambda: time.sleep(0.01))
        while thread.is_alive():
            pass
        return thread.is_alive()

    assert results(body) == both(False)


def test_a_rank_waits_for_its_threads_but_not_for_its_daemons() -> None:
    """The last moment of the run is that of the non-daemon thread."""

    def body(rank: int) -> None:
        in_a_thread(lambda: (time.sleep(3), done.append(rank)))
        in_a_thread(lambda: (time.sleep(30), done.append("daemon")), daemon=True)

    done: list[Any] = []
    simulate(body, 2).raise_if_bad()
    assert done == [0, 1]


def test_an_exception_ends_its_thread_only(capsys: pytest.CaptureFixture[str]) -> None:
    """As in reality: the traceback goes to standard error and the rank goes on."""

    def body(rank: int) -> bool:
        thread = in_a_thread(lambda: 1 / 0, name="divides")
        thread.join()
        return thread.is_alive()

    hook = threading.excepthook
    threading.excepthook = threading.__excepthook__
    try:
        assert results(body) == both(False)
    finally:
        threading.excepthook = hook
    assert capsys.readouterr().err.count("ZeroDivisionError") == 2


def test_threads_of_one_rank_meet_others_in_two_groups() -> None:
    """Each thread blocks in a collective of its own group, and both complete."""

    def body(rank: int) -> list[float]:
        dist.init_process_group("gloo")
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        totals = [torch.ones(1) * (rank + 1) for _ in groups]
        order = (0, 1) if rank == 0 else (1, 0)
        threads = [in_a_thread(lambda i=i: dist.all_reduce(totals[i], group=groups[i])) for i in order]
        for thread in threads:
            thread.join()
        return [total.item() for total in totals]

    assert results(body) == both([3.0, 3.0])


def test_threads_start_threads() -> None:
    """The grandchild belongs to the rank too."""

    def body(rank: int) -> list[int]:
        import os

        pids: list[int] = []

        def child() -> None:
            in_a_thread(lambda: pids.append(os.getpid())).join()

        in_a_thread(child).join()
        return pids

    assert results(body) == {0: [4000], 1: [4001]}


# -- asyncio ------------------------------------------------------------------------------------------------------


def test_asyncio_sleeps_in_virtual_time() -> None:
    """Tasks of one loop, time-outs, and other ranks in between."""

    async def main(rank: int) -> list[float]:
        woken: list[float] = []

        async def nap(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(time.monotonic())

        await asyncio.gather(nap(3600), nap(1), nap(0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), timeout=60)
        return [*woken, asyncio.get_running_loop().time()]

    assert results(lambda rank: asyncio.run(main(rank))) == both([0.0, 1.0, 3600.0, 3660.0])


def test_asyncio_waits_for_threads_of_the_rank() -> None:
    """Jobs in the loop's pool may block in collectives; results come back into the loop."""

    async def main(rank: int) -> tuple[float, float]:
        total = torch.ones(1) * (rank + 1)
        await asyncio.to_thread(dist.all_reduce, total)
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 5) for _ in range(3)))
        return total.item(), time.monotonic()

    def body(rank: int) -> tuple[float, float]:
        dist.init_process_group("gloo")
        return asyncio.run(main(rank))

    assert results(body) == both((3.0, 5.0))


def test_a_coroutine_that_waits_for_ever_is_a_deadlock() -> None:
    """Nobody is left who could wake the loop."""

    async def main() -> None:
        await asyncio.Event().wait()

    assert simulate(lambda rank: asyncio.run(main()), 2).verdict is Verdict.DEADLOCK


# -- what a rank sees of threads ----------------------------------------------------------------------------------


def test_each_rank_has_a_main_thread_of_its_own() -> None:
    """main_thread is the rank's, enumerate shows the rank's threads only."""

    def body(rank: int) -> list[Any]:
        stop = threading.Event()
        thread = in_a_thread(stop.wait, name="helper")
        seen = [
            threading.current_thread() is threading.main_thread(),
            [t.name for t in threading.enumerate() if t is not threading.main_thread()],
            threading.active_count(),
        ]
        stop.set()
        thread.join()
        return seen

    assert results(body) == both([True, ["helper"], 2])


def test_thread_locals_and_context_variables_are_a_ranks_own() -> None:
    """One rank's value is not seen by another, nor left behind."""
    local, variable = threading.local(), contextvars.ContextVar("variable", default=-1)

    def body(rank: int) -> tuple[int, int, bool]:
        local.value = rank
        variable.set(rank)
        time.sleep(1)
        found: list[bool] = []
        in_a_thread(lambda: found.append(hasattr(local, "value"))).join()
        return local.value, variable.get(), found[0]

    assert results(body) == {0: (0, 0, False), 1: (1, 1, False)}
    assert not hasattr(local, "value") and variable.get() == -1


def test_signal_handlers_may_be_set_in_a_rank() -> None:
    """They are kept for the rank, which gets its own back; nobody else's handler changes."""
    before = signal.getsignal(signal.SIGTERM)

    def body(rank: int) -> list[Any]:
        def handler(number: int, frame: Any) -> None: ...

        first = signal.signal(signal.SIGTERM, handler)
        time.sleep(1)
        return [first, signal.getsignal(signal.SIGTERM) is handler, signal.signal(signal.SIGTERM, first) is handler]

    assert results(body) == both([signal.SIG_DFL, True, True])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_logger_may_be_used_in_all_ranks(caplog: pytest.LogCaptureFixture) -> None:
    """Its lock was made before the run, and is never held while a rank waits."""

    def body(rank: int) -> None:
        for _ in range(3):
            logging.getLogger("ranks").warning("rank %d at %g", rank, time.monotonic())
            time.sleep(1)

    results(body)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank {rank} at {second}" for second in range(3) for rank in range(2)
    ]


# -- hangs --------------------------------------------------------------------------------------------------------


def _two_locks_in_opposite_order(rank: int) -> None:
    left, right = threading.Lock(), threading.Lock()

    def other_way() -> None:
        with right:
            time.sleep(1)
            with left:
                pass

    thread = in_a_thread(other_way)
    with left:
        time.sleep(1)
        with right:
            pass
    thread.join()


def _an_event_that_nobody_sets(rank: int) -> None:
    threading.Event().wait()


def _a_queue_that_nobody_fills(rank: int) -> None:
    queue.Queue().get()


def _a_lock_taken_twice(rank: int) -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


def _joins_a_thread_that_waits(rank: int) -> None:
    in_a_thread(threading.Event().wait).join()


@pytest.mark.parametrize(
    "body",
    [
        _two_locks_in_opposite_order,
        _an_event_that_nobody_sets,
        _a_queue_that_nobody_fills,
        _a_lock_taken_twice,
        _joins_a_thread_that_waits,
    ],
)
def test_a_rank_that_waits_for_itself_is_a_deadlock(body: Callable[[int], None]) -> None:
    """Found at once; the report names the user's line."""
    outcome = simulate(body, 1)
    assert outcome.verdict is Verdict.DEADLOCK
    assert "test_threads.py:" in outcome.report()


def test_a_wait_with_a_time_out_is_no_deadlock() -> None:
    """The time-out strikes in virtual time, and the rank goes on."""

    def body(rank: int) -> tuple[bool, float]:
        return threading.Event().wait(timeout=3600), time.monotonic()

    assert results(body) == both((False, 3600.0))


def test_a_run_with_threads_can_be_repeated() -> None:
    """Trace and report, to the last byte; threads and pools are numbered within their rank."""
    names: list[str] = []

    def body(rank: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            pool.submit(lambda: names.append(threading.current_thread().name))
        in_a_thread(lambda: (time.sleep(1), 1 / 0))
        jobs: queue.Queue[int] = queue.Queue()
        in_a_thread(jobs.get)
        in_a_thread(jobs.join)
        jobs.join()
        threading.Event().wait()

    hook, threading.excepthook = threading.excepthook, lambda args: None
    try:
        first, again = (simulate(body, 2) for _ in range(2))
    finally:
        threading.excepthook = hook
    assert first.trace.to_text() == again.trace.to_text()
    assert first.report() == again.report()
    assert "[r1/Thread-2 (get)]" in first.report()
    assert names == ["ThreadPoolExecutor-0_0"] * 4


# -- outside the ranks --------------------------------------------------------------------------------------------


def test_what_a_rank_made_is_usable_after_the_run() -> None:
    """Locks, events and queues block for real once the simulation is over."""

    def body(rank: int) -> list[Any]:
        jobs: queue.Queue[int] = queue.Queue()
        jobs.put(rank)
        locks = [threading.Lock(), threading.RLock(), threading.Condition(), threading.Event()]
        return [*locks, jobs, queue.SimpleQueue()]

    lock, rlock, condition, event, jobs, simple = results(body)[1]
    assert lock.acquire(timeout=1) and not lock.acquire(timeout=0.01)
    lock.release()
    with rlock, rlock, condition:
        assert not condition.wait(timeout=0.01)
    timer = threading.Timer(0.02, lambda: (event.set(), simple.put("simple")))
    timer.start()
    assert event.wait(timeout=5) and simple.get(timeout=5) == "simple" and jobs.get(timeout=1) == 1
    timer.join()


def test_foreign_threads_see_the_real_thing() -> None:
    """A watcher, such as a test runner's time-out thread: real clock, real sleep, real locks."""
    seen: list[Any] = []
    started, stop = threading.Event(), threading.Event()

    def watch() -> None:
        began = time.monotonic()
        started.set()
        while not stop.wait(0.001):
            time.sleep(0.001)
        lock = threading.Lock()
        seen.extend([type(lock), type(queue.SimpleQueue()), time.time() > 1_767_225_600, time.monotonic() - began < 60])
        helper = threading.Thread(target=lambda: seen.append(threading.current_thread() is threading.main_thread()))
        helper.start()
        helper.join()

    watcher = threading.Thread(target=watch)
    watcher.start()
    started.wait()

    def body(rank: int) -> None:
        time.sleep(100)
        if rank == 1:
            stop.set()
            while len(seen) < 5:
                pass

    results(body, limits=Limits(spin_wall_s=5))
    watcher.join()
    assert seen == [type(threading.Lock()), queue.SimpleQueue, True, True, False]


def test_a_rank_that_blocks_for_real_is_given_up() -> None:
    """On a lock from before the run, say. Its thread ends at the first call that it makes once it is free."""
    lock, went_on = threading.Lock(), []
    before = set(threading.enumerate())

    def body(rank: int) -> None:
        if rank == 0:
            with lock:
                time.sleep(0)
                went_on.append(rank)
        dist.init_process_group("gloo")

    with lock:
        outcome = simulate(body, 2, limits=Limits(spin_wall_s=0.3))
    assert outcome.verdict is Verdict.LIVELOCK
    assert "blocks in something that is not simulated" in outcome.report()
    while set(threading.enumerate()) - before:
        time.sleep(0.001)
    assert went_on == []
    assert not lock.locked()


@pytest.mark.parametrize("body", [_two_locks_in_opposite_order, _joins_a_thread_that_waits, lambda rank: None])
def test_no_thread_outlives_the_run(body: Callable[[int], None]) -> None:
    """Neither a rank's nor the simulator's own."""
    before = set(threading.enumerate())
    simulate(body, 4)
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(threading.enumerate()) == before
    assert sys.getswitchinterval() > 0
