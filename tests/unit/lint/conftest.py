"""Small trees of source for the linter."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.lint.options import LintOptions
from simulator.lint.run import lint
from simulator.lint.violations import Violation

Linted = Callable[..., list[Violation]]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes files, given as name=text or as a mapping, into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return tmp_path

    return write


@pytest.fixture
def violations(tree: Callable[..., Path]) -> Linted:
    """Lints one text, or a mapping of files; options as keywords."""

    def run(given: str | dict[str, str], **options: object) -> list[Violation]:
        files = {"code.py": given} if isinstance(given, str) else given
        root = tree(files)
        settings = LintOptions(root=root, **options)  # type: ignore[arg-type]
        return list(lint(["."], settings).violations)

    return run


@pytest.fixture
def found(violations: Linted) -> Callable[..., list[tuple[str, int]]]:
    """The same, as codes with lines."""

    def run(given: str | dict[str, str], **options: object) -> list[tuple[str, int]]:
        return [(one.code, one.span.line) for one in violations(given, **options)]

    return run
