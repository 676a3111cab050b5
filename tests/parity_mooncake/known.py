"""Differences that are known: limits of the model, each with the scenarios that show it (docs/mooncake.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs in a scenario.

    Attributes:
        names: pattern for the names of the observations.
        processes: labels; empty: all.
    """

    names: str
    reason: str
    processes: tuple[str, ...] = ()

    def fits(self, process: str, name: str) -> bool:
        """It explains this observation of this process."""
        return (not self.processes or process in self.processes) and re.fullmatch(self.names, name) is not None


def known(scenario: str) -> tuple[Difference, ...]:
    """Those of a scenario."""
    return DIFFERENCES.get(scenario, ())


DIFFERENCES: dict[str, tuple[Difference, ...]] = {}
