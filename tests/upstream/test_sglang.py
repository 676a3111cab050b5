"""SGLang's own group code, from its wheels, on simulated ranks."""

from __future__ import annotations

import pytest

from tests.upstream.conftest import Play
from tests.upstream.rows import Row

pytestmark = pytest.mark.upstream
HOME = ".venv-upstream/sglang-{}/sglang/srt/distributed/parallel_state.py"
JOINERS = [4, 5]


def of_kind(row: Row, kind: str, level: str) -> list[dict[str, object]]:
    """The findings of that kind at that level."""
    return [found for found in row.findings if (found["kind"], found["level"]) == (kind, level)]


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.23"])
def test_plain_launches_are_ok(play: Play, version: str) -> None:
    """On gloo, nccl and mooncake, and every rank has the rank lists that refimpl has for the layout."""
    rows = play("sglang", version, "plain")
    assert len(rows) == 15
    assert [(row.title, row.verdict, row.facts["differing"]) for row in rows] == [(r.title, "ok", []) for r in rows]


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_a_scale_up_is_ok_since_the_repair(play: Play, version: str) -> None:
    """All six ranks meet in WORLD; the joiners' lists are those of their cohort, dcp and self_pp too."""
    plain, dcp = play("sglang", version, "scale_up")
    assert (plain.verdict, dcp.verdict) == ("ok", "ok")
    for row in (plain, dcp):
        assert [row.facts["results"][str(rank)] for rank in range(4)] == [6.0] * 4
        for rank in JOINERS:
            total, lists = row.facts["results"][str(rank)]
            assert (total, lists["tp"], lists["moe_ep"], lists["self_pp"]) == (6.0, JOINERS, JOINERS, [rank])
    assert dcp.facts["results"]["4"][1]["dcp"] == JOINERS


def test_a_scale_up_before_the_repair_is_found_at_both_levels(play: Play) -> None:
    """0.5.19: the contract says who never calls, and the installed torch and Mooncake let groups run alone."""
    plain, dcp = play("sglang", "0.5.19", "scale_up")
    for row in (plain, dcp):
        assert row.verdict == "deadlock"
        assert of_kind(row, "deadlock", "contract")
        assert of_kind(row, "wrong_ranks", "torch")
        assert HOME.format("0.5.19") in row.report
    unshifted = {str(found["group"]) for found in of_kind(dcp, "wrong_ranks", "contract")}
    assert any("dcp" in group for group in unshifted), dcp.report
    unshifted = {str(found["group"]) for found in of_kind(plain, "wrong_ranks", "contract")}
    assert any("self_pp" in group for group in unshifted), plain.report


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
def test_the_gatherer_probes_where_it_has_a_reason(play: Play, version: str) -> None:
    """No probe on one node; settings not read by one rank; a probe for nothing is flagged; two nodes turn it off."""
    one, alone, mistaken, two = play("sglang", version, "gatherer")
    assert (one.verdict, one.facts["states"]) == ("ok", ["multimem kept"])
    assert (alone.verdict, alone.facts["states"]) == ("ok", ["multimem kept"])
    assert mistaken.verdict == "unneeded_probe"
    assert "triton_symm_mem_ag.py" in mistaken.report
    assert (two.verdict, two.facts["states"]) == ("ok", ["multimem off"])


def test_mutants_are_found_in_upstream_lines(play: Play) -> None:
    """One skipped `new_group` and one rotated list, each on rank 2 only."""
    for row in play("sglang", "0.5.20", "mutants"):
        assert row.verdict == "deadlock", row.report
        assert HOME.format("0.5.20") in row.report
        assert "rank 2" in row.report
