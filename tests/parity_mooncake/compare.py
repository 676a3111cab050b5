"""Real and simulated observations of one scenario: they agree, differ as documented, or differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from tests.parity_mooncake.known import Difference, known
from tests.parity_mooncake.records import Observed, Record
from tests.parity_mooncake.scenario import Scenario

NOTHING = Record("", None, 0.0)


@dataclass(frozen=True, slots=True)
class Odd:
    """One observation that differs, of one process; None where a side has none."""

    process: str
    real: Record | None
    simulated: Record | None

    @property
    def name(self) -> str:
        return (self.real or self.simulated or NOTHING).name

    @property
    def told(self) -> str:
        sides = [side.told if side is not None else "nothing" for side in (self.real, self.simulated)]
        return f"process {self.process}\n      real       {sides[0]}\n      simulated  {sides[1]}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides of a scenario.

    Attributes:
        odd: undocumented differences.
        documented: those that are known, with their reasons.
        stale: known differences that are none any more.
    """

    scenario: Scenario
    odd: tuple[Odd, ...]
    documented: tuple[tuple[Odd, Difference], ...]
    stale: tuple[Difference, ...]

    @property
    def verdict(self) -> str:
        """For the table."""
        if self.odd:
            return "differs"
        if self.stale:
            return "agrees, though a difference is documented"
        reasons = "; ".join(dict.fromkeys(difference.reason for _, difference in self.documented))
        return f"differs (documented: {reasons})" if reasons else "agrees"

    @property
    def is_fine(self) -> bool:
        return not self.odd and not self.stale


def compare(scenario: Scenario, real: Observed, simulated: Observed) -> Comparison:
    """Record by record; after a record that differs in name, the rest of a process says nothing."""
    expected = known(scenario.name)
    found = [odd for p in scenario.processes for odd in _differences(p.label, real, simulated)]
    documented = [(odd, why) for odd in found for why in expected if why.fits(odd.process, odd.name)]
    explained = [odd for odd, _ in documented]
    used = [why for _, why in documented]
    return Comparison(
        scenario,
        tuple(odd for odd in found if odd not in explained),
        tuple(documented),
        tuple(why for why in expected if why not in used),
    )


def _differences(label: str, real: Mapping[str, list[Record]], simulated: Mapping[str, list[Record]]) -> list[Odd]:
    found = []
    for theirs, ours in zip_longest(real.get(label, []), simulated.get(label, [])):
        if theirs is None or ours is None or not theirs.agrees(ours):
            found.append(Odd(label, theirs, ours))
            if theirs is None or ours is None or theirs.name != ours.name:
                break
    return found
