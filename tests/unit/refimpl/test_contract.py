"""The parameter contract as golden tables, for each role under each edition of the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.distributed.contract import (
    ContractRules,
    CreationPlan,
    GroupOptions,
    Role,
    creation_plan,
    edit_plan,
    forget,
    group_contract,
)
from refimpl.distributed.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, moe_ep=2, dcp=2)

LAUNCH = """
default  offset 0  recovered no   max 8     local no
world    offset 0  recovered no   max 8     local no
tp       offset 0  recovered no   max 8     local no
dcp      offset 0  recovered no   max 8     local no
attn_cp  offset 0  recovered no   max 8     local no
moe_dp   offset 0  recovered no   max 8     local no
moe_tp   offset 0  recovered no   max 8     local no
pp       offset 0  recovered no   max 8     local no
self_pp  offset 0  recovered no   max 8     local no
"""
RECOVERING = LAUNCH.replace("recovered no ", "recovered yes")
SCALE = """
default  offset 0  recovered yes  max 8     local no
world    offset 0  recovered yes  max 8     local no
tp       offset 4  recovered no   max none  local yes
dcp      offset 4  recovered no   max none  local yes
attn_cp  offset 4  recovered no   max none  local yes
moe_dp   offset 4  recovered no   max none  local yes
moe_tp   offset 4  recovered no   max none  local yes
pp       offset 4  recovered no   max none  local yes
self_pp  offset 4  recovered no   max none  local yes
"""
LAUNCH_BEFORE = """
default  offset 0  recovered no   max 8     local no
world    offset 0  recovered no   max none  local no
tp       offset 0  recovered no   max 8     local no
dcp      offset 0  recovered no   max none  local no
attn_cp  offset 0  recovered no   max 8     local no
moe_dp   offset 0  recovered no   max 8     local no
moe_tp   offset 0  recovered no   max 8     local no
pp       offset 0  recovered no   max 8     local no
self_pp  offset 0  recovered no   max none  local no
"""
RECOVERING_BEFORE = """
default  offset 0  recovered yes  max 8     local no
world    offset 0  recovered yes  max none  local no
tp       offset 0  recovered yes  max none  local no
dcp      offset 0  recovered yes  max none  local no
attn_cp  offset 0  recovered yes  max none  local no
moe_dp   offset 0  recovered yes  max none  local no
moe_tp   offset 0  recovered yes  max none  local no
pp       offset 0  recovered yes  max none  local no
self_pp  offset 0  recovered no   max none  local no
"""
SCALE_BEFORE = """
default  offset 0  recovered yes  max 8     local no
world    offset 0  recovered yes  max none  local no
tp       offset 4  recovered yes  max none  local no
dcp      offset 0  recovered yes  max none  local no
attn_cp  offset 4  recovered yes  max none  local no
moe_dp   offset 4  recovered yes  max none  local no
moe_tp   offset 4  recovered yes  max none  local no
pp       offset 4  recovered yes  max none  local no
self_pp  offset 0  recovered no   max none  local no
"""


def table(plan: CreationPlan) -> str:
    lines = [
        f"{name:<8} offset {x.rank_offset}  recovered {'yes' if x.recovered_rank else 'no':<3}  "
        f"max {x.max_world_size or 'none':<4}  local {'yes' if x.use_local_synchronization else 'no'}\n"
        for name, x in plan.items()
    ]
    return "\n" + "".join(lines)


@pytest.mark.parametrize(
    ("role", "rank_offset", "rules", "expected"),
    [
        ("launch", 0, "repaired", LAUNCH),
        ("recovering-joiner", 0, "repaired", RECOVERING),
        ("scale-joiner", 4, "repaired", SCALE),
        ("launch", 0, "before-repair", LAUNCH_BEFORE),
        ("recovering-joiner", 0, "before-repair", RECOVERING_BEFORE),
        ("scale-joiner", 4, "before-repair", SCALE_BEFORE),
    ],
)
def test_plan_is_as_the_golden_table(role: str, rank_offset: int, rules: str, expected: str) -> None:
    plan = creation_plan(LAYOUT, Role(role), rank_offset=rank_offset, max_world_size=8, rules=ContractRules(rules))
    assert table(plan) == expected


def test_a_launch_that_never_grows_is_the_same_under_both_rules() -> None:
    """With no offset and no capacity the repair changes nothing: each group has the options of a plain launch."""
    base = GroupOptions(backend="nccl", device="cuda:1", timeout_s=30.0)
    for rules in ContractRules:
        plan = creation_plan(LAYOUT, Role.LAUNCH, rules=rules, base=base)
        assert set(plan.values()) == {base}


@settings(deadline=None)
@given(rank_offset=st.integers(1, 500), growth=st.integers(0, 500))
def test_world_alone_grows_for_a_scale_joiner(rank_offset: int, growth: int) -> None:
    contract = group_contract(Role.SCALE_JOINER, rank_offset, rank_offset + growth)
    assert contract.default == contract.world == GroupOptions(recovered_rank=True, max_world_size=rank_offset + growth)
    assert contract.model_parallel == GroupOptions(rank_offset=rank_offset)
    assert contract.model_parallel.use_local_synchronization
    assert not contract.world.use_local_synchronization


@pytest.mark.parametrize(
    ("role", "rank_offset", "message"),
    [
        (Role.LAUNCH, 4, "role launch has rank_offset=4; give 0, or the role scale-joiner"),
        (Role.RECOVERING_JOINER, 4, "role recovering-joiner has rank_offset=4; give 0, or the role scale-joiner"),
        (Role.LAUNCH, -1, "role launch has rank_offset=-1; give 0, or the role scale-joiner"),
        (
            Role.SCALE_JOINER,
            0,
            "role scale-joiner has rank_offset=0; give the number of ranks already deployed, at least 1",
        ),
    ],
)
@pytest.mark.parametrize("rules", ContractRules)
def test_offset_and_role_must_agree(role: Role, rank_offset: int, message: str, rules: ContractRules) -> None:
    """An offset on another role would quietly turn creation by all into creation by members."""
    with pytest.raises(ValueError, match=r".") as caught:
        group_contract(role, rank_offset, rules=rules)
    assert str(caught.value) == message


def test_capacity_must_hold_the_cohort() -> None:
    with pytest.raises(ValueError, match="max_world_size is 5 but this cohort ends at rank 5; give at least 6"):
        creation_plan(LAYOUT, Role.SCALE_JOINER, rank_offset=4, max_world_size=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank_offset": -1}, "rank_offset is -1; give the first global rank of this cohort, at least 0"),
        ({"max_world_size": 0}, "max_world_size is 0; give at least 1, or None for a fixed group"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; give seconds above 0, or None for the backend's default"),
    ],
)
def test_options_that_no_group_can_have_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        GroupOptions(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("parameter", ["rank_offset", "recovered_rank", "max_world_size"])
@pytest.mark.parametrize("name", ["default", "world", *LAYOUT.created()])
def test_forgetting_a_parameter_changes_that_group_alone(name: str, parameter: str) -> None:
    whole = dict.fromkeys(["default", "world", *LAYOUT.created()], GroupOptions(
        rank_offset=4, recovered_rank=True, max_world_size=8))  # fmt: skip
    mutant = forget(whole, name, parameter)
    assert getattr(mutant[name], parameter) == getattr(GroupOptions(), parameter)
    assert edit_plan(mutant, name, **{parameter: getattr(whole[name], parameter)}) == whole
    assert list(mutant) == list(whole), "creation order stays"


def test_editing_what_is_not_there_is_refused() -> None:
    plan = creation_plan(ParallelLayout(self_pp=False), Role.LAUNCH)
    with pytest.raises(KeyError, match="the plan has no group 'dcp'; it has default, world, tp, pp"):
        edit_plan(plan, "dcp", rank_offset=1)
    with pytest.raises(KeyError, match="no option 'offset'; there are backend, rank_offset"):
        forget(plan, "tp", "offset")


@pytest.mark.parametrize(
    ("options", "local"),
    [
        (GroupOptions(), False),
        (GroupOptions(rank_offset=4), True),
        (GroupOptions(rank_offset=4, recovered_rank=True), False),
        (GroupOptions(recovered_rank=True), False),
        (GroupOptions(rank_offset=4, local_synchronization=False), False),
        (GroupOptions(local_synchronization=True), True),
    ],
)
def test_members_alone_synchronise_with_an_offset_unless_recovered(options: GroupOptions, local: bool) -> None:
    assert options.use_local_synchronization is local
