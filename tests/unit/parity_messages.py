"""Bodies on sends and receives, and on the barrier that is built on them. Run by `test_messages.py`."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.unit.parity_bodies import body, caught, late, numbers, plain
from tests.unit.parity_collectives import DTYPES


@body()
def ring_of_blocking_messages(rank: int, world_size: int) -> Any:
    """Rank 0 sends first, the others receive first."""
    tensor = numbers(rank)
    got = torch.zeros(3)
    if rank == 0:
        dist.send(tensor, dst=1)
        source = dist.recv(got, src=world_size - 1)
    else:
        source = dist.recv(got, src=rank - 1)
        dist.send(tensor, dst=(rank + 1) % world_size)
    return plain(got), source


@body()
def ring_of_pending_messages(rank: int, world_size: int) -> Any:
    got = torch.zeros(3)
    sending = dist.isend(numbers(rank), dst=(rank + 1) % world_size)
    receiving = dist.irecv(got, src=(rank - 1) % world_size)
    assert sending is not None and receiving is not None
    return receiving.wait(), sending.wait(), plain(got), receiving.is_completed(), sending.is_completed()


@body(sizes=(2,))
def tags_keep_messages_apart(rank: int, world_size: int) -> Any:
    if rank == 0:
        works = [dist.isend(numbers(tag), dst=1, tag=tag) for tag in (1, 2, 3)]
        for work in works:
            assert work is not None
            work.wait()
        return None
    got = {}
    for tag in (3, 1, 2):
        tensor = torch.zeros(3)
        dist.recv(tensor, src=0, tag=tag)
        got[tag] = plain(tensor)
    return got


@body(sizes=(2,))
def messages_of_one_tag_keep_their_order(rank: int, world_size: int) -> Any:
    if rank == 0:
        for step in range(5):
            dist.send(numbers(step), dst=1)
        return None
    got = [torch.zeros(3) for _ in range(5)]
    works = [dist.irecv(tensor, src=0) for tensor in got]
    for work in reversed(works):
        assert work is not None
        work.wait()
    return plain(got)


@body(sizes=(4,))
def receives_from_any_source(rank: int, world_size: int) -> Any:
    """One sender at a time, so that the order is known."""
    if rank == 0:
        got = []
        for _ in range(1, world_size):
            tensor = torch.zeros(3)
            source = dist.recv(tensor)
            got.append((source, plain(tensor)))
            dist.barrier()
        return got
    for step in range(1, world_size):
        if rank == step:
            dist.send(numbers(rank), dst=0)
        dist.barrier()
    return None


@body(sizes=(4,))
def pending_receive_from_any_source_names_it(rank: int, world_size: int) -> Any:
    if rank == 1:
        tensor = torch.zeros(3)
        work = dist.irecv(tensor)
        assert work is not None
        work.wait()
        return work._source_rank(), plain(tensor)
    if rank == 3:
        dist.send(numbers(rank), dst=1)
    return None


@body()
def messages_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(dtype: torch.dtype) -> Any:
        tensor = numbers(rank, dtype=dtype)
        got = torch.zeros_like(tensor)
        if rank == 0:
            dist.send(tensor, dst=1)
            dist.recv(got, src=1)
        elif rank == 1:
            dist.recv(got, src=0)
            dist.send(tensor, dst=0)
        return got

    return {str(dtype): caught(one, dtype) for dtype in DTYPES}


@body(sizes=(2,))
def messages_of_odd_tensors(rank: int, world_size: int) -> Any:
    def one(sent: torch.Tensor, got: torch.Tensor) -> Any:
        if rank == 0:
            dist.send(sent, dst=1)
        else:
            dist.recv(got, src=0)
        return got

    turned = numbers(1, (2, 3)).t()
    return {
        "scalar": caught(one, torch.tensor(5.0), torch.zeros(())),
        "empty": caught(one, torch.zeros(0), torch.zeros(0)),
        "shapes": caught(one, numbers(1, (2, 3)), torch.zeros(6)),
        "both strided": caught(one, turned, torch.zeros(2, 3).t()),
        "strided slice": caught(one, numbers(1, (2, 2))[:, 0], torch.zeros(2, 2)[:, 0]),
        "grad": caught(one, numbers(1).requires_grad_(), torch.zeros(3).requires_grad_()),
    }


@body()
def batch_of_messages_around_a_ring(rank: int, world_size: int) -> Any:
    """Receives are listed before sends; two in each direction."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    got = [torch.zeros(3), torch.zeros(2)]
    ops = [dist.P2POp(dist.irecv, tensor, left) for tensor in got]
    ops += [dist.P2POp(dist.isend, numbers(rank), right), dist.P2POp(dist.isend, numbers(rank, (2,)), right)]
    works = dist.batch_isend_irecv(ops)
    for work in works:
        work.wait()
    return plain(got), len(works)


