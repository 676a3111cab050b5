"""A group rank given where torch takes a global one, although nothing fails."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

from simulator import Outcome, Verdict, simulate


def halves(rank: int) -> dist.ProcessGroup:
    """The caller's half of four ranks."""
    dist.init_process_group("gloo", init_method="env://")
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    return groups[rank // 2]


def broadcast_from_group_rank_0(rank: int) -> str:
    group = halves(rank)
    box = ["handle" if dist.get_rank(group) == 0 else None]
    try:
        dist.broadcast_object_list(box, src=0, group=group)  # CULPRIT
    except ValueError:
        return "alone"
    return str(box[0])


def broadcast_after_a_second_thought(rank: int) -> str:
    group = halves(rank)
    box = ["handle" if dist.get_rank(group) == 0 else None]
    try:
        dist.broadcast_object_list(box, src=0, group=group)
    except ValueError:
        dist.broadcast_object_list(box, group_src=0, group=group)
    return str(box[0])


def asks_on_purpose(rank: int) -> str:
    group = halves(rank)
    try:
        dist.broadcast(torch.ones(1), src=3 - rank // 2 * 3, group=group)
    except ValueError:
        return "refused"
    return "taken"


def gradient_of_a_broadcast(rank: int, first: int) -> list[float]:
    dist.init_process_group("gloo", init_method="env://")
    group = dist.new_group([first, first + 1])
    if rank not in (first, first + 1):
        return []
    x = torch.ones(2, requires_grad=True)
    differentiable.broadcast(x, src=first, group=group).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def line_of(outcome: Outcome) -> int:
    """The line that the first finding shows first."""
    site = outcome.findings[0].sides[0].site
    assert site is not None
    return site.line


def test_a_caught_error_about_a_root_outside_the_group_is_reported() -> None:
    """Ranks 2 and 3 go on without the handle; the line and the right number are named."""
    outcome = simulate(broadcast_from_group_rank_0, 4)
    assert outcome.verdict is Verdict.WRONG_RANKS
    finding = outcome.findings[0]
    assert finding.ranks("gave") == (2, 3)
    assert "global rank 2" in finding.remedy
    with open(__file__) as source:
        assert source.read().splitlines()[line_of(outcome) - 1].endswith("# CULPRIT")


def test_a_second_try_with_the_right_root_is_nothing_to_report() -> None:
    """Code may find out by the error."""
    outcome = simulate(broadcast_after_a_second_thought, 4)
    assert outcome.verdict is Verdict.OK and not outcome.findings
    assert set(outcome.results.values()) == {"handle"}


def test_a_line_that_is_refused_everywhere_is_meant_so() -> None:
    """Nobody goes on without the others."""
    outcome = simulate(asks_on_purpose, 4)
    assert outcome.verdict is Verdict.OK and not outcome.findings, outcome.report()
    assert set(outcome.results.values()) == {"refused"}


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
@pytest.mark.parametrize(("first", "verdict"), [(0, Verdict.OK), (1, Verdict.WRONG_RANKS)])
def test_a_gradient_that_goes_to_the_wrong_rank(first: int, verdict: Verdict) -> None:
    """torch confuses the numbers itself, where they differ."""
    outcome = simulate(gradient_of_a_broadcast, 3, args=(first,))
    assert outcome.verdict is verdict
    assert (outcome.results[first] == [0.0, 0.0]) is (verdict is Verdict.WRONG_RANKS)
