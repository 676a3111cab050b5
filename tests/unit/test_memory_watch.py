"""Torch operations on symmetric memory: which bytes they read and write, and what orders the hosts of ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory as symm_mem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.memory_records import Access, MemoryLog, Observe, Publish
from simulator.torch_world import touched
from simulator.torch_world.host_order import UNHEARD_MAX
from tests.unit.memory_runs import accesses, run, start

Did = list[tuple[str, tuple[tuple[int, int], ...]]]


def watched(call: Callable[[torch.Tensor], Any], *sizes: int, dtype: torch.dtype = torch.float32) -> Did:
    """What a call does to a buffer of zeros: (kind, (first byte, end byte) of each piece)."""

    def body(rank: int) -> None:
        buffer = symm_mem.empty(*sizes, dtype=dtype)
        buffer.zero_()
        call(buffer)

    outcome, log = run(body, 1)
    outcome.raise_if_bad()
    found = [(kind, tuple(span[1:] for span in spans)) for _, kind, spans in accesses(log)]
    assert found[0][0] == "write"
    return found[1:]


WHOLE = ((0, 128),)
ROW_1 = ((32, 64),)
COLUMN_2 = ((8, 12), (40, 44), (72, 76), (104, 108))
ROWS_0_3 = ((0, 32), (96, 128))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda t: t.sum(), [("read", WHOLE)]),
        (lambda t: t[1].fill_(1), [("write", ROW_1)]),
        (lambda t: t[:, 2].sum(), [("read", COLUMN_2)]),
        (lambda t: t[1].add_(1), [("read", ROW_1), ("write", ROW_1)]),
        (lambda t: t[1].copy_(t[0]), [("write", ROW_1), ("read", ((0, 32),))]),
        (lambda t: torch.add(t[0], 1, out=t[1]), [("read", ((0, 32),)), ("write", ROW_1)]),
        (lambda t: t[2, 3].item(), [("read", ((76, 80),))]),
        (lambda t: bool(t[2, 3]), [("read", ((76, 80),))]),
        (lambda t: t[1].tolist(), [("read", ROW_1)]),
        (lambda t: t[1].numpy(), [("read", ROW_1)]),
        (lambda t: np.asarray(t[1]), [("read", ROW_1)]),
        (lambda t: torch.cat([t[0], t[1]]), [("read", ((0, 32),)), ("read", ROW_1)]),
        (lambda t: t.clone(), [("read", WHOLE)]),
        (lambda t: t.t().reshape(32), [("read", WHOLE)]),
        (lambda t: t.to(torch.float64), [("read", WHOLE)]),
        (lambda t: t[torch.tensor([0, 3])], [("read", ROWS_0_3)]),
        (lambda t: t.index_select(0, torch.tensor([3, 0])), [("read", ROWS_0_3)]),
        (lambda t: t[:, torch.tensor([2])], [("read", COLUMN_2)]),
        (lambda t: t.gather(1, torch.full((4, 1), 2)), [("read", COLUMN_2)]),
        (lambda t: t.index_fill_(0, torch.tensor([0, 3]), 1), [("read", ROWS_0_3), ("write", ROWS_0_3)]),
        (lambda t: t.index_add_(1, torch.tensor([2]), torch.ones(4, 1)), [("read", COLUMN_2), ("write", COLUMN_2)]),
        (lambda t: t.scatter_(1, torch.full((4, 1), 2), 1.0), [("read", COLUMN_2), ("write", COLUMN_2)]),
        (lambda t: t.__setitem__(torch.tensor([0, 3]), 2.0), [("read", ROWS_0_3), ("write", ROWS_0_3)]),
        (lambda t: torch.where(t[0] > 0, t[1], 0.0), [("read", ((0, 32),)), ("read", ROW_1)]),
        (lambda t: t[1].uniform_(), [("write", ROW_1)]),
        (lambda t: t[0:0].sum(), []),
        (lambda t: t[1].data.mul_(2), [("read", ROW_1), ("write", ROW_1)]),
    ],
)
def test_an_operation_touches_what_it_touches(call: Callable[[torch.Tensor], Any], expected: Did) -> None:
    """On a buffer of 4 rows of 8 floats."""
    assert watched(call, 4, 8) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.view(-1),
        lambda t: t.reshape(32),
        lambda t: t.t().transpose(0, 1).contiguous(),
        lambda t: t[1:].unsqueeze(0).expand(2, 3, 8),
        lambda t: t.detach().requires_grad_(),
        lambda t: (t.shape, t.stride(), t.dtype, t.device, t.data_ptr(), t.is_contiguous(), len(t)),
        lambda t: (torch.empty_like(t), torch.zeros_like(t), t.new_ones(3)),
        lambda t: t.to(torch.float32),
        lambda t: t.split(2),
    ],
)
def test_views_and_questions_are_no_access(call: Callable[[torch.Tensor], Any]) -> None:
    assert watched(call, 4, 8) == []


def test_masks_touch_what_they_let_through() -> None:
    def masked(tensor: torch.Tensor) -> None:
        mask = torch.arange(4) == 2
        tensor.masked_select(mask)
        tensor.masked_fill_(mask, 1.0)

    assert watched(masked, 4) == [("read", ((8, 12),)), ("read", ((8, 12),)), ("write", ((8, 12),))]


def test_a_tensor_of_very_many_pieces_is_taken_as_a_whole() -> None:
    """The number of spans is bounded."""
    rows = touched.SPANS_MAX + 2
    assert watched(lambda t: t[:, 1].sum(), rows, 2) == [("read", ((4, rows * 8),))]
    rows = touched.SPANS_MAX
    assert len(watched(lambda t: t[:, 1].sum(), rows, 2)[0][1]) == rows


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_bytes_of_any_strided_tensor_are_exact(data: st.DataObject) -> None:
    """Compared with every element's own bytes."""

    class Memory:
        def find(self, address: int) -> Any:
            return type("B", (), {"base": whole.data_ptr(), "region": type("R", (), {"number": 0})})

    whole = torch.zeros(400, dtype=torch.int16)
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = data.draw(st.lists(st.integers(0, 20), min_size=len(shape), max_size=len(shape)))
    offset = data.draw(st.integers(0, 20))
    tensor = whole.as_strided(shape, strides, offset)
    expected: set[int] = set()
    for index in np.ndindex(*shape):
        place = offset + sum(i * s for i, s in zip(index, strides, strict=True))
        expected |= {2 * place, 2 * place + 1}
    spans = touched.spans_of(Memory(), tensor)  # type: ignore[arg-type]
    assert {byte for _, low, high in spans for byte in range(low, high)} == expected
    assert all(before[2] < after[1] for before, after in pairwise(spans))


