"""Bring-up of one rank: the plan, and that just the plan is executed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from refimpl.distributed import parallel_state
from refimpl.distributed.bootstrap import BootstrapArgs, bring_up
from refimpl.distributed.contract import Role, edit_plan, forget
from refimpl.distributed.layout import SUB_GROUPS, ParallelLayout
from tests.unit.refimpl.conftest import Calls, MooncakeOptions

LAUNCH = BootstrapArgs(layout=ParallelLayout(tp=4, moe_ep=4), cohort_rank=2, backend="mooncake", max_world_size=8)
# Two ranks with each kind of sub-group in groups of its own.
JOINER = BootstrapArgs(
    layout=ParallelLayout(tp=2, attn_dp=2, moe_dp=2, dcp=2, pdmux=True), cohort_rank=0, backend="mooncake",
    role=Role.SCALE_JOINER, rank_offset=4, max_world_size=8,
)  # fmt: skip
NAMES = JOINER.layout.created()


@pytest.fixture(autouse=True)
def _brought_down(torch_calls: Calls) -> Any:
    yield
    parallel_state.destroy_distributed_environment()


def test_a_scale_joiner_has_global_ranks_after_those_deployed() -> None:
    assert (JOINER.rank, JOINER.world_size) == (4, 6)
    assert (LAUNCH.rank, LAUNCH.world_size) == (2, 4)


def test_scale_joiner_attaches_to_world_and_makes_the_rest_alone(
    torch_calls: Calls, mooncake: type[MooncakeOptions]
) -> None:
    bring_up(JOINER)
    [init] = torch_calls.init
    assert (init["backend"], init["rank"], init["world_size"]) == ("mooncake", 4, 6)
    assert (init["pg_options"].mask, init["pg_options"].rest) == ([1, 1, 1, 1, 1, 1, 0, 0], (True, 8))
    [world] = torch_calls.of("world")
    assert (world["ranks"], world["pg_options"].rest) == ([0, 1, 2, 3, 4, 5], (True, 8))
    assert not world["use_local_synchronization"]
    for call in torch_calls.new_group[2:]:
        assert set(call["ranks"]) <= {4, 5}
        assert call["use_local_synchronization"]
        assert call["pg_options"].rest == (False,)


def test_scale_joiner_before_the_repair_attaches_to_groups_that_nobody_has(
    torch_calls: Calls, mooncake: type[MooncakeOptions]
) -> None:
    """As recovered ranks, with no capacity, not local; and dcp names ranks of the first cohort."""
    with pytest.raises(ValueError, match="group 'dcp' covers ranks 0 to 1 but this is rank 4"):
        bring_up(replace(JOINER, rules="before-repair"))
    for name in ("world", "tp", "pdmux_prefill_tp", "dcp"):
        [call] = torch_calls.of(name)
        assert (call["pg_options"].rest, call["use_local_synchronization"]) == ((True,), False)
    assert [torch_calls.of(name)[0]["ranks"] for name in ("tp", "dcp")] == [[4, 5], [0, 1]]


def test_launch_creates_as_if_there_were_no_joiners(torch_calls: Calls) -> None:
    """Without offset and capacity the calls are those of a plain launch, under both editions of the rules."""
    seen = []
    for rules in ("repaired", "before-repair"):
        bring_up(replace(LAUNCH, backend="gloo", max_world_size=None, rules=rules))
        parallel_state.destroy_distributed_environment()
        seen.append((torch_calls.init[:], torch_calls.new_group[:]))
        torch_calls.init.clear(), torch_calls.new_group.clear()
    assert seen[0] == seen[1]
    assert not any(call["use_local_synchronization"] for call in seen[0][1])


def test_sub_groups_are_created_in_the_order_of_the_table(torch_calls: Calls, mooncake: type[MooncakeOptions]) -> None:
    bring_up(JOINER)
    order = list(dict.fromkeys(call["group_desc"].split(":")[0] for call in torch_calls.new_group))
    assert order == ["world", *NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_sub_group_that_drops_the_offset_is_caught_by_name(
    name: str, torch_calls: Calls, mooncake: type[MooncakeOptions]
) -> None:
    with pytest.raises(ValueError, match=rf"group '{name}' covers ranks 0 to 1 but this is rank 4"):
        bring_up(JOINER, forget(JOINER.plan(), name, "rank_offset"))


@pytest.mark.parametrize("changes", [{"recovered_rank": True}, {"max_world_size": 8}, {"local_synchronization": False}])
@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_differs_from_the_plan_in_its_own_sub_group_alone(
    name: str, changes: dict[str, Any], torch_calls: Calls, mooncake: type[MooncakeOptions]
) -> None:
    def summary(plan: Any) -> dict[str, Any]:
        torch_calls.new_group.clear()
        bring_up(JOINER, plan)
        parallel_state.destroy_distributed_environment()
        return {
            one: [(c["ranks"], c["use_local_synchronization"], c["pg_options"].mask, c["pg_options"].rest)
                  for c in torch_calls.of(one)]
            for one in NAMES
        }  # fmt: skip

    plan, mutant = summary(JOINER.plan()), summary(edit_plan(JOINER.plan(), name, **changes))
    assert [one for one in NAMES if plan[one] != mutant[one]] == [name]


def test_each_sub_group_of_the_table_has_an_accessor(torch_calls: Calls, mooncake: type[MooncakeOptions]) -> None:
    state = bring_up(replace(JOINER, layout=ParallelLayout(tp=4, attn_dp=2, shared_experts_tp=2, dcp=2, pdmux=True)))
    for row in SUB_GROUPS:
        assert getattr(parallel_state, f"get_{row.name}_group")() is state.groups[row.name]


def test_a_launch_must_fill_the_world(torch_calls: Calls) -> None:
    args = BootstrapArgs(layout=ParallelLayout(tp=4), cohort_rank=0)
    plan = args.plan()
    parallel_state.init_distributed_environment(rank=0, world_size=8, plan=plan)
    with pytest.raises(
        RuntimeError, match="tp=4 x pp=1 x replicas=1 is 4 ranks but the world has 8; give widths whose product"
    ):
        parallel_state.initialize_model_parallel(args.layout, plan)


def test_world_is_created_once(torch_calls: Calls) -> None:
    args = BootstrapArgs(layout=ParallelLayout(tp=4), cohort_rank=1)
    bring_up(args)
    with pytest.raises(RuntimeError, match="WORLD exists already; call destroy_distributed_environment first"):
        bring_up(args)
    with pytest.raises(RuntimeError, match="torch's default group has rank 1 of 4, asked for rank 2 of 4"):
        bring_up(replace(args, cohort_rank=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank_offset": 4}, "role launch has rank_offset=4; give 0, or the role scale-joiner"),
        (
            {"role": "scale-joiner"},
            "role scale-joiner has rank_offset=0; give the number of ranks already deployed, at least 1",
        ),
        ({"cohort_rank": 4}, "cohort_rank is 4; give 0 to 3, the ranks of tp=4 x pp=1 x replicas=1"),
        ({"role": "spare"}, "'spare' is not a valid Role"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        replace(LAUNCH, **changes)
    assert str(caught.value) == message
