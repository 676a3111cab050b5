"""The `nccl` model: the host goes on, the device works in stream order, the host waits where it reads.

What each program does on real NCCL was measured (M) with torch 2.11 and NCCL 2.28.9 on an H200, two or three processes,
or is read (R) in torch's ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from simulator import Outcome, Verdict, simulate

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
Body = Callable[[int], Any]


def start(rank: int, backend: str = "nccl") -> None:
    """A group that is connected: its first collective, and a message each way, are over."""
    dist.init_process_group(backend, device_id=torch.device("cuda", rank) if backend == "nccl" else None)
    total(torch.ones(1))
    exchange(torch.ones(1), torch.zeros(1), rank)


def exchange(mine: torch.Tensor, got: torch.Tensor, rank: int) -> None:
    size = dist.get_world_size()
    ops = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def total(tensor: torch.Tensor, group: Any = None) -> float:
    dist.all_reduce(tensor, group=group)
    return float(tensor.sum().item())


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def verdict(outcome: Outcome) -> Verdict:
    return outcome.verdict


# -- the host runs ahead -------------------------------------------------------------------------------------------


def key_after_call(rank: int, backend: str = "nccl") -> float:
    start(rank, backend)
    tensor = torch.ones(4)
    if rank == 0:
        dist.all_reduce(tensor)
        store().set("go", "1")
    else:
        store().wait(["go"])
        dist.all_reduce(tensor)
    return float(tensor[0])


def test_the_host_goes_on_after_a_synchronous_call() -> None:
    """M: rank 0 leaves the call at once. On gloo it stays in it."""
    assert simulate(key_after_call, 2).raise_if_bad().results == {0: 2.0, 1: 2.0}
    assert verdict(simulate(lambda rank: key_after_call(rank, "gloo"), 2)) is Verdict.DEADLOCK


def key_after_read(rank: int) -> None:
    start(rank)
    tensor = torch.ones(4)
    if rank == 0:
        dist.all_reduce(tensor)
        print_of = tensor.sum().item()
        store().set("go", str(print_of))
    else:
        store().wait(["go"])
        dist.all_reduce(tensor)


def test_a_read_before_the_key_is_a_deadlock_with_both_lines() -> None:
    """R: `item` copies to the host and synchronises the current stream."""
    outcome = simulate(key_after_read, 2)
    assert verdict(outcome) is Verdict.DEADLOCK
    finding = outcome.findings[0]
    line = key_after_read.__code__.co_firstlineno
    side = next(side for side in finding.sides if side.ranks == (0,))
    assert side.site is not None and side.site.line == line + 4, outcome.report()
    assert f"its host waits at tests/unit/test_nccl_model.py:{line + 5}" in side.doing, outcome.report()


def first_call(rank: int, *, eager: bool) -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank) if eager else None)
    tensor = torch.ones(1)
    if rank == 0:
        dist.all_reduce(tensor)
        store().set("go", "1")
    else:
        store().wait(["go"])
        dist.all_reduce(tensor)


@pytest.mark.parametrize("eager", [True, False])
def test_the_first_collective_holds_the_host_until_all_have_called(eager: bool) -> None:
    """M: with and without `device_id`: the members connect at their first collective."""
    assert verdict(simulate(lambda rank: first_call(rank, eager=eager), 2)) is Verdict.DEADLOCK


def test_connecting_at_once_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's documentation of NCCL_RUNTIME_CONNECT: 0 connects all peers when the communicator is made."""
    monkeypatch.setenv("NCCL_RUNTIME_CONNECT", "0")
    simulate(lambda rank: first_call(rank, eager=True), 2).raise_if_bad()
    assert verdict(simulate(lambda rank: first_call(rank, eager=False), 2)) is Verdict.DEADLOCK


