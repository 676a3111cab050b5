"""Runs of unmodified frameworks: only where they are asked for, with a table in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.rows import HEAD, Row

REPOSITORY = Path(__file__).parents[2]
TABLE = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m upstream tests/upstream`, as `make upstream` calls it; else nothing here."""
    return None if config.option.markexpr == "upstream" else True


class Play:
    """Runs scenarios of one version in a process of their own: versions of a framework do not live side by side."""

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._config = config
        self._folder = folder

    def __call__(self, framework: str, version: str, scenario: str, *, timeout_s: float = 900.0) -> list[Row]:
        """The rows of the scenario."""
        answer = self._folder / "rows.json"
        command = [sys.executable, "-m", "tests.upstream.play", framework, version, scenario, "--json", str(answer)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        data: list[dict[str, Any]] = json.loads(answer.read_text())
        rows = [Row(**row) for row in data]
        self._config.stash.setdefault(TABLE, []).extend(row.line() for row in rows)
        return rows


@pytest.fixture
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Call it with framework, version and the name of a function of its `_runs` module."""
    return Play(request.config, tmp_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table."""
    lines = config.stash.get(TABLE, [])
    if lines:
        terminalreporter.section("unmodified frameworks")
        terminalreporter.write_line(HEAD)
        for line in lines:
            terminalreporter.write_line(line)
