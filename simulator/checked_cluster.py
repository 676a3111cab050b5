"""A cluster for tests: its run fails unless the outcome is ok or the test asked for the outcome."""

from __future__ import annotations

from simulator.cluster import Cluster
from simulator.outcome import Outcome


class CheckedCluster(Cluster):
    """See `Cluster`."""

    def run(self, *, check: bool = True) -> Outcome:
        """Simulate all cohorts to the end.

        Raises:
            SimulationFailed: with the report as its message, if `check` and the outcome is not ok.
        """
        outcome = super().run()
        return outcome.raise_if_bad() if check else outcome
