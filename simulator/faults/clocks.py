"""Ranks that are slow, and clocks that are wrong."""

from __future__ import annotations

from simulator.engine.errors import require
from simulator.faults.injection import Call, Injection
from simulator.faults.values import Chance, Offset, Ranks, Rate, Seconds


def slow(
    injection: Injection,
    *,
    rank: Ranks,
    by: Seconds,
    chance: Chance | None = None,
    since: Seconds | None = None,
    until: Seconds | None = None,
) -> None:
    """A rank is slow: each of its calls (collective, message, creation of a group, request to a store) begins that much
    later; with chance, only so many of them."""
    window = injection.window(since, until)

    def look(call: Call) -> None:
        if window.holds(injection.now_s) and (chance is None or injection.rng.random() < chance):
            injection.spend(call.rank, by, f"late in {call.operation}")

    for one in injection.pick(rank):
        injection.at_calls(one, look)


def skew(injection: Injection, *, rank: Ranks, by: Offset | None = None, drift: Rate | None = None) -> None:
    """The clocks of a rank (time.*) are off by so much, or gain so much a second, and time.sleep with them."""
    given = by is not None or drift is not None
    require(given, f"fault {injection.text!r}: give by, drift, or both")
    for one in injection.pick(rank):
        injection.at_clock(one, by or 0.0, (drift or 0.0) * 1e-6)
    injection.unless_struck(lambda: "no rank that it applies to looked at its clock, or slept by it")
