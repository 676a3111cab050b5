"""Who may come into a deployment: pure data, whole messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refimpl.distributed import Attention, Cohort, Deployment, ParallelLayout, why_not
from refimpl.distributed.cohort import Line, named

ATTENTION = Attention(tp=1, cp=1, pp=1)
SERVING = Deployment(world_size=4, capacity=8, attention=ATTENTION, launched=4)


def cohort(*ranks: int, **given: object) -> Cohort:
    return replace(Cohort(ranks=ranks, capacity=8, attention=ATTENTION, launch_id="a"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [(4,), (4, 5), (4, 5, 6, 7)])
def test_a_cohort_behind_the_last_rank_may_come_in(ranks: tuple[int, ...]) -> None:
    """Up to the capacity."""
    assert why_not(cohort(*ranks), SERVING) == ""


REFUSED = {
    "gap": (
        cohort(5, 6),
        "rank_offset is 5 but the deployment ends at rank 3, so rank 4 would be missing; give rank_offset=4",
    ),
    "wide gap": (
        cohort(7),
        "rank_offset is 7 but the deployment ends at rank 3, so ranks 4 to 6 would be missing; give rank_offset=4",
    ),
    "overlap": (
        cohort(2, 3),
        "rank_offset is 2 but ranks 0 to 3 are deployed, so ranks 2, 3 are taken; give rank_offset=4",
    ),
    "partial overlap": (
        cohort(3, 4),
        "rank_offset is 3 but ranks 0 to 3 are deployed, so rank 3 is taken; give rank_offset=4",
    ),
    "capacity": (
        cohort(*range(4, 10)),
        "the cohort ends at rank 9 but the deployment has slots for ranks 0 to 7; let 4 join, or launch the deployment "
        "with max_world_size=10 or more",
    ),
    "other capacity": (
        cohort(4, capacity=16),
        "max_world_size is 16 but the deployment was launched with 8, and groups of different capacity do not find "
        "each other; give max_world_size=8",
    ),
    "topology": (
        cohort(4, 5, attention=Attention(tp=2, cp=1, pp=1)),
        "the cohort shares attention out as tp=2 cp=1 pp=1 but the deployment serves with tp=1 cp=1 pp=1; give the "
        "cohort a layout of that shape",
    ),
    "recovers the living": (cohort(2, recovers=True), "rank 2 is not lost; of the deployment none is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cohort_that_does_not_fit_is_told_what_would(name: str) -> None:
    """One line: what was given, and what would do."""
    wrong, message = REFUSED[name]
    assert why_not(wrong, SERVING) == message


def test_a_full_deployment_lets_nobody_join() -> None:
    """The remedy says none, not zero ranks."""
    full = replace(SERVING, world_size=8)
    assert "let none join" in why_not(cohort(8), full)


def test_a_deployment_without_capacity_never_grows() -> None:
    """Capacity is fixed at the launch."""
    fixed = replace(SERVING, capacity=None)
    assert why_not(cohort(4, capacity=None), fixed) == (
        "the deployment was launched without max_world_size, so it never grows; launch it with one"
    )


def test_a_deployment_with_a_hole_recovers_before_it_grows() -> None:
    """A hole in WORLD is not what the cohort asked to join."""
    holed = replace(SERVING, lost=(2,))
    assert why_not(cohort(4, 5), holed) == "rank 2 of the deployment is lost; recover first, then grow"
    assert why_not(cohort(2, recovers=True), holed) == ""
    assert why_not(cohort(1, recovers=True), holed) == "rank 1 is not lost; of the deployment rank 2 is"


def test_only_ranks_of_the_launch_are_recovered() -> None:
    """The groups of a later cohort have names that a new process cannot find."""
    grown = replace(SERVING, world_size=6, lost=(5,))
    assert why_not(cohort(5, recovers=True), grown).startswith("rank 5 is not of the first cohort, ranks 0 to 3,")


def test_what_is_written_to_the_store_is_read_back() -> None:
    """Both records survive the way through JSON."""
    asking = cohort(4, 5, recovers=True, capacity=None)
    assert Cohort.from_text(asking.to_text()) == asking
    holed = replace(SERVING, lost=(1, 2), generation=3)
    assert Deployment.from_text(holed.to_text().encode()) == holed


def test_attention_is_what_requests_see_of_a_layout() -> None:
    """Expert widths and replicas of attention may differ between cohorts."""
    four = ParallelLayout(tp=4, attn_dp=4, moe_ep=4)
    two = ParallelLayout(tp=2, attn_dp=2, moe_ep=1)
    assert Attention.of(four) == Attention.of(two) == ATTENTION
    assert Attention.of(ParallelLayout(tp=4, attn_dp=2, attn_cp=2)) == Attention(tp=1, cp=2, pp=1)


def test_the_line_hears_a_cohort_that_fills_a_gap_before_one_that_leaves_it() -> None:
    """Two launchers do not know of each other, so the order in which they come is no fault of theirs."""
    line = Line(early_s=10.0)
    line.add(cohort(6, 7), 0.0)
    assert line.hear(SERVING, 0.1) is None
    line.add(cohort(4, 5), 1.0)
    assert line.hear(SERVING, 1.1) == (2, cohort(4, 5), "")
    assert line.hear(replace(SERVING, world_size=6), 1.2) == (1, cohort(6, 7), "")
    assert line.hear(SERVING, 1.3) is None


def test_the_line_sends_a_cohort_away_when_nobody_fills_the_gap() -> None:
    """After its time, with the reason."""
    line = Line(early_s=10.0)
    line.add(cohort(6, 7), 0.0)
    assert line.hear(SERVING, 9.9) is None
    heard = line.hear(SERVING, 10.0)
    assert heard is not None and "ranks 4, 5 would be missing" in heard[2]


def test_a_replacement_may_come_before_the_loss_is_noticed() -> None:
    """A launcher sees a process die at once, its peers after a window of half a minute."""
    line = Line(early_s=60.0)
    line.add(cohort(2, recovers=True), 0.0)
    assert line.hear(SERVING, 29.0) is None
    assert line.hear(replace(SERVING, lost=(2,)), 31.0) == (1, cohort(2, recovers=True), "")


def test_ranks_are_named_as_people_do() -> None:
    """One, a run, a few."""
    assert [named(ranks) for ranks in ((4,), (4, 5), (4, 5, 6), (4, 6, 7))] == [
        "rank 4",
        "ranks 4, 5",
        "ranks 4 to 6",
        "ranks 4, 6, 7",
    ]
