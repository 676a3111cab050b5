"""Bodies on what an asynchronous call returns, on time-outs, and on the end of groups. Run by `test_work.py`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.unit.parity_bodies import TORCH, body, caught, late, numbers, plain


def pending(work: Any) -> Any:
    assert work is not None
    return work


def error_of(work: Any) -> str | None:
    """The type of the error that a piece of work ended with; torch 2.11 cannot hand it to Python."""
    return type(work.exception()).__name__ if TORCH > (2, 11) else "unreadable"


@body(sizes=(1, 2, 4))
def work_of_each_collective(rank: int, world_size: int) -> Any:
    tensor, out = numbers(rank, (world_size,)), torch.zeros(world_size)
    many = [torch.zeros(world_size) for _ in range(world_size)]
    calls: dict[str, Any] = {
        "all_reduce": lambda: dist.all_reduce(tensor, async_op=True),
        "broadcast": lambda: dist.broadcast(tensor, src=0, async_op=True),
        "reduce": lambda: dist.reduce(tensor.clone(), dst=0, async_op=True),
        "all_gather": lambda: dist.all_gather(many, tensor, async_op=True),
        "gather": lambda: dist.gather(tensor, many if rank == 0 else None, dst=0, async_op=True),
        "scatter": lambda: dist.scatter(out, many if rank == 0 else None, src=0, async_op=True),
        "all_to_all_single": lambda: dist.all_to_all_single(out, tensor, async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
    }
    seen = {}
    for name, call in calls.items():
        work = pending(call())
        waited = work.wait()
        seen[name] = waited, work.is_completed(), work.is_success(), error_of(work), plain(work.wait())
    return seen


@body()
def work_results_are_the_outputs(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    work = pending(dist.all_reduce(tensor, async_op=True))
    work.wait()
    many = [torch.zeros(3) for _ in range(world_size)]
    gathering = pending(dist.all_gather(many, tensor, async_op=True))
    gathering.wait()
    barrier = pending(dist.barrier(async_op=True))
    barrier.wait()
    return (
        caught(lambda: plain(work.result())), caught(lambda: plain(gathering.result())),
        caught(lambda: plain(barrier.result())), caught(work._source_rank), caught(work.source_rank),
    )  # fmt: skip


@body()
def work_of_a_reduce_scatter(rank: int, world_size: int) -> Any:
    """On gloo it runs in wait(), and never counts as completed."""
    out = torch.zeros(1)
    work = pending(dist.reduce_scatter_tensor(out, numbers(rank, (world_size,)), async_op=True))
    before = work.wait(), work.is_completed(), work.is_success()
    return before, caught(lambda: plain(work.result())), caught(work.get_future), plain(out)


@body()
def polling_until_completed(rank: int, world_size: int) -> Any:
    """A loop on is_completed() without anything else that blocks."""
    late(rank, 1, 0.05)
    tensor = numbers(rank)
    work = pending(dist.all_reduce(tensor, async_op=True))
    polls = 0
    while not work.is_completed():
        polls += 1
        time.sleep(0)
    return plain(tensor), polls > 0 or rank == 1 or world_size == 1


@body(sizes=(2,))
def polling_a_message(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    if rank == 0:
        time.sleep(0.05)
        dist.send(tensor, dst=1)
        return None
    work = pending(dist.irecv(tensor, src=0))
    before = work.is_completed()
    work.wait()
    return before, work.is_completed(), plain(tensor)


@body(sizes=(2,))
def several_pieces_of_work_at_once(rank: int, world_size: int) -> Any:
    tensors = [numbers(rank + step) for step in range(4)]
    works = [pending(dist.all_reduce(tensor, async_op=True)) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return plain(tensors)


# -- futures -------------------------------------------------------------------------------------------------------


@body()
def future_of_an_all_reduce(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    tensor = numbers(rank)
    future = pending(dist.all_reduce(tensor, async_op=True)).get_future()
    value = future.wait()
    return plain(value), future.done(), plain(future.value()), plain(tensor)


@body()
def futures_chained(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    tensor = numbers(rank)
    future = pending(dist.all_reduce(tensor, async_op=True)).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    text = doubled.then(lambda done: f"sum {done.value().sum().item()}")
    return text.wait(), plain(doubled.wait()), text.done(), caught(text.then(lambda done: 1 / 0).wait)


@body()
def future_callbacks_run_where_they_were_made(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    seen: list[int] = []
    future = pending(dist.all_reduce(numbers(rank), async_op=True)).get_future()
    future.add_done_callback(lambda done: seen.append(dist.get_rank()))
    future.wait()
    while not seen:
        time.sleep(0.001)
    return seen


@body()
def futures_waited_for_together(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    tensors = [numbers(rank + step) for step in range(3)]
    futures = [pending(dist.all_reduce(tensor, async_op=True)).get_future() for tensor in tensors]
    collected = torch.futures.collect_all(futures).then(lambda done: len(done.value()))
    return plain(torch.futures.wait_all(futures)), collected.wait()


@body()
def futures_polled(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    future = pending(dist.all_reduce(numbers(rank), async_op=True)).get_future()
    while not future.done():
        time.sleep(0)
    return plain(future.value())


@body(sizes=(2,))
def futures_of_other_operations(rank: int, world_size: int) -> Any:
    many = [torch.zeros(3) for _ in range(world_size)]
    gathering = pending(dist.all_gather(many, numbers(rank), async_op=True)).get_future()
    barrier = pending(dist.barrier(async_op=True)).get_future()
    peer, got = 1 - rank, torch.zeros(3)
    sending, receiving = pending(dist.isend(numbers(rank), dst=peer)), pending(dist.irecv(got, src=peer))
    sending.wait()
    receiving.wait()
    return (
        plain(gathering.wait()), plain(barrier.wait()), plain(many),
        caught(lambda: plain(sending.get_future().wait())), caught(lambda: plain(receiving.get_future().wait())),
    )  # fmt: skip


@body(sizes=(2,))
def futures_of_ones_own(rank: int, world_size: int) -> Any:
    import threading

    future: torch.futures.Future[int] = torch.futures.Future()

    def later() -> None:
        time.sleep(0.02)
        future.set_result(rank)

    threading.Thread(target=later).start()
    return future.then(lambda done: done.value() + 1).wait(), future.wait()


# -- time-outs -----------------------------------------------------------------------------------------------------


@body(sizes=(2,), on_hang="timeout")
def wait_with_a_time_out_that_strikes(rank: int, world_size: int) -> Any:
    """The work stays usable: a second wait gets the result."""
    late(rank, 1, 0.3)
    tensor = numbers(rank)
    work = pending(dist.all_reduce(tensor, async_op=True))
    first = caught(work.wait, timedelta(milliseconds=50)) if rank == 0 else None
    completed = work.is_completed() if rank == 0 else None
    return first, completed, caught(work.wait), plain(tensor), caught(work.wait, timedelta(seconds=1))


@body(sizes=(2,))
def wait_with_a_time_out_that_suffices(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.05)
    tensor = numbers(rank)
    work = pending(dist.all_reduce(tensor, async_op=True))
    return work.wait(timedelta(seconds=5)), plain(tensor)


@body(sizes=(2,), on_hang="timeout")
def message_wait_with_a_time_out(rank: int, world_size: int) -> Any:
    group = dist.new_group()
    if rank == 1:
        time.sleep(0.4)
        return None
    work = pending(dist.irecv(numbers(rank), src=1, group=group))
    return caught(work.wait, timedelta(milliseconds=100)), work.is_completed(), caught(work.wait)


@body(on_hang="timeout", finds=("timeout",))
def a_collective_beyond_the_time_out_of_its_group(rank: int, world_size: int) -> Any:
    """The group is unusable afterwards; the default group works on."""
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank == world_size - 1:
        time.sleep(0.8)
    first = caught(dist.all_reduce, numbers(rank), group=group)
    again = caught(dist.all_reduce, numbers(rank), group=group)
    total = numbers(rank)
    dist.all_reduce(total)
    kind = first.split(":")[0] if isinstance(first, str) else first
    return (first if rank == 0 else kind), again.split(":")[0] if isinstance(again, str) else again, plain(total)


@body(sizes=(2,), on_hang="timeout", finds=("timeout",))
def each_operation_beyond_the_time_out(rank: int, world_size: int) -> Any:
    out = [torch.zeros(2), torch.zeros(2)]
    calls: dict[str, Any] = {
        "all_gather": lambda group: dist.all_gather(out, numbers(0, (2,)), group=group),
        "broadcast": lambda group: dist.broadcast(numbers(0), src=1, group=group),
        "barrier": lambda group: dist.barrier(group),
        "all_to_all_single": lambda group: dist.all_to_all_single(out[0], numbers(0, (2,)), group=group),
        "recv": lambda group: dist.recv(numbers(0), src=1, group=group),
        "send": lambda group: dist.send(numbers(0), dst=1, group=group),
        "reduce": lambda group: dist.reduce(numbers(0), dst=0, group=group),
        "scatter": lambda group: dist.scatter(out[0], None, src=1, group=group),
        "gather": lambda group: dist.gather(numbers(0, (2,)), out, dst=0, group=group),
        "object": lambda group: dist.all_gather_object([None, None], 1, group=group),
    }
    groups = {name: dist.new_group(timeout=timedelta(milliseconds=60)) for name in calls}
    if rank == 1:
        time.sleep(1.0)
        return None
    return {name: caught(call, groups[name]) for name, call in calls.items()}


@body(sizes=(2,), on_hang="timeout", finds=("timeout",))
def pending_work_beyond_the_time_out(rank: int, world_size: int) -> Any:
    group = dist.new_group(timeout=timedelta(milliseconds=150))
    if rank == 1:
        time.sleep(0.5)
        return None
    work = pending(dist.all_reduce(numbers(rank), group=group, async_op=True))
    future = work.get_future()
    while not work.is_completed():
        time.sleep(0.01)
    return work.is_success(), error_of(work), caught(work.wait), caught(future.wait), future.done()


# -- the life of groups --------------------------------------------------------------------------------------------


@body()
def use_after_destroy(rank: int, world_size: int) -> Any:
    sub = dist.new_group(list(range(world_size)))
    dist.all_reduce(numbers(rank), group=sub)
    dist.destroy_process_group(sub)
    after = {
        "all_reduce": caught(dist.all_reduce, numbers(rank), group=sub),
        "send": caught(dist.send, numbers(rank), dst=(rank + 1) % world_size, group=sub),
        "rank": caught(dist.get_rank, sub),
        "destroy": caught(dist.destroy_process_group, sub),
        "ranks": caught(dist.get_process_group_ranks, sub),
    }
    total = numbers(rank)
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.05)
    return after, plain(total), {
        "initialized": dist.is_initialized(),
        "all_reduce": caught(dist.all_reduce, numbers(rank)),
        "rank": caught(dist.get_rank),
        "world": caught(dist.get_world_size),
        "destroy": caught(dist.destroy_process_group),
        "barrier": caught(dist.barrier),
    }  # fmt: skip


@body()
def groups_destroyed_and_made_again(rank: int, world_size: int) -> Any:
    got = []
    for step in range(3):
        group = dist.new_group(list(range(world_size)))
        total = numbers(rank + step)
        dist.all_reduce(total, group=group)
        got.append(plain(total))
        dist.destroy_process_group(group)
    return got


@body(sizes=(2,))
def a_work_outlives_its_group(rank: int, world_size: int) -> Any:
    group = dist.new_group()
    tensor = numbers(rank)
    work = pending(dist.all_reduce(tensor, group=group, async_op=True))
    work.wait()
    dist.barrier()
    dist.destroy_process_group(group)
    return work.is_completed(), work.wait(), plain(tensor)
