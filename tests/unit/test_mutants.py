"""Every parameter of the creation contract, dropped or set wrongly for one sub-group at a time, is found.

The mutants come from the creation plans, which come from the table of sub-groups: a sub-group that is added to the
table is covered here the day it is added.
"""

from __future__ import annotations

from typing import Any

import pytest

from refimpl.distributed import (
    SUB_GROUPS,
    BootstrapArgs,
    CreationPlan,
    ParallelLayout,
    Role,
    bring_up,
    edit_plan,
    forget,
)
from simulator import Cluster, Outcome, Verdict
from simulator.scenarios.recovery import LOST, launch_args, recovering_args, recovery

SERVING, JOINING, CAPACITY = 4, 4, 16
LAYOUTS = (
    ParallelLayout(tp=4, attn_cp=2, moe_ep=2, dcp=2, shared_experts_tp=1, pdmux=True),
    ParallelLayout(tp=4, attn_dp=2, moe_dp=2, moe_ep=2, pdmux=False),
    ParallelLayout(tp=4, moe_ep=1, attn_cp=1, shared_experts_tp=2),
    ParallelLayout(tp=2, pp=2, moe_ep=2),
)


def joiner_args(rank: int, layout: ParallelLayout) -> BootstrapArgs:
    return BootstrapArgs(
        layout=layout,
        cohort_rank=rank - SERVING,
        backend="mooncake",
        max_world_size=CAPACITY,
        role=Role.SCALE_JOINER,
        rank_offset=SERVING,
    )


def serving_args(rank: int) -> BootstrapArgs:
    return BootstrapArgs(
        layout=ParallelLayout(tp=SERVING), cohort_rank=rank, backend="mooncake", max_world_size=CAPACITY
    )


def serve(rank: int, plan: CreationPlan | None) -> None:
    bring_up(serving_args(rank), plan)


def join(rank: int, layout: ParallelLayout, plan: CreationPlan | None) -> None:
    bring_up(joiner_args(rank, layout), plan)


def scale_up(layout: ParallelLayout, join_plan: Any = None, serve_plan: Any = None) -> Outcome:
    cluster = Cluster(nodes=1).launch(serve, ranks=SERVING, args=(serve_plan,))
    return cluster.join(join, ranks=JOINING, rank_offset=SERVING, args=(layout, join_plan), at_s=1.0).run()


def sub_groups(layout: ParallelLayout) -> list[str]:
    return list(layout.created())


def concerned(outcome: Outcome) -> set[str]:
    """The names of the groups that the findings are about, without `:device` and `:cpu`."""
    return {finding.group.split(":")[0] for finding in outcome.findings}


JOINER_GROUPS = [(layout, name) for layout in LAYOUTS for name in sub_groups(layout)]
IDS = [f"{name}-{number}" for number, layout in enumerate(LAYOUTS) for name in sub_groups(layout)]