# -- modes, threads, subclasses ----------------------------------------------------------------------------------------


class Counting(TorchDispatchMode):
    """A mode of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_the_users_own_modes_work_as_before() -> None:
    """Also when the first buffer is allocated inside one, which is left first."""

    def body(rank: int) -> Any:
        with Counting() as outer:
            buffer = symm_mem.empty(4)
            with Counting() as inner:
                buffer.fill_(1)
            buffer.add_(1)
        buffer.mul_(2)
        with torch.inference_mode():
            buffer.sub_(1)
        with FakeTensorMode():
            fake = torch.empty(3) + 1
        return outer.seen, inner.seen, type(fake).__name__, torch._C._len_torch_dispatch_stack(), buffer.tolist()

    outcome, log = run(body, 1)
    outcome.raise_if_bad()
    assert outcome.results[0] == (["fill_", "add_"], ["fill_"], "FakeTensor", 1, [3.0] * 4)
    kinds = [kind for _, kind, _ in accesses(log)]
    assert kinds == ["write", *["read", "write"] * 3, "read"]


class Wrapper(torch.Tensor):
    """A subclass that takes its operations apart."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
        return Wrapper(func(*plain, **(kwargs or {})))


def test_what_a_subclass_does_inside_is_seen() -> None:
    assert watched(lambda t: Wrapper(t) + 1, 4) == [("read", ((0, 16),))]


def test_operations_of_autograd_are_seen() -> None:
    """Forward and backward."""

    def learn(buffer: torch.Tensor) -> None:
        weight = torch.nn.Parameter(torch.ones(4))
        (weight * buffer).sum().backward()

    assert watched(learn, 4) == [("read", ((0, 16),)), ("read", ((0, 16),))]


def test_a_module_on_symmetric_memory_is_watched() -> None:
    """A parameter may lie there too."""

    def use(buffer: torch.Tensor) -> None:
        torch.nn.Parameter(buffer).sum()

    assert watched(use, 4) == [("read", ((0, 16),))]


def test_all_threads_of_a_rank_are_watched_as_one() -> None:
    """One that ran before the first buffer was there, and one that is started later; the other rank's are its own."""

    def body(rank: int) -> None:
        ready, go = threading.Event(), threading.Event()
        shared: list[torch.Tensor] = []

        def early() -> None:
            ready.set()
            go.wait()
            shared[0].fill_(1)

        thread = threading.Thread(target=early)
        thread.start()
        ready.wait()
        if rank == 0:
            shared.append(symm_mem.empty(1))
        else:
            shared.append(torch.zeros(1))
        go.set()
        thread.join()
        later = threading.Thread(target=lambda: shared[0].add_(1))
        later.start()
        later.join()

    outcome, log = run(body, 2)
    outcome.raise_if_bad()
    assert [(rank, kind) for rank, kind, _ in accesses(log)] == [(0, "write"), (0, "read"), (0, "write")]
    assert len(log.actors) == 1