def other_after(rank: int, call: Callable[[torch.Tensor], Any]) -> None:
    start(rank)
    tensor = torch.ones(2)
    if rank == 1:
        store().wait(["go"])
    call(tensor)
    store().set("go", "1")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda tensor: dist.broadcast(tensor, 0), Verdict.OK),
        (lambda tensor: dist.all_gather_into_tensor(torch.zeros(4), tensor), Verdict.OK),
        (lambda tensor: dist.all_to_all_single(torch.zeros(2), tensor), Verdict.DEADLOCK),
    ],
    ids=["broadcast", "all_gather", "all_to_all"],
)
def test_what_is_made_of_messages_connects_apart(call: Any, expected: Verdict) -> None:
    """M: after an all_reduce, broadcast and all_gather run ahead; all_to_all holds the host."""
    assert verdict(simulate(lambda rank: other_after(rank, call), 2)) is expected


def test_a_barrier_holds_the_host() -> None:
    """M: 4 s where the peer came 4 s late; its handle, with async_op, at `wait`."""

    def body(rank: int, is_async: bool) -> None:
        start(rank)
        if rank == 1:
            store().wait(["go"])
        work = dist.barrier(async_op=is_async)
        if rank == 0 and is_async:
            store().set("go", "1")
        if work is not None:
            work.wait()
        store().set("go", "1")

    assert verdict(simulate(lambda rank: body(rank, False), 2)) is Verdict.DEADLOCK
    assert verdict(simulate(lambda rank: body(rank, True), 2)) is Verdict.OK


def waits_for_handle(rank: int, limit: timedelta | None = None) -> Any:
    start(rank)
    tensor = torch.ones(2)
    if rank == 1:
        store().wait(["go"])
    work = dist.all_reduce(tensor, async_op=True)
    try:
        done = work.is_completed(), work.wait(limit) if limit else work.wait()
    except dist.DistBackendError as error:
        done = str(error)
    store().set("go", "1")
    return done, (tensor * 2).tolist() if limit is None else None


def test_wait_holds_the_stream_and_not_the_host() -> None:
    """R: `wait` blocks the current stream on the end event."""
    results = simulate(waits_for_handle, 2).raise_if_bad().results
    assert results[0] == ((False, True), [4.0, 4.0])


def test_wait_with_a_time_out_holds_the_host() -> None:
    """M: DistBackendError after the time-out that was named."""
    results = simulate(lambda rank: waits_for_handle(rank, timedelta(seconds=1)), 2).results
    assert "Watchdog caught collective operation timeout: all_reduce ran for 1000 milliseconds" in results[0][0]


def test_blocking_wait_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """R: TORCH_NCCL_BLOCKING_WAIT lets `wait` hold the host; a synchronous call returns no handle to wait for."""
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    assert verdict(simulate(waits_for_handle, 2)) is Verdict.DEADLOCK
    assert verdict(simulate(key_after_call, 2)) is Verdict.OK


def reads_at_once(rank: int, read: Callable[[torch.Tensor], Any]) -> Any:
    start(rank)
    tensor = torch.ones(2)
    if rank == 1:
        store().wait(["go"])
    dist.all_reduce(tensor)
    value = read(tensor)
    store().set("go", "1")
    return value


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda t: t[0].item(), "tolist": lambda t: t.tolist(), "numpy": lambda t: t.numpy().sum(),
    "cpu": lambda t: t.cpu(), "to cpu": lambda t: t.to("cpu"), "print": str, "format": lambda t: f"{t}",
    "if": lambda t: bool(t[0] > 1), "nonzero": lambda t: t.nonzero(), "mask": lambda t: t[t > 1],
    "cuda": lambda t: torch.cuda.synchronize(), "accelerator": lambda t: torch.accelerator.synchronize(),
    "equal": lambda t: torch.equal(t, t + 1), "float": lambda t: float(t[0]), "object": lambda t: objects(t),
}  # fmt: skip
NO_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: t.shape, "double": lambda t: t * 2, "view": lambda t: t.view(1, 2)[0], "clone": torch.clone,
    "matmul": lambda t: t @ t, "add_": lambda t: t.add_(1), "cat": lambda t: torch.cat([t, t]),
    "asynchronous copy": lambda t: t.to("cpu", non_blocking=True), "index": lambda t: t[torch.tensor([1])],
    "collective": lambda t: dist.all_reduce(t), "foreach": lambda t: torch._foreach_add_([t], 1.0),
    "softmax": lambda t: torch.softmax(t, 0),
}  # fmt: skip


