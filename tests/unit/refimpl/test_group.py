"""What a coordinator asks of torch: which groups, in which order, with which options."""

from __future__ import annotations

from datetime import timedelta

import pytest

from refimpl.distributed.contract import GroupOptions
from refimpl.distributed.group import GroupCoordinator
from tests.unit.refimpl.conftest import Calls, MooncakeOptions


def test_each_list_gets_a_device_group_then_a_cpu_group_on_all_ranks(torch_calls: Calls) -> None:
    """Creation is collective, so a rank walks over the lists of others too, in the same order as they do."""
    torch_calls.rank = 2
    GroupCoordinator("tp", [(0, 1), (2, 3)], GroupOptions(backend="nccl", timeout_s=1.5))
    timeout, local = timedelta(seconds=1.5), False
    assert torch_calls.new_group == [
        {"ranks": ranks, "backend": backend, "group_desc": desc, "pg_options": None,
         "timeout": timeout, "use_local_synchronization": local}
        for ranks in ([0, 1], [2, 3])
        for backend, desc in (("nccl", "tp:device"), ("gloo", "tp:cpu"))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "device_and_cpu"),
    [
        ("gloo", ["gloo", "gloo"]),
        ("nccl", ["nccl", "gloo"]),
        ("fake", ["fake", "fake"]),
        ("mooncake", ["mooncake", "mooncake-cpu"]),
        ("mooncake-cpu", ["mooncake-cpu", "mooncake-cpu"]),
    ],
)
def test_each_backend_has_one_for_the_cpu_group(
    backend: str, device_and_cpu: list[str], torch_calls: Calls, mooncake: type[MooncakeOptions]
) -> None:
    GroupCoordinator("tp", [(0, 1)], GroupOptions(backend=backend))
    assert [call["backend"] for call in torch_calls.new_group] == device_and_cpu


def test_lists_of_one_rank_can_be_skipped(torch_calls: Calls) -> None:
    """All ranks skip the same lists, so the order of the others is not disturbed."""
    torch_calls.rank = 1
    alone = GroupCoordinator("self_pp", [(0,), (1,)], GroupOptions(solo_groups=False))
    assert torch_calls.new_group == []
    assert (alone.ranks, alone.world_size, alone.rank_in_group) == ((1,), 1, 0)
    alone.barrier()
    with pytest.raises(RuntimeError, match="group 'self_pp' of rank 1 has no process group"):
        _ = alone.cpu_group


def test_mooncake_gets_masks_as_long_as_the_capacity(torch_calls: Calls, mooncake: type[MooncakeOptions]) -> None:
    torch_calls.rank = 1
    options = GroupOptions(backend="mooncake", max_world_size=4, recovered_rank=True)
    group = GroupCoordinator("world", [(0, 1)], options)
    device, cpu = (call["pg_options"] for call in torch_calls.new_group)
    assert [call["backend"] for call in torch_calls.new_group] == ["mooncake", "mooncake-cpu"]
    assert device.mask == cpu.mask == [1, 1, 0, 0]
    assert device.rest == cpu.rest == (True, 4)
    assert device.args[0] is group.active_ranks is not cpu.args[0] is group.active_ranks_cpu
    assert str(device.args[0].dtype) == "torch.int32"


def test_a_fixed_mooncake_group_is_not_told_a_capacity(torch_calls: Calls, mooncake: type[MooncakeOptions]) -> None:
    GroupCoordinator("tp", [(0, 1)], GroupOptions(backend="mooncake"))
    options = torch_calls.new_group[0]["pg_options"]
    assert (options.mask, options.rest) == ([1, 1], (False,))


def test_masks_of_different_groups_are_different_tensors(torch_calls: Calls, mooncake: type[MooncakeOptions]) -> None:
    """Mooncake writes to a mask, so no two groups of a member may share one; strangers' options only look alike."""
    GroupCoordinator("tp", [(0, 1), (2, 3), (4, 5)], GroupOptions(backend="mooncake"))
    device = [call["pg_options"] for call in torch_calls.of("tp")]
    assert all(options.mask == [1, 1] and options.rest == (False,) for options in device)
    assert device[0] is not device[1]
    assert device[1] is device[2]


def test_a_group_larger_than_its_capacity_is_refused(torch_calls: Calls) -> None:
    with pytest.raises(ValueError, match="max_world_size is 1 but the group has 2 ranks; give 2 or more"):
        GroupCoordinator("tp", [(0, 1)], GroupOptions(max_world_size=1))


def test_a_rank_in_no_list_is_told_about_the_offset(torch_calls: Calls) -> None:
    """Lists of a joiner that were not shifted name the ranks of the first cohort."""
    torch_calls.rank = 4
    with pytest.raises(ValueError, match=r".") as caught:
        GroupCoordinator("dcp", [(0, 1)], GroupOptions())
    assert str(caught.value) == (
        "group 'dcp' covers ranks 0 to 1 but this is rank 4; "
        "shift its lists by the rank_offset of the cohort (rank_offset=0 was given)"
    )


def test_a_destroyed_group_says_so(torch_calls: Calls) -> None:
    group = GroupCoordinator("tp", [(0, 1)], GroupOptions())
    group.destroy()
    group.destroy()
    with pytest.raises(RuntimeError, match="group 'tp' of rank 0 has no process group"):
        group.barrier()
    assert repr(group) == "GroupCoordinator('tp', ranks=[0, 1], rank=0, rank_in_group=0, backend='gloo')"
