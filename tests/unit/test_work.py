"""Asynchronous work, futures, time-outs and the end of groups under simulation. Real gloo: see `test_parity.py`."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from simulator import Verdict, simulate
from simulator.work import SimWork
from tests.unit.parity_bodies import Body, cases, caught, check_simulation, numbers, plain

pytestmark = pytest.mark.filterwarnings("ignore")  # some names are deprecated in one torch, and new in another


@cases("work")
def test_work_behaves_under_simulation(entry: Body, size: int) -> None:
    check_simulation(entry, size)


def wait_for_a_peer_that_never_comes(rank: int) -> Any:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    if rank == 1:
        return None
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()  # type: ignore[union-attr]


def test_a_future_that_cannot_come_is_a_deadlock_of_its_collective() -> None:
    outcome = simulate(wait_for_a_peer_that_never_comes, 2)
    assert outcome.verdict is Verdict.DEADLOCK
    assert outcome.findings[0].waiting == (0,)
    assert outcome.findings[0].missing == (1,)


def test_a_time_out_of_a_future_strikes_in_virtual_time() -> None:
    outcome = simulate(wait_for_a_peer_that_never_comes, 2, on_hang="timeout")
    assert outcome.ranks[0].error == "RuntimeError: [gloo] Timed out waiting 30000ms for recv operation to complete"
    assert outcome.virtual_s >= 30


def attach_and_leave(rank: int) -> Any:
    """A callback that never runs keeps nobody waiting."""
    dist.init_process_group("gloo")
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        work.get_future().then(lambda done: done.value())
    return "left"


def test_a_callback_for_what_never_comes_does_not_hold_its_rank() -> None:
    assert simulate(attach_and_leave, 2).results == {0: "left", 1: "left"}


def time_out_on_nccl(rank: int) -> Any:
    dist.init_process_group("nccl", timeout=timedelta(seconds=5))
    if rank == 0:
        return caught(dist.all_reduce, torch.ones(1))
    time.sleep(9)
    return None


def test_nccl_names_its_watchdog() -> None:
    outcome = simulate(time_out_on_nccl, 2, on_hang="timeout")
    assert outcome.results[0] == (
        "DistBackendError: [nccl] Watchdog caught collective operation timeout: all_reduce ran for 5000 milliseconds "
        "before timing out"
    )


def use_after_destroy_on_nccl(rank: int) -> Any:
    dist.init_process_group("nccl")
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.destroy_process_group(group)
    return caught(backend.allreduce, [torch.ones(1)])


def test_a_destroyed_nccl_group_refuses() -> None:
    assert simulate(use_after_destroy_on_nccl, 2).results[0] == (
        "RuntimeError: all_reduce on group '#1' after destroy_process_group"
    )


def coalesced_on_nccl(rank: int) -> Any:
    dist.init_process_group("nccl")
    first, second = numbers(rank), numbers(rank, (2,))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(first, src=0)
        dist.broadcast(second, src=1)
    manager.wait()
    return plain(first), plain(second)


def test_nccl_coalesces_whatever_comes_between_start_and_end() -> None:
    results = simulate(coalesced_on_nccl, 2).raise_if_bad().results
    assert results == {rank: ([1.0, 2.0, 3.0], [11.0, 12.0]) for rank in (0, 1)}


def test_gloo_does_not_coalesce_so() -> None:
    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        return caught(dist.distributed_c10d._get_default_group()._start_coalescing, torch.device("cpu"))

    assert simulate(body, 1).results[0] == "RuntimeError: Backend gloo does not support startCoalescing"


# -- nothing stays behind ------------------------------------------------------------------------------------------


def leave_things_open(rank: int) -> Any:
    dist.init_process_group("gloo")
    funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    work.get_future().then(lambda done: done.value())
    dist.irecv(torch.ones(1), src=1 - rank)
    return None


def test_what_a_run_left_open_is_gone_after_it() -> None:
    """Works, threads, and the replaced parts of torch's futures; groups would keep whole simulations alive."""
    wait, collect, threads, works = torch._C.Future.wait, torch._C._collect_all, threading.active_count(), all_works()
    for _ in range(2):
        assert simulate(leave_things_open, 2).verdict is Verdict.LEAK
        assert (torch._C.Future.wait, torch._C._collect_all) == (wait, collect)
    assert all_works() <= works
    assert threading.active_count() <= threads


def all_works() -> int:
    gc.collect()
    return sum(SimWork in type(thing).__mro__ for thing in gc.get_objects())


def test_work_that_outlives_its_run_does_not_block() -> None:
    kept: list[Any] = []

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 0:
            kept.append(dist.all_reduce(torch.ones(1), async_op=True))

    simulate(body, 2)
    with pytest.raises(RuntimeError, match="wait for all_reduce belongs to a simulation"):
        kept[0].wait()


def test_callbacks_of_the_garbage_collector_do_not_run_in_ranks() -> None:
    """They run on whichever rank allocates just then; one that reads the clock would change the schedule."""
    seen: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        seen.append(threading.current_thread().name)

    gc.callbacks.append(callback)
    try:
        simulate(lambda rank: gc.collect(), 2).raise_if_bad()
        assert callback in gc.callbacks
    finally:
        gc.callbacks.remove(callback)
    assert not {"r0", "r1"} & set(seen)


def test_torch_futures_work_outside_simulations() -> None:
    future: torch.futures.Future[int] = torch.futures.Future()
    threading.Timer(0.01, future.set_result, args=(3,)).start()
    assert future.then(lambda done: done.value() + 1).wait() == 4
