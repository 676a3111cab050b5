"""Each elastic example reports what it is there to show, to the letter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "elastic"
NAMES = sorted(path.stem for path in (HERE / "reports").glob("*.txt"))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports an example as `python examples/elastic/NAME.py` would; forgets it afterwards."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(HERE))
    own = {path.stem for path in HERE.glob("*.py")}
    yield importlib.import_module
    for name in own & sys.modules.keys():
        del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_report_is_the_golden_one(name: str, module: Any) -> None:
    """`python examples/elastic/write_reports.py` writes them; a difference is a change that users see."""
    story = module(name).STORY
    assert story.name == name
    assert story.report() == (HERE / "reports" / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_the_one_that_the_story_tells(name: str, module: Any) -> None:
    """Right programs are ok; the wrong one is found."""
    story = module(name).STORY
    assert story.run().verdict is story.expected


def test_no_example_is_without_a_report(module: Any) -> None:
    """And the docstring of each has the command that runs it."""
    names = module("write_reports").names()
    assert names == NAMES
    for name in names:
        assert f"python examples/elastic/{name}.py" in (HERE / f"{name}.py").read_text()
