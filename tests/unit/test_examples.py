"""Each example does what its docstring says, when it is run as its docstring says."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

from simulator.cli import FINDINGS, OK, main

ROOT = Path(__file__).parents[2]
OUTCOMES = {
    "allreduce.py": (OK, "rank 3 of 4: the sum is 6"),
    "skipped_new_group.py": (FINDINGS, "deadlock: creation of group 'everyone' [0, 1, 2] cannot complete"),
}


def how_to_run(path: Path) -> list[str]:
    """The command that the docstring names."""
    lines = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
    return shlex.split(next(line for line in lines if line.strip().startswith("hangcheck run")))


@pytest.mark.parametrize("name", OUTCOMES)
def test_example_ends_as_it_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    program, *argv = how_to_run(ROOT / "examples" / name)
    code, text = OUTCOMES[name]
    assert program == "hangcheck"
    assert argv[-1] == f"examples/{name}"
    assert main(argv) == code
    assert text in capsys.readouterr().out


def test_no_example_is_left_out() -> None:
    runnable = {path.name for path in (ROOT / "examples").glob("*.py") if "hangcheck run" in path.read_text()}
    assert runnable == OUTCOMES.keys()