def objects(tensor: torch.Tensor) -> Any:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, tensor.shape[0])
    return found


@pytest.mark.parametrize("name", READS)
def test_the_host_waits_where_it_reads(name: str) -> None:
    """R: these copy to the host, or need a size from the device. M: object collectives read on the host."""
    assert verdict(simulate(lambda rank: reads_at_once(rank, READS[name]), 2)) is Verdict.DEADLOCK


@pytest.mark.parametrize("name", NO_READS)
def test_the_host_goes_on_where_it_does_not_read(name: str) -> None:
    """R: these launch kernels, or look at what the host knows."""
    assert verdict(simulate(lambda rank: reads_at_once(rank, NO_READS[name]), 2)) is Verdict.OK


# -- values --------------------------------------------------------------------------------------------------------


def computes_ahead(rank: int) -> Any:
    start(rank)
    if rank == 1:
        store().wait(["go"])
    x = torch.full((4,), float(rank + 1))
    dist.all_reduce(x)
    doubled, pair = x * 2, torch.cat([x, x + 1])
    middle = pair[2:6]
    middle.mul_(10)
    product = doubled @ x
    later = torch.zeros(4)
    later.copy_(x)
    x.zero_()
    dist.all_reduce(pair)
    store().set("go", "1")
    copied = pair.clone().reshape(2, 4).t().contiguous()
    return doubled.tolist(), pair.tolist(), product.item(), later.tolist(), x.tolist(), copied.shape, copied[1].tolist()


def test_what_is_computed_ahead_has_the_right_values() -> None:
    results = simulate(computes_ahead, 2).raise_if_bad().results
    pair = [6.0, 6.0, 60.0, 60.0, 80.0, 80.0, 8.0, 8.0]
    assert results[0] == results[1] == ([6.0] * 4, pair, 72.0, [3.0] * 4, [0.0] * 4, (4, 2), [6.0, 80.0])


def test_gradients_go_through_pending_results() -> None:
    """Autograd's version counters must not see that a value comes later."""

    def body(rank: int) -> Any:
        start(rank)
        weight = torch.ones(3, requires_grad=True)
        data = torch.ones(3)
        dist.all_reduce(data)
        hidden = weight * data
        loss = (hidden * hidden).sum()
        loss.backward()
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        return weight.grad.tolist()

    assert simulate(body, 2).raise_if_bad().results[0] == [16.0, 16.0, 16.0]


def test_functional_collectives_chain_without_the_host() -> None:
    """R: they are asynchronous, and `wait_tensor` waits on the stream."""

    def body(rank: int) -> Any:
        start(rank)
        if rank == 1:
            store().wait(["go"])
        once = funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        twice = funcol.all_reduce(once + 1, "sum", dist.group.WORLD)
        store().set("go", "1")
        return (twice * 1).tolist()

    assert simulate(body, 2).raise_if_bad().results[0] == [6.0, 6.0]


def test_an_error_of_the_device_comes_up_where_the_host_waits() -> None:
    """As on CUDA: an index out of range is an error of a kernel, seen at the next synchronisation."""

    def body(rank: int) -> Any:
        start(rank)
        index = torch.full((1,), rank + 5)
        dist.all_reduce(index)
        try:
            return torch.ones(3)[index].tolist()
        except (IndexError, RuntimeError) as error:
            return "out of" in str(error)

    assert simulate(body, 2).results == {0: True, 1: True}


def test_a_pending_tensor_on_a_gloo_group_is_waited_for() -> None:
    def body(rank: int) -> Any:
        start(rank)
        host = dist.new_group(backend="gloo")
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        return total(tensor, host)

    assert simulate(body, 2).raise_if_bad().results[0] == 8.0


