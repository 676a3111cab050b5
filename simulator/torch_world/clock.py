"""time.*: virtual time in a rank, the real clock elsewhere.

Computation costs no virtual time. A rank that reads the clock again and again without blocking is taken to poll, and
every hundredth reading lets the others run. Not modelled: datetime.now(), which reads the system clock in C.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from simulator.engine.scheduler import Wait
from simulator.torch_world.context import EPOCH_S
from simulator.torch_world.patches import Patches
from simulator.torch_world.polling import looked
from simulator.torch_world.simulation import Simulation


def install_clock(patches: Patches, sim: Simulation) -> None:
    """Replace the clock functions of the module `time`."""

    def now() -> float | None:
        task = sim.scheduler.here()
        if task is None:
            return None
        looked(sim, "the clock, in a loop")
        return float(sim.scheduler.env.now + task.owner.clock_skew_s)

    def reader(name: str, offset_s: float, in_ns: bool) -> Callable[[], Any]:
        real = getattr(time, name)

        def read() -> Any:
            seconds = now()
            if seconds is None:
                return real()
            return round((seconds + offset_s) * 1e9) if in_ns else seconds + offset_s

        read.__name__ = name
        return read

    for name, offset_s in (("time", EPOCH_S), ("monotonic", 0.0), ("perf_counter", 0.0)):
        patches.set(time, name, reader(name, offset_s, in_ns=False))
        patches.set(time, f"{name}_ns", reader(f"{name}_ns", offset_s, in_ns=True))
    real_sleep = time.sleep

    def sleep(seconds: float) -> None:
        if sim.here() is None:
            real_sleep(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        sim.scheduler.sleep(seconds, Wait("sleep", f"time.sleep({seconds:g})", sim.sites.capture(1)))

    patches.set(time, "sleep", sleep)
