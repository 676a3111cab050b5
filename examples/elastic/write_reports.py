"""Write the reports of the elastic examples to `examples/elastic/reports/`, where the tests look for them.

    python examples/elastic/write_reports.py                 all of them
    python examples/elastic/write_reports.py ep4_to_ep6      some

Run it in the root of the checkout after a change that alters a report on purpose, and read the difference.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from story import Story

HERE = Path(__file__).resolve().parent
NOT_STORIES = ("ranks", "story", "on_mooncake", "write_reports")


def names() -> list[str]:
    """Of all examples that tell a story."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_STORIES)


def story_of(name: str) -> Story:
    """The story of one example."""
    story: Story = importlib.import_module(name).STORY
    return story


def main() -> None:
    (HERE / "reports").mkdir(exist_ok=True)
    for name in sys.argv[1:] or names():
        (HERE / "reports" / f"{name}.txt").write_text(story_of(name).report())
        print(f"wrote reports/{name}.txt")


if __name__ == "__main__":
    main()
