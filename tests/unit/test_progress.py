"""The progress line comes late, on a terminal or when asked for, and only on stderr."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator import progress
from simulator.progress import Progress, describe


def scheduler() -> Any:
    """Rank 0 has ended, rank 1 lives on in a thread of its own."""
    tasks = [SimpleNamespace(owner=SimpleNamespace(rank=rank), alive=alive)
             for rank, alive in ((0, False), (1, False), (1, True))]  # fmt: skip
    return SimpleNamespace(env=SimpleNamespace(now=1.5), tasks=tasks, switches=1234)


def test_the_line_has_time_ranks_and_switches() -> None:
    assert describe(scheduler()) == "hangcheck: 1.500 s of virtual time, 1 of 2 ranks alive, 1234 switches"


@pytest.mark.parametrize(
    ("wanted", "quiet_s", "lines"), [(True, 0.0, 2), (True, 60.0, 0), (False, 0.0, 0), (None, 0.0, 0)]
)
def test_it_shows_when_it_should(
    wanted: bool | None,
    quiet_s: float,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", quiet_s)
    with Progress(wanted) as line:
        line.tick(scheduler())
        line.tick(scheduler())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [describe(scheduler())] * lines


def test_on_a_terminal_the_line_is_rewritten_and_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(True) as line:
        line.tick(scheduler())
        line.tick(scheduler())
    err = capsys.readouterr().err
    assert err.count(describe(scheduler())) >= 2
    assert err.endswith("\x1b[2K"), "the line is erased at the end"
