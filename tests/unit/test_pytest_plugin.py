"""The fixtures fail a test with the report, and the plugin costs nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

BODIES = """
import torch
import torch.distributed as dist
import pytest

def agree(rank):
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def hang(rank):
    dist.init_process_group("gloo")
    if rank:
        dist.all_reduce(torch.ones(1))
"""
PASSING = """
def test_results(simulate):
    assert simulate(agree, 3).results == {0: 3.0, 1: 3.0, 2: 3.0}

def test_outcome_on_demand(simulate):
    assert simulate(hang, 2, check=False).verdict == "deadlock"

def test_raises(simulate):
    from simulator import SimulationFailed
    with pytest.raises(SimulationFailed) as caught:
        simulate(hang, 2)
    assert caught.value.outcome.findings[0].missing == (0,)

def test_cluster(hangcheck_cluster):
    cluster = hangcheck_cluster(nodes=2, seed=5)
    assert cluster.launch(agree, ranks=4).run().seed == 5

def test_two_clusters(hangcheck_cluster):
    first, second = hangcheck_cluster(), hangcheck_cluster()
    assert first.launch(agree, ranks=1).run().ok
    assert not second.launch(hang, ranks=2).run(check=False).ok

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(simulate):
    simulate(hang, 2)
"""
FAILING = """
def test_hang(simulate):
    simulate(hang, 3)
"""
REPORT = [
    "hangcheck: deadlock (1 finding, 3 ranks, seed 4, 0 s of virtual time)",
    "deadlock: all_reduce seq 0 of group 'WORLD' [[]0, 1, 2[]] cannot complete",
    "  waiting: ranks 1, 2 *",
    "  missing: rank 0 *",
    "replay: pytest *::test_hang --hangcheck-seed 4",
]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory for a test session of a project that has nothing to do with this one."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def test_good_outcomes_pass(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + PASSING)
    suite.runpytest("--strict-markers").assert_outcomes(passed=5, xfailed=1)


def test_a_bad_outcome_fails_with_the_report_alone(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + FAILING)
    result = suite.runpytest("--hangcheck-seed", "4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["hangcheck: seed 4", *REPORT], consecutive=False)
    text = result.stdout.str()
    assert "raise_if_bad" not in text
    assert "checked_cluster.py" not in text


def test_the_traceback_is_there_for_who_wants_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + FAILING)
    result = suite.runpytest("--full-trace")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*simulate(hang, 3)*"])


def test_the_replay_line_selects_the_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + FAILING + PASSING)
    result = suite.runpytest("--hangcheck-seed", "4")
    replay = next(line for line in result.outlines if line.startswith("replay: pytest "))
    again = suite.runpytest(*replay.split()[2:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(REPORT)


def test_reports_come_through_xdist(suite: pytest.Pytester) -> None:
    suite.makepyfile(BODIES + FAILING)
    result = suite.runpytest_subprocess("-n", "1", "--hangcheck-seed", "4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(REPORT)


def test_the_seed_may_be_a_setting(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nhangcheck_seed = 9\n")
    suite.makepyfile(BODIES + "def test_seed(simulate): assert simulate(agree, 1).seed == 9\n")
    suite.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--hangcheck-seed", "-1"], "*argument --hangcheck-seed: '-1': give a whole number, 0 or more"),
        (["-o", "hangcheck_seed=x"], "*setting hangcheck_seed is 'x': give a whole number, 0 or more"),
    ],
)
def test_a_bad_seed_is_refused(suite: pytest.Pytester, flags: list[str], message: str) -> None:
    result = suite.runpytest(*flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_loading_the_plugin_imports_no_torch(suite: pytest.Pytester) -> None:
    """A whole session of somebody else's tests, in a process of its own, with the plugin active."""
    suite.makepyfile(
        "import sys\n"
        "def test_nothing(request):\n"
        "    assert request.config.pluginmanager.has_plugin('hangcheck')\n"
        "    assert 'torch' not in sys.modules\n"
        "    assert not [name for name in sys.modules if name.startswith('simulator.engine')]\n"
    )
    suite.runpytest_subprocess("-p", "no:pytester").assert_outcomes(passed=1)


def test_importing_the_plugin_imports_no_torch() -> None:
    code = "import sys, simulator.pytest_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