@body()
def batch_with_wrong_arguments(rank: int, world_size: int) -> Any:
    sub = dist.new_group([0, 1])
    one = dist.P2POp(dist.isend, numbers(rank), (rank + 1) % world_size)
    result = {
        "empty": caught(dist.batch_isend_irecv, []),
        "no op": caught(dist.batch_isend_irecv, [1]),
        "wrong op": caught(dist.P2POp, dist.broadcast, numbers(rank), 0),
        "itself": kind(caught(dist.batch_isend_irecv, [dist.P2POp(dist.isend, numbers(rank), rank)])),
    }
    if rank < 2:
        other = dist.P2POp(dist.irecv, numbers(rank), (rank + 1) % 2, sub)
        result["two groups"] = caught(dist.batch_isend_irecv, [one, other])
    return result


@body(sizes=(2,))
def messages_to_oneself(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    return {
        "send": caught(dist.send, tensor, dst=rank),
        "isend": kind(caught(dist.isend, tensor, dst=rank)),
        "irecv": kind(caught(dist.irecv, tensor, src=rank)),
    }


def kind(text: Any) -> Any:
    """The type of an error, without its text."""
    return text.split(":")[0] if isinstance(text, str) else text


@body()
def messages_with_wrong_arguments(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    return {
        "negative tag": caught(dist.isend, tensor, dst=(rank + 1) % world_size, tag=-5),
        "no tensor": caught(dist.send, 1.0, dst=(rank + 1) % world_size),
        "both roots": caught(dist.send, tensor, dst=0, group_dst=0),
        "neither root": caught(dist.send, tensor),
        "strided": caught(dist.isend, numbers(rank, (2, 3)).t(), dst=(rank + 1) % world_size),
        "strided receive": caught(dist.irecv, numbers(rank, (2, 3)).t(), src=(rank + 1) % world_size),
    }


@body(sizes=(4,))
def messages_in_a_sub_group(rank: int, world_size: int) -> Any:
    """Global ranks at the interface, or group ranks by name."""
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return caught(dist.send, numbers(rank), dst=1, group=group)
    got, again = torch.zeros(3), torch.zeros(3)
    if rank == 1:
        dist.send(numbers(rank), dst=3, group=group)
        source = dist.recv(again, group=group)
        return source, plain(again)
    source = dist.recv(got, src=1, group=group)
    dist.send(numbers(rank), group_dst=0, group=group)
    return source, plain(got), caught(dist.send, got, dst=0, group=group)


@body(sizes=(2,))
def messages_overtake_collectives(rank: int, world_size: int) -> Any:
    """A pending receive across a collective of the same group."""
    got, total = torch.zeros(3), numbers(rank)
    work = dist.irecv(got, src=1) if rank == 0 else None
    dist.all_reduce(total)
    if rank == 1:
        dist.send(numbers(rank), dst=0)
    if work is not None:
        work.wait()
    return plain(total), plain(got)


@body(sizes=(2,))
def a_sent_tensor_may_change_after_wait(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    if rank == 0:
        work = dist.isend(tensor, dst=1)
        assert work is not None
        work.wait()
        tensor.zero_()
        dist.send(tensor, dst=1)
        return None
    first, second = torch.zeros(3), torch.zeros(3)
    dist.recv(first, src=0)
    dist.recv(second, src=0)
    return plain(first), plain(second)


@body()
def object_messages(rank: int, world_size: int) -> Any:
    if rank == 0:
        dist.send_object_list([{"a": 1}, "text", [1, 2]], dst=1)
        dist.send_object_list([7], dst=1)
        return None
    if rank == 1:
        got: list[Any] = [None] * 3
        source = dist.recv_object_list(got, src=0)
        more: list[Any] = [None]
        again = dist.recv_object_list(more, group_src=0)
        return got, source, more, again
    return None


# -- monitored_barrier ---------------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def monitored_barrier_passes(rank: int, world_size: int) -> Any:
    late(rank, 1, 0.1)
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)
    total = numbers(rank)
    dist.all_reduce(total)
    return plain(total)


@body(on_hang="timeout")
def monitored_barrier_names_a_late_rank(rank: int, world_size: int) -> Any:
    late(rank, world_size - 1, 0.5)
    return caught(dist.monitored_barrier, timeout=timedelta(milliseconds=200)) if rank < world_size - 1 else "late"


@body(sizes=(4,), on_hang="timeout")
def monitored_barrier_names_all_late_ranks(rank: int, world_size: int) -> Any:
    if rank in (1, 3):
        time.sleep(0.6)
        return "late"
    return caught(dist.monitored_barrier, timeout=timedelta(milliseconds=200), wait_all_ranks=True)


@body(on_hang="timeout", finds=("timeout",))
def monitored_barrier_without_rank_0(rank: int, world_size: int) -> Any:
    group = dist.new_group(timeout=timedelta(milliseconds=300))
    if rank == 0:
        time.sleep(0.7)
        return "late"
    return caught(dist.monitored_barrier, group)


@body(sizes=(2,), on_hang="timeout")
def polling_a_message_without_waiting(rank: int, world_size: int) -> Any:
    """On gloo a message counts as completed only when somebody has waited for it."""
    tensor = numbers(rank)
    if rank == 0:
        dist.send(tensor, dst=1)
        return None
    work = dist.irecv(tensor, src=0)
    assert work is not None
    polls = 0
    while not work.is_completed() and polls < 50:
        polls += 1
        time.sleep(0.002)
    work.wait()
    return polls, work.is_completed(), plain(tensor)