def test_modes_and_default_devices_of_the_user_stay_in_order() -> None:
    def body(rank: int) -> Any:
        with torch.device("meta"):
            start_inside = torch.get_default_device().type
            dist.init_process_group("nccl")
            tensor = torch.ones(1, device="cpu")
            dist.all_reduce(tensor)
            inside = torch.ones(1).device.type
        return start_inside, inside, torch.ones(1).device.type, tensor.item()

    assert simulate(body, 2).raise_if_bad().results[0] == ("meta", "meta", "cpu", 2.0)


# -- two groups ----------------------------------------------------------------------------------------------------


def crossing(rank: int, *, is_async: bool) -> Any:
    start(rank)
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    total(torch.ones(1), first)
    total(torch.ones(1), second)
    tensors = [torch.ones(1), torch.ones(1)]
    order = [first, second] if rank == 0 else [second, first]
    works = [dist.all_reduce(t, group=g, async_op=is_async) for t, g in zip(tensors, order, strict=True)]
    for work in works:
        if work is not None:
            work.wait()
    return [t.item() for t in tensors]


def test_synchronous_calls_on_two_groups_in_two_orders_hang() -> None:
    """M: both hosts leave the calls, the device hangs: one stream."""
    outcome = simulate(lambda rank: crossing(rank, is_async=False), 2)
    assert verdict(outcome) is Verdict.DEADLOCK and "a cycle" in outcome.findings[0].cause


def test_asynchronous_calls_on_two_groups_may_cross() -> None:
    """M: each group has a stream of its own."""
    assert simulate(lambda rank: crossing(rank, is_async=True), 2).raise_if_bad().results[0] == [2.0, 2.0]


def test_collectives_of_one_group_keep_the_order_of_issue() -> None:
    """R: one communicator; an asynchronous call and a synchronous one behind it cannot change places."""

    def body(rank: int) -> Any:
        start(rank)
        one, other = torch.full((2,), rank + 1.0), torch.full((2,), rank + 1.0)
        work = dist.all_reduce(one, async_op=True)
        dist.broadcast(other, 0)
        work.wait()
        return one.tolist(), other.tolist()

    assert simulate(body, 2).raise_if_bad().results[1] == ([3.0, 3.0], [1.0, 1.0])


# -- messages ------------------------------------------------------------------------------------------------------


def test_a_batch_that_crosses_is_one_unit() -> None:
    """M: both post the send first."""

    def body(rank: int) -> Any:
        start(rank)
        got = torch.zeros(1)
        exchange(torch.full((1,), float(rank)), got, rank)
        return got.item()

    assert simulate(body, 3).raise_if_bad().results == {0: 2.0, 1: 0.0, 2: 1.0}


def batch_with_a_hole(rank: int) -> None:
    start(rank)
    got = torch.zeros(1)
    if rank == 0:
        ops = [dist.P2POp(dist.isend, torch.ones(1), 1), dist.P2POp(dist.irecv, got, 2)]
        works = dist.batch_isend_irecv(ops)
        assert len(works) == 1
        works[0].wait()
        got.item()
    elif rank == 1:
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, 0)])[0].wait()


def test_a_message_without_a_partner_holds_its_batch() -> None:
    """M: rank 0 hangs."""
    outcome = simulate(batch_with_a_hole, 3)
    assert verdict(outcome) is Verdict.DEADLOCK
    assert "recv from rank 2" in outcome.findings[0].title


@pytest.mark.parametrize("post", [dist.send, dist.isend], ids=["send", "isend"])
def test_two_that_send_first_hang(post: Any) -> None:
    """M with 256 MiB, sent as such or with isend. 16 bytes pass, through NCCL's buffers: no program may count on it."""

    def body(rank: int) -> Any:
        start(rank)
        got = torch.zeros(1)
        post(torch.ones(1), 1 - rank)
        dist.recv(got, 1 - rank)
        return got.item()

    outcome = simulate(body, 2)
    assert verdict(outcome) is Verdict.DEADLOCK
    assert "through its buffers" in outcome.findings[0].at_other_level


