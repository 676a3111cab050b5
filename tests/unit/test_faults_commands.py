"""Faults on the command line, under schedules, and in tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator import cli, explore
from simulator.exploration.schedule import Schedule

SCRIPT = """
import os
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(4):
    time.sleep(0.5)
    dist.all_reduce(torch.ones(1))
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script with four all_reduces, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def test_run_injects_the_faults_that_it_is_given(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Several; the whole report."""
    faults = ["--fault", "kill rank=2 at=all_reduce#3", "--fault", "kill rank=1 at=all_reduce#30"]
    assert cli.main(["run", "--nproc-per-node", "4", *faults, script]) == cli.FINDINGS
    assert capsys.readouterr().out == (
        """\
hangcheck: exception (1 finding, 4 ranks, seed 0, 1.5001 s of virtual time)

faults injected:
  kill rank=2 at=all_reduce#3
    struck rank 2 at 1.5 s: killed in all_reduce#3, its call#6, train.py:10
  kill rank=1 at=all_reduce#30
    never struck: rank 1 made 3 calls of all_reduce

exception: ranks 0, 1, 3 did not survive the loss of rank 2
  lost:   rank 2         was killed at 1.5 s by [kill rank=2 at=all_reduce#3]                      train.py:10
  raised: ranks 0, 1, 3  raised RuntimeError: [gloo] Connection closed by peer [rank 2: the process ended: killed]
                         at train.py:10
  cause:   the connection to a peer closed, and the code does not handle the error; the fault [kill rank=2
           at=all_reduce#3] struck rank 2 at 1.5 s: killed in all_reduce#3, its call#6
  remedy:  catch the error and go on without the rank, or restart all ranks together
  level:   torch    certainty: cause

replay: hangcheck run --seed 0 --nproc-per-node 4 --fault 'kill rank=2 at=all_reduce#3' --fault """
        "'kill rank=1 at=all_reduce#30' train.py\n"
    )


def test_the_replay_line_gives_the_same_report(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """To the byte."""
    import shlex

    argv = ["run", "--seed", "3", "--nproc-per-node", "2", "--fault", "kill rank=any at=all_reduce#2", script]
    assert cli.main(argv) == cli.FINDINGS
    first = capsys.readouterr().out
    replay = first.splitlines()[-1].removeprefix("replay: ")
    assert cli.main(shlex.split(replay)[1:]) == cli.FINDINGS
    assert capsys.readouterr().out == first


def test_faults_can_be_told_to_stop(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that would come never comes then."""
    argv = ["run", "--json", "--nproc-per-node", "2", "--fault", "missing rank=1", "--faults-stop-at", "30s", script]
    assert cli.main(argv) == cli.OK
    data = json.loads(capsys.readouterr().out)
    assert data["virtual_s"] == 32.0
    assert data["faults"][0]["first"]["doing"] == "started at 30 s, not at 0 s"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fault", "zap"], "argument --fault: fault 'zap': give one of kill, slow"),
        (["--faults-stop-at", "30"], "argument --faults-stop-at: '30': give a time with its unit"),
        (["--fault", "kill rank=9 at=1s"], "fault 'kill rank=9 at=1s': there is no rank 9; give ranks up to 1"),
    ],
)
def test_a_bad_fault_is_a_usage_error(
    flags: list[str], message: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line."""
    assert cli.main(["run", "--nproc-per-node", "2", *flags, script]) == cli.USAGE
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_list_of_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """How each is written, what it does, and what the values are."""
    assert cli.main(["faults"]) == cli.OK
    out = capsys.readouterr().out
    assert out.startswith("kill rank=RANKS at=MOMENT [how=kill|raise] [restart=TIME]\n    End the process of a rank:")
    assert "\nvalues:\n" in out
    assert "  MOMENT      a time (2.5s), the nth call (call#7), or the nth of its kind (all_reduce#3)" in out


RACE = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() == 0:
    store.set("plan", "x")
elif not store.check(["plan"]):
    raise SystemExit(3)
dist.barrier()
"""


def test_explore_and_replay_inject_the_faults_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schedule's program has them, and its replay gives the same report."""
    monkeypatch.chdir(tmp_path)
    Path("race.py").write_text(RACE)
    argv = ["--nproc-per-node", "2", "--fault", "skew rank=1 by=2s", "--fault", "slow rank=1 by=1ms", "race.py"]
    assert cli.main(["explore", "--schedules", "30", *argv]) == cli.FINDINGS
    printed = capsys.readouterr().out
    schedule = Schedule.from_text(Path("race.schedule").read_text())
    assert "--fault 'skew rank=1 by=2s' --fault 'slow rank=1 by=1ms' race.py" in schedule.program
    assert cli.main(["replay", "race.schedule"]) == cli.FINDINGS
    assert capsys.readouterr().out == printed[printed.index("schedule: ") :]
    assert "faults injected:" in printed


def dies(rank: int) -> int:
    """Two barriers."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        dist.barrier()
        dist.barrier()
    except RuntimeError:
        return 1
    return 0


def test_an_exploration_of_a_rank_that_dies_is_the_same_each_time() -> None:
    """Forty schedules; no thread of a killed rank stays behind."""
    import threading

    before = threading.active_count()
    first, second = (explore(dies, 3, schedules=40, faults=["kill rank=2 at=barrier#2"], workers=1) for _ in range(2))
    assert first.report() == second.report()
    assert first.ok
    assert threading.active_count() == before


MARKED = """
import pytest
import torch.distributed as dist

def survive(rank):
    dist.init_process_group("gloo")
    try:
        dist.barrier()
    except RuntimeError:
        return "went on"
    return "all there"

@pytest.mark.hangcheck_faults("kill rank=1 at=barrier#1")
def test_marked(simulate):
    assert simulate(survive, 3).results == {0: "went on", 2: "went on"}

@pytest.mark.hangcheck_faults("missing rank=1", stop_at="5s")
def test_stops(hangcheck_cluster):
    outcome = hangcheck_cluster().launch(survive, ranks=3).run()
    assert outcome.virtual_s == 5.0

def test_option(simulate):
    assert simulate(survive, 2, faults=["kill rank=1 at=barrier#1"]).results == {0: "went on"}

def test_in_the_cluster(hangcheck_cluster):
    cluster = hangcheck_cluster().fault("kill rank=1 at=barrier#1")
    assert cluster.launch(survive, ranks=2).run().results == {0: "went on"}

@pytest.mark.hangcheck_faults("missing rank=1", until="5s")
def test_unknown(simulate):
    from simulator import UsageError
    with pytest.raises(UsageError, match="give faults as texts, and stop_at and must_strike by name"):
        simulate(survive, 2)
"""


def test_a_mark_injects_faults_into_the_simulations_of_a_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the option and the cluster's method."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(MARKED)
    pytester.runpytest().assert_outcomes(passed=5)


def test_an_exploration_says_which_faults_struck(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In how many schedules; and why one never did."""
    faults = ["--fault", "late rank=1 by=10ms", "--fault", "kill rank=2 at=all_reduce#99"]
    assert cli.main(["explore", "--nproc-per-node", "3", "--schedules", "4", *faults, script]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "faults injected:",
        "  late rank=1 by=10ms",
        "    struck in 4 of 4 schedules",
        "  kill rank=2 at=all_reduce#99",
        "    never struck in 4 schedules: rank 2 made 4 calls of all_reduce",
    ]


def test_a_fault_that_does_not_fit_points_to_the_list(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """To `hangcheck faults`, not to the help."""
    assert cli.main(["run", "--fault", "kil rank=2 at=2s", script]) == cli.USAGE
    assert capsys.readouterr().err.endswith("(hangcheck faults lists what there is)\n")


def test_a_fault_that_never_strikes_is_said_in_a_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line in its report, or a failure; also under many schedules."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(
        """
        import pytest, time

        def work(rank):
            time.sleep(1)

        @pytest.mark.hangcheck_faults("kill rank=1 at=99s")
        def test_said(simulate):
            simulate(work, 2)

        @pytest.mark.hangcheck_faults("kill rank=1 at=99s", must_strike=True)
        def test_fails(simulate):
            simulate(work, 2)

        @pytest.mark.hangcheck_faults("kill rank=1 at=99s", must_strike=True)
        @pytest.mark.hangcheck_explore(schedules=3)
        def test_explored(simulate):
            simulate(work, 2)

        @pytest.mark.hangcheck_faults("slow rank=1 by=1s", "late rank=1 by=1s", must_strike=False)
        def test_struck(simulate):
            assert simulate(work, 2).ranks[1].end_s == 2
        """
    )
    result = pytester.runpytest("-rP")
    result.assert_outcomes(passed=2, failed=2)
    text = "the fault [kill rank=1 at=99s] never struck: the run was over at 1 s"
    assert result.stdout.lines.count(text) == 1
    assert result.stdout.lines.count(f"hangcheck: {text}") == 1
    result.stdout.fnmatch_lines(["hangcheck: the fault ?kill rank=1 at=99s? never struck in * schedule*: the run was*"])
    result.stdout.fnmatch_lines(["the fault ?slow rank=1 by=1s? never struck: *"])


def test_a_server_that_runs_for_ever_ends_when_asked(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the verdict so far, and where its ranks are."""
    Path("loop.py").write_text(SCRIPT.replace("for _ in range(4):", "while True:"))
    assert cli.main(["run", "--nproc-per-node", "2", "--until", "20.2s", "loop.py"]) == cli.OK
    assert capsys.readouterr().out == (
        "hangcheck: ok (0 findings, 2 ranks, seed 0, 20.2 s of virtual time)\n\n"
        "ended at 20.2 s, as asked:\n  going on: ranks 0, 1  waits in time.sleep(0.5)  loop.py:9\n"
    )
    assert cli.main(["run", "--nproc-per-node", "2", "--until", "20.2s", script]) == cli.OK
    assert "as asked" not in capsys.readouterr().out
