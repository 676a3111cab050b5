"""vLLM's own group code, from its wheel, on simulated ranks."""

from __future__ import annotations

import pytest

from tests.upstream.conftest import Play

pytestmark = pytest.mark.upstream
HOME = ".venv-upstream/vllm-0.33.0/vllm/distributed/parallel_state.py"


def test_launches_are_ok(play: Play) -> None:
    """8 and 16 ranks with tp, pp, dp and ep; experts are spread over tp and dp of a stage."""
    (small,) = play("vllm", "0.33.0", "small")
    (large,) = play("vllm", "0.33.0", "large")
    assert (small.verdict, large.verdict) == ("ok", "ok")
    assert small.facts["lists"]["0"] == {"tp": [0, 1], "pp": [0, 2], "dp": [0, 4], "ep": [0, 1, 4, 5]}


def test_mutants_are_found_in_upstream_lines(play: Play) -> None:
    """One skipped `new_group` and one rotated list, each on rank 2 only."""
    for mutant in ("skip_one", "rotate_one"):
        (row,) = play("vllm", "0.33.0", mutant)
        assert row.verdict == "deadlock", row.report
        assert HOME in row.report
        assert "rank 2" in row.report
