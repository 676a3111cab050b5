"""What came of an exploration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from simulator.analysis.findings import Finding, Verdict
from simulator.exploration.schedule import Schedule
from simulator.exploration.trial import Trial
from simulator.outcome import Outcome, SimulationFailed
from simulator.report.exploration import render_exploration


class ExplorationFailed(SimulationFailed):
    """Some schedule of the code under test is bad; the message is the report, `exploration` has the data."""

    def __init__(self, exploration: Exploration) -> None:
        super().__init__(exploration.outcome, exploration.report())
        self.exploration = exploration


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What came of running a program under many schedules.

    Attributes:
        verdict: that of the run in order; `race` if the outcome depends on the schedule.
        findings: of a race one, else those of the run in order.
        schedule: the shortest schedule found that ends badly (or with other results); without delays: the run in order.
        outcome: what came of that schedule.
        trials: all schedules, in order; the first one is the run in order.
        exhausted: there is no other schedule to try within the depth.
        notes: what else a reader should know.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    schedule: Schedule
    outcome: Outcome
    trials: tuple[Trial, ...]
    policy: str
    depth: int
    seed: int
    exhausted: bool
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    @property
    def counts(self) -> dict[str, int]:
        """Verdict to the number of schedules that had it, the most frequent first."""
        return dict(Counter(trial.verdict for trial in self.trials).most_common())

    @property
    def strikes(self) -> list[tuple[str, int, str]]:
        """Each fault that was injected, in how many schedules it struck, and why it did not in the first one of those
        where it did not."""
        by_place = zip(*(trial.faults for trial in self.trials), strict=True)
        return [
            (same[0][0], sum(not why for _, why in same), next((why for _, why in same if why), ""))
            for same in by_place
        ]

    def report(self) -> str:
        """As text: the findings, and the report of the failing schedule."""
        return render_exploration(self)

    def raise_if_bad(self) -> Exploration:
        """Return this if it is ok.

        Raises:
            ExplorationFailed: with the report as its message.
        """
        if not self.ok:
            raise ExplorationFailed(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": "hangcheck-exploration 1",
            "verdict": str(self.verdict),
            "policy": self.policy,
            "depth": self.depth,
            "seed": self.seed,
            "schedules": len(self.trials),
            "exhausted": self.exhausted,
            "counts": self.counts,
            "findings": [finding.to_dict() for finding in self.findings],
            "delays": [str(delay) for delay in self.schedule.delays],
            "outcome": self.outcome.to_dict(),
            "notes": list(self.notes),
            **self._strikes_data(),
        }

    def _strikes_data(self) -> dict[str, Any]:
        told = [{"fault": text, "schedules": many} for text, many, _ in self.strikes]
        return {"strikes": told} if told else {}