def test_the_layouts_cover_every_sub_group_of_the_table() -> None:
    """A row added to the table has to be created by one of the layouts here, or this test says so."""
    covered = {name for layout in LAYOUTS for name in layout.created()}
    assert covered == {row.name for row in SUB_GROUPS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_unmutated_scale_up_is_ok(layout: ParallelLayout) -> None:
    """The control: without a mutation nothing is found."""
    assert scale_up(layout).findings == ()


@pytest.mark.parametrize(("layout", "name"), JOINER_GROUPS, ids=IDS)
def test_a_scale_joiner_sub_group_that_drops_rank_offset_is_found(layout: ParallelLayout, name: str) -> None:
    """Its lists name ranks 0 to 3, which were launched before."""
    outcome = scale_up(layout, forget(joiner_args(SERVING, layout).plan(), name, "rank_offset"))
    assert outcome.verdict in (Verdict.DEADLOCK, Verdict.WRONG_RANKS)
    wrong = [f for f in outcome.findings if f.kind is Verdict.WRONG_RANKS and f.level == "contract"]
    assert [f.group.split(":")[0] for f in wrong] == [name]
    assert f"rank_offset={SERVING}" in wrong[0].cause


@pytest.mark.parametrize(("layout", "name"), JOINER_GROUPS, ids=IDS)
def test_a_scale_joiner_sub_group_created_as_recovered_is_found(layout: ParallelLayout, name: str) -> None:
    """It has nothing to attach to, so it silently runs alone."""
    outcome = scale_up(layout, edit_plan(joiner_args(SERVING, layout).plan(), name, recovered_rank=True))
    assert not outcome.ok
    assert name in concerned(outcome)


@pytest.mark.parametrize(("layout", "name"), JOINER_GROUPS, ids=IDS)
def test_a_scale_joiner_sub_group_that_reserves_slots_is_found(layout: ParallelLayout, name: str) -> None:
    """Only WORLD grows."""
    outcome = scale_up(layout, edit_plan(joiner_args(SERVING, layout).plan(), name, max_world_size=CAPACITY))
    assert outcome.verdict is Verdict.WRONG_RANKS
    assert concerned(outcome) == {name}


@pytest.mark.parametrize(("layout", "name"), JOINER_GROUPS, ids=IDS)
def test_a_scale_joiner_sub_group_without_local_synchronisation_is_found(layout: ParallelLayout, name: str) -> None:
    """Then its creation is collective over the whole world, and the serving ranks never call it."""
    outcome = scale_up(layout, edit_plan(joiner_args(SERVING, layout).plan(), name, local_synchronization=False))
    assert outcome.verdict is Verdict.DEADLOCK
    finding = outcome.findings[0]
    assert (finding.level, finding.waiting, finding.missing) == ("contract", (4, 5, 6, 7), (0, 1, 2, 3))
    assert finding.group.split(":")[0] == name


@pytest.mark.parametrize("name", ["default", "world"])
@pytest.mark.parametrize("parameter", ["recovered_rank", "max_world_size"])
def test_world_of_a_scale_joiner_that_drops_a_parameter_is_found(name: str, parameter: str) -> None:
    """WORLD can then not attach to the serving ranks' WORLD."""
    outcome = scale_up(LAYOUTS[0], forget(joiner_args(SERVING, LAYOUTS[0]).plan(), name, parameter))
    assert not outcome.ok
    assert {"default": "WORLD", "world": "world"}[name] in concerned(outcome)


@pytest.mark.parametrize("name", ["default", "world"])
def test_world_of_the_serving_ranks_without_capacity_is_found_when_somebody_joins(name: str) -> None:
    """The capacity is part of the group's identity."""
    outcome = scale_up(LAYOUTS[0], serve_plan=forget(serving_args(0).plan(), name, "max_world_size"))
    assert not outcome.ok
    assert {"default": "WORLD", "world": "world"}[name] in concerned(outcome)


RECOVERY_GROUPS = list(recovering_args(2).plan())


def test_the_unmutated_recovery_is_ok() -> None:
    """The control: a recovering rank attaches everywhere, in the order of the launch."""
    assert recovery().findings == ()


@pytest.mark.parametrize("parameter", ["recovered_rank", "max_world_size"])
@pytest.mark.parametrize("name", RECOVERY_GROUPS)
def test_a_recovering_rank_that_drops_a_parameter_is_found(name: str, parameter: str) -> None:
    """Without recovered_rank it creates anew; with another capacity there is nothing to attach to."""
    outcome = recovery(recover_plan=forget(recovering_args(2).plan(), name, parameter))
    assert not outcome.ok
    assert {"default": "WORLD"}.get(name, name) in concerned(outcome)


@pytest.mark.parametrize("name", RECOVERY_GROUPS)
def test_a_launch_that_drops_max_world_size_is_found_when_a_rank_recovers(name: str) -> None:
    """The recovering rank asks for the capacity of the contract and finds a group without it."""
    outcome = recovery(launch_plan=forget(launch_args(0).plan(), name, "max_world_size"))
    assert not outcome.ok
    assert {"default": "WORLD"}.get(name, name) in concerned(outcome)


@pytest.mark.parametrize("name", sub_groups(LAYOUTS[0]))
def test_an_offset_on_a_rank_that_does_not_join_is_found(name: str) -> None:
    """Its lists name nobody who was launched; torch alone would answer None, without an error."""
    args = BootstrapArgs(layout=LAYOUTS[0], cohort_rank=0, backend="gloo")
    plan = edit_plan(args.plan(), name, rank_offset=4)

    def start(rank: int) -> None:
        bring_up(BootstrapArgs(layout=LAYOUTS[0], cohort_rank=rank, backend="gloo"), plan)

    outcome = Cluster(nodes=1).launch(start, ranks=4).run()
    assert outcome.verdict is Verdict.WRONG_RANKS
    assert concerned(outcome) >= {name}
    assert "rank_offset above 0" in outcome.findings[0].cause


# -- each parameter, wrong in turn: per role and per sub-group, the first finding has the right kind and culprit


def culprit(outcome: Outcome) -> tuple[Verdict, str, str]:
    """What the report opens with: kind, level, and the group without `:device` and `:cpu`."""
    first = outcome.findings[0]
    return first.kind, str(first.level), first.group.split(":")[0]


WRONG_FOR_A_JOINER = [
    ("rank_offset", 0, Verdict.WRONG_RANKS),
    ("rank_offset", SERVING - 1, Verdict.WRONG_RANKS),
    ("rank_offset", SERVING + JOINING, Verdict.WRONG_RANKS),
    ("max_world_size", CAPACITY, Verdict.WRONG_RANKS),
    ("max_world_size", CAPACITY + 1, Verdict.WRONG_RANKS),
    ("recovered_rank", True, Verdict.WRONG_RANKS),
    ("local_synchronization", False, Verdict.DEADLOCK),
]


@pytest.mark.parametrize(("parameter", "value", "kind"), WRONG_FOR_A_JOINER)
@pytest.mark.parametrize("name", sub_groups(LAYOUTS[0]))
def test_a_wrong_parameter_of_a_scale_joiner_is_found_with_its_group(
    name: str, parameter: str, value: Any, kind: Verdict
) -> None:
    """Offsets too low, too high, half in the cohort; any reserve; attaching; world-wide synchronisation."""
    plan = edit_plan(joiner_args(SERVING, LAYOUTS[0]).plan(), name, **{parameter: value})
    outcome = scale_up(LAYOUTS[0], plan)
    assert culprit(outcome)[2] == name
    found = [f for f in outcome.findings if f.kind is kind]
    assert {f.group.split(":")[0] for f in found} == {name}
    ranks = {rank for side in found[0].sides for rank in side.ranks}
    assert ranks & set(range(SERVING, SERVING + JOINING))


@pytest.mark.parametrize("name", sub_groups(LAYOUTS[0]))
def test_an_offset_that_leaves_the_first_joiner_out_names_the_group(name: str) -> None:
    """The reference implementation says so itself, and the report opens with that."""
    plan = edit_plan(joiner_args(SERVING, LAYOUTS[0]).plan(), name, rank_offset=SERVING + 1)
    first = scale_up(LAYOUTS[0], plan).findings[0]
    assert f"group '{name}' " in first.title or first.group.startswith(f"{name}:")
    assert any(SERVING in side.ranks for side in first.sides)


WRONG_FOR_A_RECOVERING_RANK = [
    ("recovered_rank", False, Verdict.WRONG_RANKS),
    ("max_world_size", None, Verdict.WRONG_RANKS),
    ("max_world_size", 5, Verdict.WRONG_RANKS),
    ("local_synchronization", True, Verdict.MISMATCH),
]


@pytest.mark.parametrize(
    ("name", "parameter", "value", "kind"),
    [
        (name, *wrong)
        for name in RECOVERY_GROUPS
        for wrong in WRONG_FOR_A_RECOVERING_RANK
        if (name, wrong[0]) != ("default", "local_synchronization")  # init_process_group has no such parameter
    ],
)
def test_a_wrong_parameter_of_a_recovering_rank_is_found_with_its_group(
    name: str, parameter: str, value: Any, kind: Verdict
) -> None:
    """The report opens with the group at fault, not with one that failed later."""
    outcome = recovery(recover_plan=edit_plan(recovering_args(LOST).plan(), name, **{parameter: value}))
    assert (culprit(outcome)[0], culprit(outcome)[2]) == (kind, {"default": "WORLD"}.get(name, name))


@pytest.mark.parametrize("name", sub_groups(LAYOUTS[0]))
def test_an_offset_on_a_recovering_rank_is_refused_by_torch(name: str) -> None:
    """A recovering rank names all ranks of the launch; shifted lists name ranks that its world does not have."""
    outcome = recovery(recover_plan=edit_plan(recovering_args(LOST).plan(), name, rank_offset=4))
    assert outcome.verdict is Verdict.EXCEPTION
    first = outcome.findings[0]
    assert first.sides[0].ranks == (LOST,)
    assert first.title.startswith(f"rank {LOST} ended with ValueError: Rank 4 is out of range")


WRONG_FOR_A_LAUNCH = [
    ("recovered_rank", True, Verdict.WRONG_RANKS),
    ("max_world_size", None, Verdict.WRONG_RANKS),
    ("max_world_size", 5, Verdict.WRONG_RANKS),
    ("local_synchronization", True, Verdict.MISMATCH),
]


@pytest.mark.parametrize(("parameter", "value", "kind"), WRONG_FOR_A_LAUNCH)
@pytest.mark.parametrize("name", [name for name in RECOVERY_GROUPS if name != "default"])
def test_a_wrong_parameter_of_the_launch_is_found_with_its_group_when_a_rank_recovers(
    name: str, parameter: str, value: Any, kind: Verdict
) -> None:
    """Some of these show at the launch, the others only when somebody looks for the group."""
    outcome = recovery(launch_plan=edit_plan(launch_args(0).plan(), name, **{parameter: value}))
    assert (culprit(outcome)[0], culprit(outcome)[2]) == (kind, name)


def test_a_launch_whose_world_attaches_to_nothing_waits_for_ever() -> None:
    """recovered_rank=True on the default group of the first cohort: there is nobody to attach to."""
    plan = edit_plan(launch_args(0).plan(), "default", recovered_rank=True)
    outcome = Cluster(nodes=1).launch(lambda rank: bring_up(launch_args(rank), plan), ranks=4).run()
    assert culprit(outcome) == (Verdict.DEADLOCK, "torch", "WORLD")
    assert {rank for side in outcome.findings[0].sides for rank in side.ranks} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("default", "rank_offset", 2), ("default", "local_synchronization", True), ("world", "rank_offset", 2)],
)
def test_parameters_that_a_joiners_world_does_not_look_at_have_no_effect(name: str, parameter: str, value: Any) -> None:
    """Equivalent mutants: WORLD names all ranks whatever the cohort, and attaches without synchronising."""
    plan = joiner_args(SERVING, LAYOUTS[0]).plan()
    mutant = scale_up(LAYOUTS[0], edit_plan(plan, name, **{parameter: value}))
    assert mutant.findings == ()
    assert mutant.trace.to_text() == scale_up(LAYOUTS[0], plan).trace.to_text()


