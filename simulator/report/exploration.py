"""The report of an exploration: its verdict, what depends on the order, and the report of the failing schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.report.text import render, render_finding

if TYPE_CHECKING:
    from simulator.exploration.exploration import Exploration
    from simulator.exploration.schedule import Delay
    from simulator.outcome import Outcome


def render_exploration(exploration: Exploration) -> str:
    """The whole report."""
    blocks = [_head(exploration), *exploration.notes, *_strikes(exploration)]
    if exploration.findings != exploration.outcome.findings:
        blocks += [render_finding(finding) for finding in exploration.findings]
    if not exploration.ok or exploration.outcome.findings:
        blocks.append(render_schedule(exploration.outcome, exploration.schedule.delays).rstrip("\n"))
    if exploration.outcome.replay and exploration.verdict == "race" and not exploration.outcome.findings:
        blocks.append(f"replay: {exploration.outcome.replay}")
    return "\n\n".join(blocks) + "\n"


def render_schedule(outcome: Outcome, delays: Sequence[Delay]) -> str:
    """Who was delayed, and what came of it."""
    said = [f"schedule: {_delayed(delay)}" for delay in delays] or ["schedule: in order"]
    return "\n".join([*said, render(outcome)])


def _delayed(delay: Delay) -> str:
    place = f" at {delay.place}" if delay.place else ""
    return f"{delay.task} is delayed{place}\n  before its operation {delay.number}, {delay.what}"


def _strikes(exploration: Exploration) -> list[str]:
    """What came of the faults in all schedules."""
    lines, number = ["faults injected:"], len(exploration.trials)
    for text, many, why in exploration.strikes:
        came = f"struck in {many} of {number} schedules" if many else f"never struck in {number} schedules"
        lines += [f"  {text}", f"    {came}{'' if many else f': {why}'}"]
    return ["\n".join(lines)] if len(lines) > 1 else []


def _head(exploration: Exploration) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in exploration.counts.items())
    number = len(exploration.trials)
    schedules = f"{number} schedule" if number == 1 else f"{number} schedules"
    done = f"; no other order within {exploration.depth} delays" if exploration.exhausted and number > 1 else ""
    how = f"{exploration.policy}, seed {exploration.seed}"
    return f"hangcheck: {exploration.verdict} in {schedules} ({how}): {counts}{done}"