def test_accesses_name_the_line_of_the_user() -> None:
    def body(rank: int) -> None:
        buffer = symm_mem.empty(4)
        buffer.fill_(1)

    _, log = run(body, 1)
    event = log.events[0]
    assert isinstance(event, Access)
    assert (event.stack[0].line, event.order, event.scope) == (body.__code__.co_firstlineno + 2, "weak", "")
    assert log.regions[0].stack[0].line == body.__code__.co_firstlineno + 1
    assert [(region.kind, region.nbytes, region.label) for region in log.regions] == [
        ("buffer", 16, "buffer of rank 0"),
        ("pad", 9216, "signal pad of rank 0"),
    ]


# -- what orders hosts -------------------------------------------------------------------------------------------------


def ordered(log: MemoryLog, first: int, then: int) -> bool:
    """Whether rank `then` knows, at its last access, of the first one of rank `first`: by tokens and signals."""
    last: set[int] = set()
    known: dict[int, set[int]] = {}
    told: dict[Any, set[int]] = {}
    begun: set[int] = set()
    for event in log.events:
        rank = log.actors[event.actor].rank
        mine = known.setdefault(rank, {rank})
        if isinstance(event, Publish):
            told.setdefault(event.token, set()).update(mine if rank in begun else mine - {rank})
        elif isinstance(event, Observe):
            mine |= told.get(event.token, set())
        elif isinstance(event, Access) and event.kind == "rmw":
            word = event.spans[0]
            if event.order == "release":
                told.setdefault(word, set()).update(mine)
            else:
                mine |= told.get(word, set())
        elif isinstance(event, Access) and log.regions[event.spans[0][0]].kind == "buffer":
            begun.add(rank)
            last = set(mine) if rank == then else last
    return first in last


def order_of(call: Callable[[int, torch.Tensor], Any], backend: str = "gloo") -> tuple[bool, bool]:
    """Whether `call` orders what rank 0 did before what rank 1 does, and the other way round."""

    def body(rank: int) -> None:
        buffer, _ = start(4, backend=backend)
        buffer.fill_(rank)
        later = call(rank, torch.zeros(2))
        buffer.add_(1)
        if isinstance(later, dist.Work):
            later.wait()

    outcome, log = run(body, 2)
    outcome.raise_if_bad()
    return ordered(log, 0, 1), ordered(log, 1, 0)


def with_work(rank: int, tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


def with_query(rank: int, tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    while not work.is_completed():
        pass


def with_future(rank: int, tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.get_future().wait()


def by_store(rank: int, tensor: torch.Tensor) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", "value")
    else:
        store.get("key")


def by_counter(rank: int, tensor: torch.Tensor) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["go"])
    store.add("count", 1)
    if rank == 0:
        store.set("go", "")


def by_check(rank: int, tensor: torch.Tensor) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", "value")
    while rank == 1 and not store.check(["key"]):
        pass


def by_message(rank: int, tensor: torch.Tensor) -> None:
    (dist.recv if rank else dist.send)(tensor, 1 - rank)


BOTH, ONWARDS, BACK, NONE = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda rank, t: None, NONE),
        (lambda rank, t: dist.barrier(), BOTH),
        (lambda rank, t: dist.monitored_barrier(timeout=timedelta(seconds=9)), BOTH),
        (lambda rank, t: dist.all_reduce(t), BOTH),
        (lambda rank, t: dist.all_gather([t, torch.zeros(2)], torch.ones(2)), BOTH),
        (lambda rank, t: dist.all_gather_object([None, None], rank), BOTH),
        (lambda rank, t: dist.reduce_scatter(t, [torch.ones(2)] * 2), BOTH),
        (lambda rank, t: dist.all_to_all_single(t, torch.ones(2)), BOTH),
        (lambda rank, t: dist.broadcast(t, 0), ONWARDS),
        (lambda rank, t: dist.scatter(t, [torch.ones(2)] * 2 if rank == 0 else None, 0), ONWARDS),
        (lambda rank, t: dist.reduce(t, 0), BACK),
        (lambda rank, t: dist.gather(t, [torch.ones(2), torch.ones(2)] if rank == 0 else None, 0), BACK),
        (with_work, BOTH),
        (with_query, BOTH),
        (with_future, BOTH),
        (lambda rank, t: dist.all_reduce(t, async_op=True), NONE),
        (lambda rank, t: funcol.all_reduce(t, "sum", dist.group.WORLD) + 1, BOTH),
        (by_message, ONWARDS),
        (by_store, ONWARDS),
        (by_counter, ONWARDS),
        (by_check, ONWARDS),
        (lambda rank, t: dist.new_group([0, 1]), BOTH),
        (lambda rank, t: symm_mem.rendezvous(symm_mem.empty(1), dist.group.WORLD), BOTH),
        (lambda rank, t: symm_mem.get_symm_mem_workspace(dist.group.WORLD.group_name, 4).barrier(), BOTH),
    ],
)
def test_what_orders_the_hosts_of_two_ranks(
    call: Callable[[int, torch.Tensor], Any], expected: tuple[bool, bool]
) -> None:
    """In the direction in which data goes: who waits for a broadcast knows of its root, and not the other way round."""
    assert order_of(call) == expected


