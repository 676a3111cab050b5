"""The end of a rank's process, and its second start."""

from __future__ import annotations

from functools import partial

from simulator.engine.errors import require
from simulator.faults.injection import Injection
from simulator.faults.values import How, Moment, Ranks, Seconds


def kill(injection: Injection, *, rank: Ranks, at: Moment, how: How = How.KILL, restart: Seconds | None = None) -> None:
    """End the process of a rank: as SIGKILL does, or by an exception that code may catch (how=raise). With restart, a
    new process of the same rank runs the same function that much later."""
    clean = restart is None or how is How.KILL
    require(clean, f"fault {injection.text!r}: restart goes with how=kill; after an exception the code decides")
    for one in injection.pick(rank):
        end = partial(injection.kill, one, restart) if how is How.KILL else partial(injection.interrupt, one)
        injection.at_moment(at, one, end)
