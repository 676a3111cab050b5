"""What came of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.analysis.findings import Finding, Side, Verdict
from simulator.engine.errors import HangcheckError
from simulator.engine.lag import Lag
from simulator.engine.scheduler import End
from simulator.engine.trace import Trace
from simulator.records import InjectedFault, RankRecord
from simulator.report.faults import faults_data
from simulator.report.text import render


class SimulationFailed(HangcheckError, AssertionError):
    """The code under test is bad; the message is the report, `outcome` has the data."""

    def __init__(self, outcome: Outcome, report: str = "") -> None:
        super().__init__(report or outcome.report())
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        results: global rank to what its function returned, for the ranks that returned.
        ranks: global rank to how it fared.
        findings: what is wrong, the explanation first; warnings included.
        end: why the run ended.
        virtual_s: virtual seconds that passed.
        lag: under a schedule, who fell behind where, and the log of operations.
        faults: those that were asked for, and what came of them; `faults_end_s`: from when on none strikes.
        standing: where the ranks were that had not ended.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    results: dict[int, Any]
    ranks: dict[int, RankRecord]
    trace: Trace
    seed: int
    end: End
    virtual_s: float
    replay: str
    lag: Lag | None = None
    faults: tuple[InjectedFault, ...] = ()
    faults_end_s: float | None = None
    standing: tuple[Side, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    def report(self) -> str:
        """The findings as text, with seed and replay line."""
        return render(self)

    def raise_if_bad(self) -> Outcome:
        """Return this outcome if it is ok.

        Raises:
            SimulationFailed: with the report as its message.
        """
        if not self.ok:
            raise SimulationFailed(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": "hangcheck-outcome 1",
            "verdict": str(self.verdict),
            "seed": self.seed,
            "end": self.end.value,
            "virtual_s": self.virtual_s,
            "findings": [finding.to_dict() for finding in self.findings],
            "ranks": {
                str(rank): {
                    "cohort": record.cohort,
                    "status": record.status,
                    "error": record.error,
                    "traceback": record.traceback,
                    "exit_code": None if record.status == "stuck" else record.exit_code,
                }
                for rank, record in sorted(self.ranks.items())
            },
            "replay": self.replay,
            **({"faults": faults_data(self.faults)} if self.faults else {}),
        }
