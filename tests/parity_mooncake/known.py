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


LEAVING = "a process that leaves without an error stays a member, and its peers wait for it"
DESTROYING = "a member that destroys its side of a group stays a member, and the others wait for it"
STOPPED = "SIGSTOP is refused with an error"
PARTS = "a large collective is one piece, so one that meets a small one ends with it"

DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "leaves_with_status_0": (Difference("all_reduce: (wait|local_success)", LEAVING),),
    "leaves_in_good_order": (Difference("all_reduce: (wait|local_success)", DESTROYING),),
    "destroys_a_sub_group_alone": (
        Difference("sub: (wait|local_success)", DESTROYING, ("0", "2")),
        Difference("world|end", DESTROYING, ("1",)),
    ),
    "stopped_process": (Difference("end", STOPPED, ("2",)),),
    "mismatch_of_many_parts": (Difference("next|end", PARTS, ("1",)),),
}
