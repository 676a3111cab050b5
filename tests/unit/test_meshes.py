"""Sub-groups, meshes, functional collectives and what uses them, under simulation. Real gloo: `test_parity.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Verdict, simulate
from tests.unit.parity_bodies import Body, cases, caught, check_simulation

pytestmark = pytest.mark.filterwarnings("ignore")  # some names are deprecated in one torch, and new in another


@cases("meshes")
def test_groups_and_meshes_work_under_simulation(entry: Body, size: int) -> None:
    check_simulation(entry, size)


def total(rank: int, group: Any) -> float:
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor, group=group)
    return tensor.item()


# -- split_group: NCCL with a device, as real programs call it -----------------------------------------------------


def eager(rank: int) -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % 4))


def halves(rank: int) -> Any:
    eager(rank)
    half = dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc="half")
    alone = dist.split_group(half, split_ranks=[[0], [1]])
    some = dist.split_group(split_ranks=[[0, 2]])
    member = some is not None and some != dist.GroupMember.NON_GROUP_MEMBER
    assert half is not None
    return (
        total(rank, half), half.group_desc, dist.get_process_group_ranks(alone),
        total(rank, some) if member else "outside", dist.get_backend(half), torch.accelerator.is_available(),
    )  # fmt: skip


def test_split_group_makes_groups_of_group_ranks() -> None:
    """Only torch's own two functions see the accelerator, not the program."""
    here = torch.accelerator.is_available()
    assert simulate(halves, 4).raise_if_bad().results == {
        0: (1.0, "half", [0], 2.0, "nccl", here),
        1: (1.0, "half", [1], "outside", "nccl", here),
        2: (5.0, "half", [2], 2.0, "nccl", here),
        3: (5.0, "half", [3], "outside", "nccl", here),
    }


def one_skips_the_split(rank: int) -> None:
    eager(rank)
    if rank != 3:
        dist.split_group(split_ranks=[[0, 1]])


def one_skips_new_group(rank: int) -> None:
    eager(rank)
    if rank != 3:
        dist.new_group([0, 1])


@pytest.mark.parametrize("body", [one_skips_the_split, one_skips_new_group])
def test_a_split_waits_for_all_ranks_of_its_parent(body: Any) -> None:
    """With a device, NCCL connects eagerly, and makes groups by splitting: members or not, all must call."""
    outcome = simulate(body, 4)
    assert outcome.verdict is Verdict.DEADLOCK
    deadlock = next(finding for finding in outcome.findings if finding.title.startswith("split"))
    assert (deadlock.waiting, deadlock.missing) == ((0, 1, 2), (3,))


def test_without_a_device_new_group_on_nccl_waits_for_nobody() -> None:
    def body(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            dist.new_group([0, 1], use_local_synchronization=True)

    simulate(body, 2).raise_if_bad()


@pytest.mark.parametrize(("backend", "device"), [("gloo", "cuda:0"), ("nccl", "cuda:9")])
def test_a_device_that_is_not_there_is_refused(backend: str, device: str) -> None:
    """gloo gets the real answer; a simulated node has as many devices as ranks."""
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")

    def body(rank: int) -> Any:
        return caught(dist.init_process_group, backend, device_id=torch.device(device))

    assert simulate(body, 2).results[0].startswith(f"ValueError: device_id {device} ")


def test_gloo_cannot_be_split() -> None:
    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        return caught(dist.split_group, split_ranks=[[0], [1]])

    assert simulate(body, 2).results[0] == (
        "RuntimeError: No device associated with the default pg, not safe to split any process groups"
    )


# -- data parallel -------------------------------------------------------------------------------------------------


def differing_models(rank: int) -> None:
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    DistributedDataParallel(torch.nn.Linear(2, 2 + rank))


def test_models_that_differ_are_found_by_torch_itself() -> None:
    """torch raises on all ranks but the first, which goes on and is left alone."""
    outcome = simulate(differing_models, 2)
    assert outcome.verdict is Verdict.EXCEPTION
    assert "params[0] in this process with sizes [3, 2] appears not to match" in outcome.ranks[1].error


def one_rank_runs_no_backward(rank: int) -> None:
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    if rank == 0:
        loss.backward()


def test_a_rank_that_skips_backward_leaves_the_other_in_its_reduction() -> None:
    """The reducer of C++ must not block the simulation while it waits."""
    outcome = simulate(one_rank_runs_no_backward, 2)
    assert outcome.verdict is Verdict.DEADLOCK
    assert outcome.findings[0].waiting == (0,)
    site = outcome.findings[0].sides[0].site
    assert site is not None and site.function == "one_rank_runs_no_backward"
