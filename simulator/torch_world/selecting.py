"""selectors: a rank that waits for I/O (asyncio does, between its timers) waits in virtual time.

    asyncio.run(asyncio.sleep(3600))        # an hour of virtual time

Files and sockets are real: what is ready is asked of the operating system, without waiting there. Not modelled: time
that real I/O takes; a rank that waits for a real peer polls for it, and may be called a livelock.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

from simulator.engine.scheduler import Wait
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

KINDS = ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")


def install_selecting(patches: Patches, sim: Simulation) -> None:
    """Replace `select` of the selector classes that this platform has."""
    for kind in {getattr(selectors, name) for name in KINDS if hasattr(selectors, name)}:
        if "select" in vars(kind):
            patches.set(kind, "select", _waiting(sim, kind.select))


def _waiting(sim: Simulation, real: Callable[..., Any]) -> Callable[..., Any]:
    def select(self: Any, timeout: float | None = None) -> Any:
        context = sim.here()
        if context is None:
            return real(self, timeout)
        scheduler = sim.scheduler
        deadline_s = None if timeout is None else scheduler.env.now + max(0.0, timeout)
        ready = real(self, 0)
        while not ready and (deadline_s is None or scheduler.env.now < deadline_s):
            alone = sum(task.alive for task in context.tasks) == 1
            if alone and deadline_s is not None:
                text = f"select({timeout:g})"
                scheduler.sleep(deadline_s - scheduler.env.now, Wait("sleep", text, sim.sites.capture(0)))
            else:
                scheduler.poll("a selector")
            ready = real(self, 0)
        return ready

    return select
