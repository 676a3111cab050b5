"""Sends, receives, object messages and monitored_barrier under simulation. Real gloo: see `test_parity.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Verdict, simulate
from tests.unit.parity_bodies import Body, cases, caught, check_simulation, numbers, plain

pytestmark = pytest.mark.filterwarnings("ignore")  # some names are deprecated in one torch, and new in another


@cases("messages")
def test_messages_work_under_simulation(entry: Body, size: int) -> None:
    check_simulation(entry, size)


def mismatched_messages(rank: int, what: str) -> None:
    dist.init_process_group("gloo")
    tensor = torch.zeros(3)
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor.double() if what == "dtype" else torch.zeros(4), src=0)


@pytest.mark.parametrize(
    ("what", "sides"),
    [
        ("dtype", ["send(dtype=torch.float32, elements=3)", "recv(dtype=torch.float64, elements=3)"]),
        ("elements", ["send(dtype=torch.float32, elements=3)", "recv(dtype=torch.float32, elements=4)"]),
    ],
)
def test_a_message_that_does_not_fit_is_one_finding_with_both_sides(what: str, sides: list[str]) -> None:
    outcome = simulate(mismatched_messages, 2, args=(what,))
    assert [finding.kind for finding in outcome.findings] == [Verdict.MISMATCH]
    assert [(side.ranks, side.doing) for side in outcome.findings[0].sides] == [((0,), sides[0]), ((1,), sides[1])]
    assert {side.site.function for side in outcome.findings[0].sides if side.site} == {"mismatched_messages"}


def on_nccl(rank: int) -> Any:
    dist.init_process_group("nccl")
    got, mine = torch.zeros(2), numbers(rank, (2,))
    ops = [dist.P2POp(dist.irecv, got, 1 - rank), dist.P2POp(dist.isend, mine, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    future = None
    if rank == 0:
        dist.send(mine, dst=1)
    else:
        work = dist.irecv(got, src=0)
        assert work is not None
        while not work.is_completed():
            pass
        future = plain(work.get_future().wait())
    itself = torch.zeros(2)
    pair = [dist.P2POp(dist.isend, mine, rank), dist.P2POp(dist.irecv, itself, rank)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return (
        plain(got), future, plain(itself), caught(dist.recv, got),
        caught(dist.isend, numbers(rank, (2, 2)).t(), dst=1 - rank),
    )  # fmt: skip


def test_messages_on_nccl_complete_by_themselves_and_may_go_to_oneself() -> None:
    results = simulate(on_nccl, 2).raise_if_bad().results
    common = (
        "RuntimeError: Backend nccl does not support recvAnysource",
        "ValueError: Tensors must be contiguous",
    )
    assert results[0] == ([11.0, 12.0], None, [1.0, 2.0], *common)
    assert results[1] == ([1.0, 2.0], [[1.0, 2.0]], [11.0, 12.0], *common)


def late_for_the_barrier(rank: int) -> None:
    dist.init_process_group("gloo")
    if rank != 2:
        dist.monitored_barrier()


def test_a_rank_that_never_comes_to_monitored_barrier_is_named() -> None:
    outcome = simulate(late_for_the_barrier, 3)
    assert outcome.verdict is Verdict.DEADLOCK
    assert 2 in outcome.findings[0].missing
