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
from simulator.torch_world.context import RankContext
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
        now = sim.scheduler.env.now
        deadline_s = None if timeout is None else now + max(0.0, timeout)
        ready = real(self, 0)
        while not ready and (deadline_s is None or sim.scheduler.env.now < deadline_s):
            if len(self.get_map()) > 1:
                sim.scheduler.poll("a selector")  # real files or sockets, whose other end is not simulated
            else:
                _wait_for_own_threads(sim, context, deadline_s)
            ready = real(self, 0)
        return ready

    return select


def _wait_for_own_threads(sim: Simulation, context: RankContext, deadline_s: float | None) -> None:
    """One file only: the pipe by which an event loop's own threads wake it. Nobody else can."""
    env, woken = sim.scheduler.env, sim.scheduler.event()
    mine = (sim.scheduler.current, woken)
    context.woken_by_threads.append(mine)
    until = woken if deadline_s is None else env.any_of([woken, env.timeout(deadline_s - env.now)])
    text = "select() without a time-out" if deadline_s is None else f"select() until {deadline_s:g} s"
    sim.scheduler.wait(until, Wait("lock" if deadline_s is None else "sleep", text, sim.sites.capture(1)))
    if mine in context.woken_by_threads:
        context.woken_by_threads.remove(mine)