def by_batch(rank: int, tensor: torch.Tensor) -> None:
    call = dist.irecv if rank else dist.isend
    for work in dist.batch_isend_irecv([dist.P2POp(call, tensor, 1 - rank)]):
        work.wait()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda rank, t: dist.all_reduce(t), BOTH),
        (lambda rank, t: dist.barrier(), BOTH),
        (lambda rank, t: dist.broadcast(t, 0), ONWARDS),
        (with_work, BOTH),
        (with_future, BOTH),
        (by_message, ONWARDS),
        (by_batch, ONWARDS),
    ],
)
def test_calls_of_a_device_order_what_its_rank_does_after_them(
    call: Callable[[int, torch.Tensor], Any], expected: tuple[bool, bool]
) -> None:
    """The host goes on, but what it does to symmetric memory is later on the same stream."""
    assert order_of(call, backend="nccl") == expected


def test_a_read_of_symmetric_memory_comes_after_what_the_stream_waits_for() -> None:
    """An all_reduce on nccl is enough of a barrier for what follows on the stream, although the host does not wait."""

    def body(rank: int) -> Any:
        buffer, handle = start(2, backend="nccl")
        if rank == 1:
            buffer.fill_(5)
        dist.all_reduce(torch.ones(1))
        return handle.get_buffer(1, (2,), torch.float32).clone().tolist()

    outcome, log = run(body, 2)
    assert outcome.raise_if_bad().results == {0: [5.0, 5.0], 1: [5.0, 5.0]}
    assert ordered(log, 1, 0)


def test_calls_that_nobody_asks_about_do_not_pile_up() -> None:
    """A rank that allocates a buffer and then uses collectives only; those that are over are let go of."""

    def body(rank: int) -> int:
        start(2, backend="nccl")
        for _ in range(2 * UNHEARD_MAX):
            dist.all_reduce(torch.ones(1))
        for _ in range(4):
            dist.barrier()
            for _ in range(8):
                dist.all_reduce(torch.ones(1))
        return len(symm_mem._SymmetricMemory._choose()._sim.here().unheard)

    outcome, _ = run(body, 2)
    assert max(outcome.raise_if_bad().results.values()) <= UNHEARD_MAX


def test_a_signal_orders_in_one_direction() -> None:
    def body(rank: int) -> None:
        buffer, handle = start(4)
        buffer.fill_(rank)
        if rank == 0:
            handle.put_signal(1)
        else:
            handle.wait_signal(0)
        buffer.add_(1)

    _, log = run(body, 2)
    assert (ordered(log, 0, 1), ordered(log, 1, 0)) == (True, False)


def test_collectives_read_and_write_symmetric_tensors_on_behalf_of_their_own_ranks() -> None:
    """Whoever comes last moves the data of all; the reads come before the publication, the writes after the rank has
    heard of the end.
    """

    def body(rank: int) -> None:
        buffer, _ = start(2)
        dist.broadcast(buffer, 0)
        if rank == 0:
            dist.send(buffer, 1)
        else:
            dist.recv(buffer, 0)

    outcome, log = run(body, 2)
    outcome.raise_if_bad()
    own = {rank: [kind for who, kind, spans in accesses(log) if who == rank] for rank in (0, 1)}
    assert own == {0: ["read", "read"], 1: ["write", "write"]}
    assert all(who == spans[0][0] for who, _, spans in accesses(log))


def test_keys_of_a_hash_store_order_nobody() -> None:
    """Each process has its own."""

    def use(rank: int, tensor: torch.Tensor) -> None:
        store = dist.HashStore()
        store.set("key", "value")
        store.get("key")

    assert order_of(use) == NONE
