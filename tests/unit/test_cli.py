"""The command `hangcheck` says what is wrong in one line and with its exit code."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from simulator import cli, run_command
from simulator.cli import FAULT, FINDINGS, INTERRUPTED, OK, USAGE, main
from simulator.engine.errors import SimulatorFault

ROOT = Path(cli.__file__).parents[1]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty script `empty.py` in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "empty.py"
    path.write_text("")
    return path


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give a command: demo, run"),
        (["walk"], "argument COMMAND: invalid choice: 'walk'"),
        (["run"], "the following arguments are required: training_script"),
        (["run", "nowhere.py"], "nowhere.py: there is no such file; give the path of a Python script"),
        (["run", "."], ".: not a file; give the path of a Python script, or a module with -m"),
        (["run", "-m", "nowhere.at_all"], "-m nowhere.at_all: there is no module 'nowhere' in "),
        (["run", "-m", ".relative"], "-m .relative: there is no module ''"),
        (["run", "--nnodes", "0", "empty.py"], "--nnodes 0: give a number of nodes, 1 or more, or a range MIN:MAX"),
        (["run", "--nnodes", "3:2", "empty.py"], "--nnodes 3:2: give a number of nodes"),
        (["run", "--nnodes", "1:2:3", "empty.py"], "--nnodes 1:2:3: give a number of nodes"),
        (["run", "--nnodes", "few", "empty.py"], "--nnodes few: give a number of nodes"),
        (["run", "--nproc-per-node", "0", "empty.py"], "--nproc-per-node 0: give a number of ranks per node, 1 or"),
        (["run", "--nproc-per-node=-2", "empty.py"], "--nproc-per-node -2: give a number of ranks per node, 1 or"),
        (["run", "--nproc-per-node", "gpu", "empty.py"], "--nproc-per-node gpu: give a number, 1 or more"),
        (["run", "--nnodes", "70000", "empty.py"], "at most 65536 ranks can be simulated"),
        (["run", "--master-port", "0", "empty.py"], "master port 0: give a port from 1 to 65535"),
        (["run", "--master-port", "x", "empty.py"], "invalid int value: 'x'"),
        (["run", "--max-restarts", "-1", "empty.py"], "--max-restarts -1: give 0 or more"),
        (["run", "--no-python", "empty.py"], "--no-python: ranks are simulated inside this Python; leave it out"),
        (["run", "--virtual-local-rank", "empty.py"], "--virtual-local-rank is not simulated; leave it out"),
        (["run", "--seed", "-1", "empty.py"], "argument --seed: '-1': give a whole number, 0 or more"),
        (["run", "--spin-limit", "0", "empty.py"], "argument --spin-limit: '0': give a number of seconds above 0"),
        (["run", "--carrier", "boat", "empty.py"], "argument --carrier: invalid choice: 'boat'"),
        (["run", "--on-hang", "cry", "empty.py"], "argument --on-hang: invalid choice: 'cry'"),
    ],
)
def test_bad_usage_is_one_line(argv: list[str], message: str, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hangcheck: error: ")
    assert message in err
    assert err.count("\n") == 1, err


def test_a_script_that_cannot_be_read_is_named(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Simulated refusal: whoever runs the tests may be allowed to read everything."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("simulator.launcher.open", refuse, raising=False)
    assert main(["run", "empty.py"]) == USAGE
    assert capsys.readouterr().err == (
        "hangcheck: error: empty.py: cannot be read (Permission denied); give a Python script that can\n"
    )


def test_ok_and_findings(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "empty.py"]) == OK
    assert capsys.readouterr().out == "hangcheck: ok (0 findings, 1 rank, seed 0, 0 s of virtual time)\n"
    script.write_text("raise ValueError('no')")
    assert main(["run", "empty.py"]) == FINDINGS
    assert "ValueError: no" in capsys.readouterr().out


@pytest.mark.parametrize("fault", [SimulatorFault("lost the\nbaton"), ZeroDivisionError("lost the baton")])
@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_its_own_is_not_blamed_on_the_user(
    fault: Exception, debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise fault

    monkeypatch.setattr(run_command, "main", fail)
    assert main(["--debug", "run"] if debug else ["run"]) == FAULT
    trace, _, line = capsys.readouterr().err.rstrip("\n").rpartition("\n")
    assert line.startswith(
        f"hangcheck: fault of hangcheck itself, not of your code: {type(fault).__name__}: lost the baton; please report"
    )
    assert ("Traceback" in trace) is debug
    assert ("hangcheck --debug run" in line) is not debug


def test_ctrl_c_is_no_fault(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "main", interrupt)
    assert main(["run"]) == INTERRUPTED
    assert capsys.readouterr().err == "hangcheck: interrupted\n"


def test_a_command_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "demo", cli.Command("", "simulator.scenarios.of_tomorrow"))
    assert main(["demo"]) == USAGE
    assert "demo: not part of this installation (simulator.scenarios.of_tomorrow is missing)" in capsys.readouterr().err


def test_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == OK
    assert "EP4 -> EP6" in capsys.readouterr().out


def test_help_and_version_need_no_torch() -> None:
    code = (
        "from simulator.cli import main\ntry: main()\nexcept SystemExit:\n import sys; sys.exit('torch' in sys.modules)"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code, flag], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "hangcheck" in done.stdout


def test_the_console_script_leads_here() -> None:
    scripts = metadata.distribution("hangcheck").entry_points.select(group="console_scripts", name="hangcheck")
    assert [script.value for script in scripts] == ["simulator.cli:main"]


def test_python_dash_m_is_the_same_command() -> None:
    """A process of its own, so that exit code and streams are the real ones."""
    command = [sys.executable, "-m", "simulator", "run", "nowhere.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert done.stderr.startswith("hangcheck: error: nowhere.py: there is no such file")
