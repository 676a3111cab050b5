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
        never_struck: called with a line about each fault that never struck, if all is well otherwise.
    """

    exploring: Mapping[str, Any] | None = None
    save: Callable[[Exploration], None] = staticmethod(lambda exploration: None)
    never_struck: Callable[[str], None] = staticmethod(lambda text: None)

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
        if check:
            outcome.raise_if_bad()
        for fault in outcome.faults:
            if fault.first is None:
                self.never_struck(f"the fault [{fault.text}] never struck: {fault.why_not}")
        return outcome

    def _explored(self, how: Mapping[str, Any], check: bool) -> Outcome:
        exploration = explore_program(OfCluster(lambda: self, self.ranks), **how)
        if exploration.schedule.delays:
            self.save(exploration)
        if check:
            exploration.raise_if_bad()
        for text, schedules, why in exploration.strikes:
            if not schedules:
                self.never_struck(f"the fault [{text}] never struck in {len(exploration.trials)} schedules: {why}")
        return exploration.outcome


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
