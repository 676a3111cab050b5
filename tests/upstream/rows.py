"""One run of an upstream framework, as a row of the table and as data for the test."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from simulator import Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """Attributes: seconds of wall time; peak of the process's memory; whose `findings` are those of the report."""

    title: str
    version: str
    ranks: int
    wall_s: float
    cpu_s: float
    peak_mib: int
    verdict: str
    findings: list[dict[str, Any]]
    report: str
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, title: str, version: str, ranks: int, took_s: tuple[float, float], outcome: Outcome, **facts: Any
    ) -> Row:
        """From the outcome of a run; tracebacks of ranks go into the facts."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found = [finding.to_dict() for finding in outcome.findings]
        errors = {str(rank): record.traceback for rank, record in outcome.ranks.items() if record.traceback}
        first = dict(list(errors.items())[:1])
        return cls(
            title, version, ranks, *took_s, peak, str(outcome.verdict), found, outcome.report(),
            {**facts, "errors": first},
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def line(self) -> str:
        """For the table."""
        return (
            f"{self.title:<52} {self.version:>8} {self.ranks:>6} {self.wall_s:>8.1f} {self.peak_mib:>6} {self.verdict}"
        )


HEAD = f"{'framework and layout':<52} {'version':>8} {'ranks':>6} {'seconds':>8} {'MiB':>6} verdict"


def timed(run: Callable[[], Outcome]) -> tuple[Outcome, tuple[float, float]]:
    """The outcome, and the seconds of wall and of CPU time that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run()
    return outcome, (time.perf_counter() - wall, time.process_time() - cpu)
