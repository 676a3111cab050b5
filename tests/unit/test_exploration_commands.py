"""`hangcheck explore` and `hangcheck replay`: exit codes, files, and the same bytes again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import Schedule
from simulator.cli import FINDINGS, OK, USAGE, main

RACY = """\
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
print("a line of a rank")
ready = True
if dist.get_rank() == 1:
    store.set("plan", "yes")
elif "--depth" in sys.argv:
    time.sleep(1.0)
    ready = store.check(["plan"])
if ready:
    dist.all_reduce(torch.ones(1))
"""
SCRIPT = ["serve.py", "--depth", "7"]
"""The script's own argument has the name of one of the command's."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "serve.py").write_text(RACY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout, stderr of a command."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def schedule_part(text: str) -> str:
    """From the line that says who is delayed."""
    return text[text.index("schedule: ") :]


def test_a_race_is_reported_saved_and_replayed(run: Run, folder: Path) -> None:
    """What the ranks print is dropped during the exploration, and shown in the replay; the rest is the same bytes."""
    code, out, _ = run("explore", "--nproc-per-node", "2", "--schedules", "20", *SCRIPT)
    assert code == FINDINGS
    assert out.startswith("hangcheck: race in 20 schedules (pct, seed 0): ")
    assert "rank 0's check of key 'default_pg/0//plan' (serve.py:11) comes before" in out
    assert "a line of a rank" not in out
    assert out.endswith("replay: hangcheck replay serve.schedule\n")
    saved = Schedule.from_text((folder / "serve.schedule").read_text())
    assert saved.program == "hangcheck run --seed 0 --nproc-per-node 2 serve.py --depth 7"
    again = [run("replay", "serve.schedule") for _ in range(2)]
    assert again[0] == again[1]
    assert again[0][0] == FINDINGS
    assert again[0][1] == 2 * "a line of a rank\n" + schedule_part(out)


def test_a_program_that_does_not_depend_on_the_order_is_ok(run: Run, folder: Path) -> None:
    """Nothing is written."""
    code, out, _ = run("explore", "--nproc-per-node", "2", "--policy", "dfs", "--schedules", "30", "serve.py")
    assert (code, out) == (OK, "hangcheck: ok in 1 schedule (dfs, seed 0): 1 ok\n")
    assert not list(folder.glob("*.schedule"))


def test_a_script_that_hangs_in_order_is_replayed_by_running_it(run: Run, folder: Path) -> None:
    """Its schedule has no delays."""
    (folder / "serve.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n"
                                     "if dist.get_rank(): dist.barrier()\n")  # fmt: skip
    code, out, _ = run("explore", "--seed", "3", "--nproc-per-node", "2", "--schedules", "5", "serve.py")
    assert code == FINDINGS
    assert out.startswith("hangcheck: deadlock in 5 schedules (pct, seed 3): 5 deadlock\n\nschedule: in order\n")
    assert out.endswith("replay: hangcheck run --seed 3 --nproc-per-node 2 serve.py\n")


def test_the_schedule_goes_where_out_says(run: Run, folder: Path) -> None:
    """And the replay line names it; the trace is that of the failing schedule."""
    flags = ["--out", "late.txt", "--trace", "trace.txt", "--policy", "dfs"]
    _, out, _ = run("explore", "--nproc-per-node", "2", *flags, *SCRIPT)
    assert out.endswith("replay: hangcheck replay late.txt\n")
    run("replay", "--trace", "again.txt", "late.txt")
    assert (folder / "trace.txt").read_text() == (folder / "again.txt").read_text()


def test_json_has_counts_delays_and_the_outcome(run: Run) -> None:
    code, out, _ = run("explore", "--nproc-per-node", "2", "--json", "--policy", "dfs", *SCRIPT)
    data = json.loads(out)
    assert (code, data["format"], data["verdict"]) == (FINDINGS, "hangcheck-exploration 1", "race")
    assert data["counts"] == {"ok": 2, "deadlock": 1}
    assert data["delays"] == ["r1 2 set key 'default_pg/0//plan' of TCPStore at localhost:39999 @ serve.py:8"]
    replayed = json.loads(run("replay", "--json", "serve.schedule")[1])
    assert replayed == data["outcome"]


def test_progress_counts_schedules(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.progress.QUIET_S", 0.0)
    _, _, err = run("explore", "--nproc-per-node", "2", "--progress", "--schedules", "20", *SCRIPT)
    assert "hangcheck: 1 of 20 schedules, 0 bad" in err
    assert "hangcheck: 20 of 20 schedules, " in err


def test_a_schedule_of_an_older_program_is_refused(run: Run, folder: Path) -> None:
    """Lines may move, operations may not."""
    run("explore", "--nproc-per-node", "2", "--policy", "dfs", *SCRIPT)
    (folder / "serve.py").write_text("# a comment\n" + RACY)
    assert run("replay", "serve.schedule")[0] == FINDINGS
    (folder / "serve.py").write_text(RACY.replace('"plan"', '"map"'))
    code, _, err = run("replay", "serve.schedule")
    assert code == USAGE
    assert "the schedule no longer fits the program: operation 2 of r1 is 'set key 'default_pg/0//map'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explore", "--schedules", "0", "serve.py"], "schedules=0: give a whole number, 1 or more"),
        (["explore", "--policy", "best", "serve.py"], "invalid choice: 'best'"),
        (["explore", "--out", "nowhere/x", "serve.py"], "--out nowhere/x: cannot be written; give a file that can"),
        (["explore", "missing.py"], "missing.py: there is no such file"),
        (["replay", "missing"], "missing: cannot be read (No such file or directory); give a schedule"),
        (["replay", "serve.py"], "line 1: a schedule begins with 'hangcheck-schedule 1'"),
        (["replay", "pytest.schedule"], "the schedule is not one of a script; run its program: pytest x.py::test"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: list[str], message: str, run: Run, folder: Path) -> None:
    (folder / "pytest.schedule").write_text("hangcheck-schedule 1\nprogram: pytest x.py::test\n")
    code, out, err = run(*arguments)
    assert (code, out) == (USAGE, "")
    assert message in err
    assert err.count("\n") == 1


def test_variables_of_torchrun_go_into_the_schedule(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are set for the replay, whatever they are then."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    run("explore", "--policy", "dfs", *SCRIPT)
    program = Schedule.from_text((folder / "serve.schedule").read_text()).program
    assert program == "PET_NPROC_PER_NODE=2 hangcheck run --seed 0 serve.py --depth 7"
    monkeypatch.setenv("PET_NPROC_PER_NODE", "1")
    assert run("replay", "serve.schedule")[0] == FINDINGS
    assert os.environ["PET_NPROC_PER_NODE"] == "1"


def test_another_process_and_another_hash_seed_give_the_same_bytes(folder: Path) -> None:
    """Of the report and of the schedule."""

    def explored(hash_seed: str) -> tuple[str, str]:
        command = [sys.executable, "-m", "simulator", "explore", "--nproc-per-node", "2", "--schedules", "12", *SCRIPT]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
        return done.stdout, (folder / "serve.schedule").read_text()

    assert explored("0") == explored("4242")
