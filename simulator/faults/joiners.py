"""Ranks that start at another time than they should, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from simulator.engine.errors import require
from simulator.faults.injection import Injection
from simulator.faults.values import CohortName, Ranks, Seconds


def late(injection: Injection, *, by: Seconds, rank: Ranks | None = None, cohort: CohortName | None = None) -> None:
    """Ranks, or all ranks of a cohort (scale-1 is the first that joins), start that much later."""
    _shift(injection, rank, cohort, "started late", lambda at_s, end_s: min(at_s + by, max(at_s, end_s)))


def early(injection: Injection, *, by: Seconds, rank: Ranks | None = None, cohort: CohortName | None = None) -> None:
    """Ranks, or all ranks of a cohort, start that much earlier, but not before the run does."""
    _shift(injection, rank, cohort, "started early", lambda at_s, end_s: max(0.0, at_s - by))


def missing(injection: Injection, *, rank: Ranks | None = None, cohort: CohortName | None = None) -> None:
    """Ranks, or all ranks of a cohort, never start; or start when faults end, if they do."""
    _shift(injection, rank, cohort, "never started", lambda at_s, end_s: max(at_s, end_s))


def _shift(
    injection: Injection,
    ranks: Ranks | None,
    cohort: CohortName | None,
    verb: str,
    shifted_s: Callable[[float, float], float],
) -> None:
    one = (ranks is None) != (cohort is None)
    require(one, f"fault {injection.text!r}: give either rank or cohort")
    meant = None if ranks is None else injection.pick(ranks)

    def start_s(rank: int, of: str, at_s: float) -> float | None:
        if of != cohort if meant is None else rank not in meant:
            return at_s
        start = shifted_s(at_s, injection.window().until_s)
        if start == at_s:
            return at_s
        injection.struck(rank, verb if start == float("inf") else f"started at {start:g} s, not at {at_s:g} s")
        if start == float("inf"):
            injection.record.ended[rank] = None
            return None
        return start

    injection.unless_struck(lambda: f"no rank of cohort {cohort} was there to shift" if cohort else "nothing changed")
    injection.at_start(start_s)
