"""Collectives under simulation: data, arguments, and what is found when ranks disagree. Real gloo: `test_parity.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Finding, Verdict, simulate
from tests.unit.parity_bodies import Body, cases, caught, check_simulation, numbers, plain

pytestmark = pytest.mark.filterwarnings("ignore")  # some names are deprecated in one torch, and new in another


@cases("collectives")
def test_collectives_work_under_simulation(entry: Body, size: int) -> None:
    check_simulation(entry, size)


# -- ranks that disagree -------------------------------------------------------------------------------------------


def disagree(rank: int, what: str) -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    odd, size = rank == 2, dist.get_world_size()
    tensor = torch.zeros(size)
    if what == "dtype":
        dist.all_reduce(tensor.double() if odd else tensor)
    elif what == "elements":
        dist.all_reduce(torch.zeros(5) if odd else tensor)
    elif what == "root (group rank)":
        dist.broadcast(tensor, src=1 if odd else 0)
    elif what == "reduce op":
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
    elif what == "op":
        dist.barrier() if odd else dist.all_reduce(tensor)
    elif what == "strides":
        dist.all_reduce(torch.zeros(2, 3).t() if odd else torch.zeros(3, 2))
    else:
        splits = [1] * size
        wanted = [0, 2, 1, 1] if odd else splits
        dist.all_to_all_single(torch.zeros(size), tensor, wanted, splits)


def only_finding(what: str) -> Finding:
    outcome = simulate(disagree, 4, args=(what,))
    assert [finding.kind for finding in outcome.findings] == [Verdict.MISMATCH], outcome.report()
    assert outcome.results == {}
    return outcome.findings[0]


@pytest.mark.parametrize("what", ["dtype", "elements", "root (group rank)", "reduce op", "op", "strides"])
def test_a_mismatch_is_one_finding_with_the_sides_of_all_ranks(what: str) -> None:
    finding = only_finding(what)
    assert (finding.group, finding.seq) == ("WORLD", 1)
    assert [side.ranks for side in finding.sides] == [(0, 1, 3), (2,)]
    assert all(side.site is not None and side.site.function == "disagree" for side in finding.sides)
    assert what in finding.cause


def test_split_sizes_that_do_not_match_name_sender_and_receiver() -> None:
    finding = only_finding("splits")
    assert [(side.ranks, side.doing) for side in finding.sides if side.role == "gave"] == [
        ((0,), "all_to_all_single(elements from rank 0 to rank 2=1)"),
        ((2,), "all_to_all_single(elements from rank 0 to rank 2=0)"),
    ]


def test_two_mismatches_of_one_run_are_two_findings() -> None:
    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        first = dist.all_reduce(torch.zeros(2 + rank), async_op=True)
        dist.broadcast(torch.zeros(2), src=rank)
        assert first is not None

    found = simulate(body, 2).findings
    assert [(finding.kind, finding.seq) for finding in found] == [(Verdict.MISMATCH, 0), (Verdict.MISMATCH, 1)]


# -- nccl ----------------------------------------------------------------------------------------------------------


def on_nccl(rank: int) -> Any:
    dist.init_process_group("nccl")
    size = dist.get_world_size()

    def reduced(op: Any, tensor: torch.Tensor) -> Any:
        dist.all_reduce(tensor, op=op)
        return tensor

    stacked, part = torch.zeros(size, 2), torch.zeros(2)
    dist.all_gather_into_tensor(stacked, numbers(rank, (2,)))
    dist.reduce_scatter_tensor(part, numbers(rank, (size, 2)))
    uneven = [torch.zeros(rank + peer) for peer in range(size)]
    dist.all_to_all(uneven, [numbers(rank, (rank + peer,)) for peer in range(size)])
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    return {
        "avg": plain(reduced(dist.ReduceOp.AVG, numbers(rank))),
        "avg of ints": plain(reduced(dist.ReduceOp.AVG, numbers(rank, dtype=torch.int64))),
        "premul": plain(reduced(dist._make_nccl_premul_sum(2.0), numbers(rank))),
        "and": caught(reduced, dist.ReduceOp.BAND, numbers(rank, dtype=torch.int64)),
        "short": caught(reduced, dist.ReduceOp.SUM, numbers(rank, dtype=torch.int16)),
        "strided": caught(reduced, dist.ReduceOp.SUM, numbers(rank, (2, 3)).t()),
        "channels last": plain(
            reduced(dist.ReduceOp.SUM, numbers(rank, (1, 2, 1, 2)).to(memory_format=torch.channels_last)).flatten()
        ),
        "stacked": plain(stacked), "part": plain(part), "uneven": plain(uneven), "objects": objects,
        "size": caught(dist.all_gather_into_tensor, torch.zeros(3), numbers(rank, (2,))),
        "root": caught(dist.broadcast, part, src=size),
    }  # fmt: skip


def test_nccl_has_its_own_reductions_and_refusals() -> None:
    results = simulate(on_nccl, 2).raise_if_bad().results
    assert results[0] == {
        "avg": [6.0, 7.0, 8.0],
        "avg of ints": [6, 7, 8],
        "premul": [24.0, 28.0, 32.0],
        "and": "ValueError: Cannot use ReduceOp.BAND with NCCL",
        "short": "TypeError: Input tensor data type is not supported for NCCL process group: torch.int16",
        "strided": "ValueError: Tensors must be contiguous",
        "channels last": [12.0, 14.0, 16.0, 18.0],
        "stacked": [[1.0, 2.0], [11.0, 12.0]],
        "part": [12.0, 14.0],
        "uneven": [[], [11.0]],
        "objects": [{"rank": 0}, {"rank": 1}],
        "size": "ValueError: output tensor size must be equal to world_size times input tensor size",
        "root": "ValueError: ProcessGroupNCCL::broadcast: invalid root rank: 2",
    }


def test_gather_into_one_tensor() -> None:
    """New in torch 2.14."""

    def body(rank: int) -> Any:
        dist.init_process_group("nccl")
        out = torch.zeros(4) if rank == 1 else None
        dist.gather_single(numbers(rank, (2,)), out, dst=1)
        return plain(out)

    if not hasattr(dist, "gather_single"):
        pytest.skip("this torch has no gather_single")
    assert simulate(body, 2).raise_if_bad().results == {0: None, 1: [1.0, 2.0, 11.0, 12.0]}


def test_outputs_may_lie_within_inputs() -> None:
    """As NCCL allows it, and FSDP does it."""

    def body(rank: int) -> Any:
        dist.init_process_group("nccl")
        whole, more = numbers(rank, (4,)), numbers(rank, (4,))
        dist.reduce_scatter_tensor(whole[2 * rank : 2 * rank + 2], whole)
        dist.all_gather_into_tensor(more, more[2 * rank : 2 * rank + 2])
        return plain(whole[2 * rank : 2 * rank + 2]), plain(more)

    results = simulate(body, 2).raise_if_bad().results
    assert results == {0: ([12.0, 14.0], [1.0, 2.0, 13.0, 14.0]), 1: ([16.0, 18.0], [1.0, 2.0, 13.0, 14.0])}
