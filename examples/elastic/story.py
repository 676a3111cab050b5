"""An elastic example as a report: what was tried, who did what when, what came of it, what hangcheck found.

STORY = Story(title=..., text=..., cluster=lambda **options: Cluster(**options).launch(...))
tell(STORY)
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace

from ranks import Diary

from simulator import Cluster, Outcome, Verdict

WIDTH = 116


@dataclass(frozen=True, kw_only=True)
class Story:
    """One example."""

    name: str
    """Of the file that has it."""
    title: str
    text: str
    """What is tried, for a reader who has not seen the code."""
    cluster: Callable[[], Cluster]
    """Makes the cluster that runs it."""
    expected: Verdict = Verdict.OK
    remark: Callable[[], str] = lambda: ""
    """Something to add at the end of the report."""

    def run(self) -> Outcome:
        """Simulate it. What a rank prints when it dies is left out: the report says it."""
        with redirect_stderr(io.StringIO()):
            outcome = self.cluster().run()
        return replace(outcome, replay=f"python examples/elastic/{self.name}.py")

    def report(self) -> str:
        """The whole report."""
        outcome = self.run()
        parts = [
            self.title + "\n" + "=" * len(self.title),
            textwrap.fill(" ".join(self.text.split()), WIDTH),
            _section("What happened (virtual time)", timeline(outcome)),
            _section("How it ended", endings(outcome)),
            self.remark(),
            "What hangcheck found\n" + textwrap.indent(outcome.report().rstrip(), "  "),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join((title, *lines)) if lines else ""


def tell(story: Story) -> None:
    """Print the report, as `python examples/elastic/NAME.py` does."""
    print(story.report(), end="")


def timeline(outcome: Outcome) -> list[str]:
    """One line for all ranks that entered a state at the same time for the same reason."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    places: dict[tuple[str, str, str], tuple[float, int]] = {}
    for rank, diary in sorted(outcome.results.items()):
        for place, step in enumerate(diary.life.steps if isinstance(diary, Diary) else ()):
            row = (f"{step.at_s:9.3f}", str(step.state), step.why)
            rows.setdefault(row, []).append(rank)
            places[row] = min(places.get(row, (float(row[0]), place)), (float(row[0]), place))
    for event in outcome.trace:
        fault, deed = event.detail if event.kind == "fault" else ("", "")
        if str(deed).startswith("killed"):
            row = (f"{event.time_s:9.3f}", "killed", str(fault))
            rows.setdefault(row, []).append(event.rank)
            places[row] = (event.time_s, -1)
    return [
        line
        for row in sorted(rows, key=places.__getitem__)
        for line in _wrapped(f"{row[0]} s  {spans(rows[row]):<12} {row[1]}: ", row[2])
    ]


def endings(outcome: Outcome) -> list[str]:
    """How each rank ended, like ones together."""
    rows: dict[str, list[int]] = {}
    for rank, record in sorted(outcome.ranks.items()):
        diary = outcome.results.get(rank)
        if not isinstance(diary, Diary):
            text = f"{record.status} (exit code {record.exit_code})"
            text = text if record.status != "stuck" else f"stuck: {stuck_where(outcome, rank)}"
            rows.setdefault(text, []).append(rank)
            continue
        served = ", ".join(f"{steps} steps by {met} rank{'s' * (met > 1)}" for met, steps in diary.served)
        rows.setdefault("turned away, see above" if diary.error else f"served {served}", []).append(rank)
    return [line for text, ranks in rows.items() for line in _wrapped(f"  {spans(ranks):<12} ", text)]


def stuck_where(outcome: Outcome, rank: int) -> str:
    """What a rank that has not ended does, and where."""
    return next(
        f"{side.doing}{f', {side.site.place}' if side.site else ''}" for side in outcome.standing if rank in side.ranks
    )


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * min(len(head), 30)) or [
        head.rstrip(": ")
    ]


def spans(ranks: Iterable[int]) -> str:
    """`0-3, 5` for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
