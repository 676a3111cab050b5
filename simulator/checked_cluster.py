"""A cluster for tests: its run fails unless the outcome is ok or the test asked for the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.cluster import Cluster
from simulator.engine.errors import UsageError
from simulator.exploration.exploration import Exploration
from simulator.exploration.explore import explore_program
from simulator.exploration.program import OfCluster
from simulator.outcome import Outcome

MARK_DEFAULTS: dict[str, Any] = {"schedules": 100, "policy": "pct", "depth": 3, "workers": 1}


class CheckedCluster(Cluster):
    """See `Cluster`.

    Attributes:
        exploring: how to explore, if each run is to be one of many schedules (see `explore_program`).
        save: called with an exploration whose schedule is to be kept.
    """

    exploring: Mapping[str, Any] | None = None
    save: Callable[[Exploration], None] = staticmethod(lambda exploration: None)

    def run(self, *, check: bool = True) -> Outcome:
        """Simulate all cohorts to the end.

        Under the mark `hangcheck_explore` this is done in many schedules, and the outcome is that of the failing one,
        or of the run in order.

        Raises:
            SimulationFailed: with the report as its message, if `check` and the outcome is not ok.
        """
        if self.exploring is not None:
            return self._explored(self.exploring, check)
        outcome = super().run()
        return outcome.raise_if_bad() if check else outcome

    def _explored(self, how: Mapping[str, Any], check: bool) -> Outcome:
        exploration = explore_program(OfCluster(lambda: self, self.ranks), **how)
        if exploration.schedule.delays:
            self.save(exploration)
        return exploration.raise_if_bad().outcome if check else exploration.outcome


def marked(given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What the mark `hangcheck_explore(...)` asks for.

    Raises:
        UsageError: it has an argument that it does not know.
    """
    known = {**MARK_DEFAULTS, "seed": seed}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise UsageError(f"hangcheck_explore({', '.join(unknown)}): give {', '.join(known)} by name")
    return {**known, **given}
