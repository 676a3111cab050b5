"""torch futures block in virtual time: their `wait` suspends the rank, not the simulation's only running thread.

Not modelled: C++ code that waits for a future itself (see `simulator.work` for the case that matters).
"""

from __future__ import annotations

from typing import Any

import torch

from simulator.engine.scheduler import Wait
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation
from simulator.work import SimFuture


def install_futures(patches: Patches, sim: Simulation) -> None:
    """Replace the blocking half of torch's futures, and let collections of them settle."""
    future_class: Any = torch._C.Future
    real_wait, real_collect = future_class.wait, torch._C._collect_all

    def wait(self: Any) -> Any:
        if sim.here() is not None and not self.done():
            event = sim.scheduler.event()
            self.add_done_callback(lambda _: event.succeed())
            sim.wait(event, Wait("lock", "a future of its own process", sim.sites.capture(1)))
        return real_wait(self)

    def collect_all(futures: Any) -> Any:
        for future in futures:
            if isinstance(future, SimFuture):
                future.watch()
        return real_collect(futures)

    patches.set(future_class, "wait", wait)
    patches.set(torch._C, "_collect_all", collect_all)
