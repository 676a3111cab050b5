"""The fewest delays that lead to the same outcome.

First each delay of the failing schedule alone, then each delay that the run in order suggests, then A. Zeller and
R. Hildebrandt's ddmin ("Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002) over the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.exploration.schedule import Delay

if TYPE_CHECKING:
    from simulator.exploration.trial import Trial

RUNS_MAX = 400
"""Trials that shrinking may cost."""

Delays = tuple[Delay, ...]


class Shrinker:
    """Shrinks one schedule.

    Args:
        run: a trial with these delays.
        fails: whether a trial has the outcome that is looked for.
    """

    def __init__(self, run: Callable[[Delays], Trial], fails: Callable[[Trial], bool]) -> None:
        self._run = run
        self._fails = fails
        self._runs = 0

    def shrunk(self, trial: Trial, suggested: Sequence[Delay]) -> Trial:
        """A trial with the same outcome and no more delays than `trial` has."""
        if len(trial.delays) <= 1:
            return trial
        known = {delay.key for delay in trial.delays}
        singles = [*trial.delays, *(delay for delay in suggested if delay.key not in known)]
        for delay in singles:
            found = self._attempt((delay,))
            if found is not None:
                return found
        return self._minimised(trial)

    def _attempt(self, delays: Delays) -> Trial | None:
        if self._runs >= RUNS_MAX:
            return None
        self._runs += 1
        trial = self._run(delays)
        return trial if self._fails(trial) else None

    def _minimised(self, best: Trial) -> Trial:
        """Leave out ever smaller pieces."""
        pieces = 2
        while len(best.delays) > 1:
            found = next(filter(None, map(self._attempt, _complements(best.delays, pieces))), None)
            if found is not None and len(found.delays) < len(best.delays):
                best, pieces = found, max(pieces - 1, 2)
            elif pieces >= len(best.delays):
                break
            else:
                pieces = min(2 * pieces, len(best.delays))
        return best


def _complements(delays: Delays, pieces: int) -> list[Delays]:
    """The delays without one of `pieces` pieces of about the same length."""
    bounds = [len(delays) * index // pieces for index in range(pieces + 1)]
    return [delays[:start] + delays[stop:] for start, stop in pairwise(bounds)]
