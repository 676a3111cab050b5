"""Megatron-core's own group code, from its wheel, on simulated ranks."""

from __future__ import annotations

import pytest

from tests.upstream.conftest import Play

pytestmark = pytest.mark.upstream
HOME = ".venv-upstream/megatron-core-0.16.1/megatron/core/parallel_state.py"


def test_launches_are_ok(play: Play) -> None:
    """8 and 64 ranks with tp, pp, cp and ep, on gloo and nccl."""
    assert [row.verdict for row in play("megatron-core", "0.16.1", "plain")] == ["ok"] * 4


def test_1024_ranks_are_ok_in_6_gib(play: Play) -> None:
    """Time is printed, and judged on a quiet machine only: 60 s."""
    (row,) = play("megatron-core", "0.16.1", "large")
    assert row.verdict == "ok"
    assert row.peak_mib <= 6 * 1024


def test_mutants_are_found_in_upstream_lines(play: Play) -> None:
    """One skipped `new_group` and one rotated list, each on rank 2 only."""
    for row in play("megatron-core", "0.16.1", "mutants"):
        assert row.verdict == "deadlock", row.report
        assert HOME in row.report
        assert "rank 2" in row.report
