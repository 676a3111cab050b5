"""time.*: virtual time in a rank, the real clock elsewhere.

Computation costs no virtual time. A rank that reads the clock again and again without blocking is taken to poll, and
every hundredth reading lets the others run. Not modelled: `datetime.now()`, which reads the system clock in C; the time
zone is the real one; `process_time` and `thread_time` are those of the simulator.
"""

from __future__ import annotations

import operator
import sys
import threading
import time
from typing import Any

from simulator.engine.scheduler import Wait
from simulator.torch_world.context import EPOCH_S, RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.polling import looked
from simulator.torch_world.simulation import Simulation

_OFFSETS_S = {"time": EPOCH_S, "monotonic": 0.0, "perf_counter": 0.0}


def install_clock(patches: Patches, sim: Simulation) -> None:
    """Replace the clock functions of the module `time`."""

    def now(context: RankContext, offset_s: float) -> float:
        looked(sim, "the clock, in a loop")
        if sim.scheduler.lag is not None and sim.sites.is_user(sys._getframe(3).f_code):
            sim.announce("clock", ("clock", context.rank), writes=False)
        context.clock_skew_s += sim.clock_tick_s
        now_s = sim.scheduler.env.now
        ahead_s = 0.0 if sim.faults is None else sim.faults.clock_s(context.rank, now_s)
        return float(now_s + context.clock_skew_s) + ahead_s + offset_s

    def read(offset_s: float) -> Any:
        return lambda context, real: now(context, offset_s)

    def read_ns(offset_s: float) -> Any:
        return lambda context, real: round((now(context, 0.0) + offset_s) * 1e9)

    for name, offset_s in _OFFSETS_S.items():
        per_rank(patches, sim, time, name, read(offset_s))
        per_rank(patches, sim, time, f"{name}_ns", read_ns(offset_s))
    _install_calendar(patches, sim)
    per_rank(patches, sim, time, "sleep", lambda context, real, seconds, /: _sleep(sim, seconds))


def _install_calendar(patches: Patches, sim: Simulation) -> None:
    """What takes the present moment if no other is given."""

    def clock(context: RankContext, real: Any, number: int, /) -> float:
        return time.time() if number == time.CLOCK_REALTIME else time.monotonic()

    def clock_ns(context: RankContext, real: Any, number: int, /) -> int:
        return time.time_ns() if number == time.CLOCK_REALTIME else time.monotonic_ns()

    def of_seconds(context: RankContext, real: Any, seconds: float | None = None, /) -> Any:
        return real(time.time() if seconds is None else seconds)

    def of_tuple(context: RankContext, real: Any, *given: Any) -> Any:
        return real(*given) if len(given) == time_at[real.__name__] else real(*given, time.localtime())

    time_at = {"strftime": 2, "asctime": 1}
    per_rank(patches, sim, time, "clock_gettime", clock)
    per_rank(patches, sim, time, "clock_gettime_ns", clock_ns)
    for name in ("localtime", "gmtime", "ctime"):
        per_rank(patches, sim, time, name, of_seconds)
    for name in time_at:
        per_rank(patches, sim, time, name, of_tuple)


def _sleep(sim: Simulation, seconds: Any) -> None:
    duration = seconds if isinstance(seconds, float) else operator.index(seconds)
    if duration != duration:
        raise ValueError("Invalid value NaN (not a number)")
    if duration < 0:
        raise ValueError("sleep length must be non-negative")
    if duration > threading.TIMEOUT_MAX:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")
    if sim.faults is not None and (context := sim.here()) is not None:
        duration = sim.faults.real_s(context.rank, duration)
    sim.scheduler.sleep(duration, Wait("sleep", f"time.sleep({seconds:g})", sim.sites.capture(2)))