def test_messages_in_order_pass_and_the_sender_runs_ahead() -> None:
    """M: a connected sender leaves `send` at once."""

    def body(rank: int) -> Any:
        start(rank)
        tensor = torch.full((1,), rank + 3.0)
        if rank == 0:
            dist.send(tensor, 1)
            store().set("go", "1")
        else:
            store().wait(["go"])
            dist.recv(tensor, 0)
        return tensor.item()

    assert simulate(body, 2).raise_if_bad().results[1] == 3.0


def test_the_first_message_of_a_pair_holds_the_host() -> None:
    """M: the two connect."""

    def body(rank: int) -> None:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        if rank == 0:
            dist.send(torch.ones(1), 1)
            store().set("go", "1")
        else:
            store().wait(["go"])
            dist.recv(torch.ones(1), 0)

    assert verdict(simulate(body, 2)) is Verdict.DEADLOCK


def test_tags_are_ignored() -> None:
    """M; R: the argument has no name there."""

    def body(rank: int) -> Any:
        start(rank)
        tensor = torch.full((1,), float(rank))
        dist.send(tensor, 1, tag=1) if rank == 0 else dist.recv(tensor, 0, tag=2)
        return tensor.item()

    assert simulate(body, 2).raise_if_bad().results[1] == 0.0


@pytest.mark.parametrize(("eager", "expected"), [(True, Verdict.OK), (False, Verdict.DEADLOCK)])
def test_a_send_meets_a_batched_receive_on_one_communicator_only(eager: bool, expected: Verdict) -> None:
    """M: without `device_id`, a single message has a communicator of its pair, and a batch that of the group."""

    def body(rank: int) -> None:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank) if eager else None)
        total(torch.ones(1))
        tensor = torch.ones(1)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 0)])[0].wait()

    assert verdict(simulate(body, 2)) is expected


@pytest.mark.parametrize(("eager", "expected"), [(True, Verdict.OK), (False, Verdict.DEADLOCK)])
def test_a_first_batch_without_all_members_hangs_where_it_makes_the_communicator(
    eager: bool, expected: Verdict
) -> None:
    """M, and in torch's documentation of batch_isend_irecv: all ranks must take part in a group's first call."""

    def body(rank: int) -> None:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank) if eager else None)
        if rank < 2:
            ops = [dist.P2POp(dist.isend, torch.ones(1), 1 - rank), dist.P2POp(dist.irecv, torch.ones(1), 1 - rank)]
            dist.batch_isend_irecv(ops)[0].wait()

    outcome = simulate(body, 3)
    assert verdict(outcome) is expected
    if not eager:
        assert outcome.findings[0].missing == (2,), outcome.report()


# -- the end, mismatches, time ------------------------------------------------------------------------------------


def skips_the_second(rank: int) -> None:
    start(rank)
    if rank == 0:
        dist.all_reduce(torch.ones(1))


def test_work_that_is_left_at_the_end_is_waited_for() -> None:
    """M: destroy_process_group hangs so; a process that merely exits kills its kernels, which is no way to end."""
    outcome = simulate(skips_the_second, 2)
    assert verdict(outcome) is Verdict.DEADLOCK
    finding = outcome.findings[0]
    assert (finding.waiting, finding.missing, finding.kind) == ((0,), (1,), Verdict.DEADLOCK)
    assert finding.sides[0].site is not None
    assert finding.sides[0].site.line == skips_the_second.__code__.co_firstlineno + 3


def test_destroying_a_group_waits_for_its_work() -> None:
    """M."""

    def body(rank: int) -> None:
        start(rank)
        if rank == 0:
            dist.all_reduce(torch.ones(1))
        if rank == 1:
            store().wait(["go"])
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        if rank == 0:
            store().set("go", "1")

    outcome = simulate(body, 2)
    assert verdict(outcome) is not Verdict.OK


