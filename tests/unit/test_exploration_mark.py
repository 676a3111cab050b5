"""The mark `hangcheck_explore` runs the simulations of a test under many schedules."""

from __future__ import annotations

import pytest

BODIES = """
import time
import pytest
import torch
import torch.distributed as dist

def sleeps(rank):
    store = dist.TCPStore("node0", 29500, 2, rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    if rank == 1:
        store.set("plan", "yes")
    else:
        time.sleep(1.0)
        if not store.check(["plan"]):
            return 0.0
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def agree(rank):
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()
"""
PASSING = """
def test_one_order_is_not_enough(simulate):
    assert simulate(sleeps, 2).ok

@pytest.mark.hangcheck_explore(schedules=10)
def test_no_order_matters(simulate):
    assert simulate(agree, 3).results == {0: 3.0, 1: 3.0, 2: 3.0}

@pytest.mark.hangcheck_explore(schedules=10, policy="dfs", depth=1)
def test_the_bad_outcome_on_demand(simulate):
    outcome = simulate(sleeps, 2, check=False)
    assert outcome.verdict == "deadlock"
"""
FAILING = """
@pytest.mark.hangcheck_explore(schedules=20)
def test_sleep(simulate):
    simulate(agree, 2)
    simulate(sleeps, 2)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def test_marked_tests_are_explored(suite: pytest.Pytester) -> None:
    """Those without the mark run in order; the mark is known to --strict-markers."""
    suite.makepyfile(BODIES + PASSING)
    suite.runpytest("--strict-markers").assert_outcomes(passed=3)


def test_the_failing_schedule_is_shown_and_can_be_run_again(suite: pytest.Pytester) -> None:
    """The replay line runs that schedule alone, on the simulation of the test that it belongs to."""
    suite.makepyfile(BODIES + FAILING)
    result = suite.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "hangcheck: race in 20 schedules (pct, seed 0): *",
            "race: the outcome depends on whether rank 0's check of key 'plan'*",
            "schedule: r1 is delayed at *.py:*",
            "hangcheck: deadlock (1 finding, 2 ranks*",
            "replay: pytest *::test_sleep --hangcheck-seed 0 --hangcheck-schedule .pytest_cache/d/hangcheck/*.schedule",
        ]
    )
    assert "checked_cluster.py" not in result.stdout.str()
    replay = next(line for line in result.outlines if line.startswith("replay: pytest "))
    again = suite.runpytest(*replay.split()[2:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["hangcheck: deadlock (1 finding, 2 ranks*", replay])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("orders=3", "*hangcheck_explore(orders): give schedules, policy, depth, workers, seed by name"),
        ("policy='best'", "*policy='best': give one of random, pct, dfs, in-order"),
    ],
)
def test_a_mark_that_makes_no_sense_is_refused(suite: pytest.Pytester, mark: str, message: str) -> None:
    suite.makepyfile(BODIES + f"@pytest.mark.hangcheck_explore({mark})\ndef test_it(simulate): simulate(agree, 2)\n")
    result = suite.runpytest()
    result.stdout.fnmatch_lines([message])


def test_a_schedule_that_is_none_is_refused(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + "def test_it(simulate): simulate(agree, 2)\n")
    suite.makefile(".txt", schedule="nonsense")
    result = suite.runpytest("--hangcheck-schedule", "schedule.txt")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*line 1: a schedule begins with 'hangcheck-schedule 1'"])