@pytest.mark.parametrize(
    ("parameter", "value"), [("recovered_rank", False), ("max_world_size", None), ("local_synchronization", True)]
)
def test_a_wrong_parameter_of_a_joiners_world_is_found_with_its_group(parameter: str, value: Any) -> None:
    """It then does not find the WORLD of the serving ranks."""
    outcome = scale_up(LAYOUTS[0], edit_plan(joiner_args(SERVING, LAYOUTS[0]).plan(), "world", **{parameter: value}))
    assert culprit(outcome)[2] == "world"


def test_an_offset_for_the_role_launch_is_refused_before_any_group_exists() -> None:
    """The contract is checked where the role is known."""
    with pytest.raises(ValueError, match="role launch has rank_offset=4"):
        BootstrapArgs(layout=LAYOUTS[0], cohort_rank=0, rank_offset=4)


@pytest.mark.parametrize("backend", ["gloo", "mooncake"])
def test_an_offset_of_zero_gives_the_trace_of_a_plain_launch_to_the_letter(backend: str) -> None:
    """Neither the rules for joiners nor an explicit offset of 0 changes anything for a launch."""

    def trace(**given: Any) -> str:
        def start(rank: int) -> None:
            bring_up(BootstrapArgs(layout=LAYOUTS[0], cohort_rank=rank, backend=backend, **given))

        return Cluster(nodes=1).launch(start, ranks=4).run().raise_if_bad().trace.to_text()

    plain = trace()
    assert plain.count("new_group") > 50
    assert trace(rank_offset=0, role=Role.LAUNCH) == plain
    assert trace(rules="before-repair") == plain