def test_a_mismatch_is_shown_where_the_hosts_called() -> None:
    def body(rank: int) -> None:
        start(rank)
        tensor = torch.ones(2 + rank)
        dist.all_reduce(tensor)
        tensor.mul_(2)

    outcome = simulate(body, 2)
    assert verdict(outcome) is Verdict.MISMATCH
    lines = {side.site.line for side in outcome.findings[0].sides if side.site is not None}
    assert lines == {body.__code__.co_firstlineno + 3}


def test_the_watchdog_strikes_where_the_host_waits() -> None:
    """The real one ends the process; here the host gets the error that names the operation."""

    def body(rank: int) -> Any:
        dist.init_process_group("nccl", timeout=timedelta(seconds=5))
        total(torch.ones(1))
        if rank == 1:
            return None
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        try:
            return tensor.item()
        except dist.DistBackendError as error:
            return str(error)

    outcome = simulate(body, 2, on_hang="timeout")
    assert "all_reduce ran for 5000 milliseconds before timing out" in outcome.results[0]
    assert verdict(outcome) is Verdict.TIMEOUT


def test_a_device_that_waits_while_its_host_is_elsewhere_is_in_the_report() -> None:
    """Rank 1 reads what stands behind a collective that rank 0 has not entered, for rank 0's device is held up."""

    def body(rank: int) -> None:
        start(rank)
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (first, second):
            total(torch.ones(1), group)
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=first)
            dist.all_reduce(torch.ones(1), group=second)
            store().wait(["never"])
        else:
            total(torch.ones(1), second)

    outcome = simulate(body, 2)
    assert verdict(outcome) is Verdict.DEADLOCK
    finding = outcome.findings[0]
    assert (finding.group, finding.waiting, finding.missing) == ("#1", (0,), (1,)), outcome.report()
    assert "a cycle" in finding.cause, outcome.report()


def test_coalesced_collectives_are_one_operation() -> None:
    """R: between groupStart and groupEnd."""

    def body(rank: int) -> Any:
        start(rank)
        first, second = torch.full((2,), rank + 1.0), torch.full((2,), rank + 1.0)
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.broadcast(first, 1)
            dist.all_reduce(second)
        manager.wait()
        return first.tolist(), second.tolist()

    assert simulate(body, 2).raise_if_bad().results[0] == ([2.0, 2.0], [3.0, 3.0])


def test_thousands_of_operations_queue_up() -> None:
    """No recursion: what ends an operation does not start the next one itself."""

    def body(rank: int) -> Any:
        start(rank)
        tensor = torch.zeros(1)
        if rank == 1:
            store().wait(["go"])
        for _ in range(1500):
            dist.all_reduce(tensor)
            tensor.div_(2).add_(1)
        store().set("go", "1")
        return tensor.item()

    assert simulate(body, 2).raise_if_bad().results == {0: 1500.0, 1: 1500.0}


@pytest.mark.parametrize("body", [computes_ahead, key_after_read, crossing], ids=lambda body: body.__name__)
def test_two_runs_give_the_same_bytes(body: Any) -> None:
    def run(rank: int) -> Any:
        return body(rank, is_async=True) if body is crossing else body(rank)

    outcomes = [simulate(run, 2, seed=7) for _ in range(2)]
    assert [str(event) for event in outcomes[0].trace] == [str(event) for event in outcomes[1].trace]
    assert outcomes[0].report() == outcomes[1].report() and outcomes[0].results == outcomes[1].results


def test_greenlets_wait_at_the_call() -> None:
    """They share one thread, and so its modes: the host waits where it gave the work to its device."""
    assert verdict(simulate(key_after_call, 2, carrier="greenlet")) is Verdict.DEADLOCK
    assert simulate(computes_in_step, 2, carrier="greenlet").raise_if_bad().results[0] == [4.0]


def computes_in_step(rank: int) -> Any:
    start(rank)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return (tensor * 2).tolist()
