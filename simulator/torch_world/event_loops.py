"""asyncio in a rank: its event loop sleeps in virtual time, until a timer is due or a thread of the rank wakes it.

Not modelled: a loop that watches sockets or pipes waits for those for real, and the others with it; uvloop; event loops
under the greenlet carrier, whose ranks share a thread.
"""

from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

import simpy

from simulator.engine.scheduler import Wait
from simulator.torch_world.patches import Patches
from simulator.torch_world.polling import looked
from simulator.torch_world.simulation import Simulation


class SimSelector:
    """Stands before the real selector, which still knows what is ready."""

    def __init__(self, sim: Simulation, real: Any) -> None:
        self._sim = sim
        self._real = real
        self._woken: simpy.Event | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def select(self, timeout: float | None = None) -> Any:
        """What is ready, after `timeout` virtual seconds at most (None: after a `wake`)."""
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            looked(self._sim, "an event loop, in a loop")
            return ready
        if self._sim.here() is None or len(self._real.get_map()) > 1:  # more than the loop's pipe to itself
            return self._real.select(timeout)
        woken = self._woken = self._sim.scheduler.event()
        if timeout is not None:
            self._sim.scheduler.env.timeout(timeout).callbacks.append(lambda _: _trigger(woken))
        self._sim.wait(woken, Wait("lock", "an event loop of its own process", self._sim.sites.capture(1)))
        return self._real.select(0)

    def wake(self) -> None:
        """Another thread has given the loop something to do."""
        if self._woken is not None:
            _trigger(self._woken)


def _trigger(event: simpy.Event) -> None:
    if not event.triggered:
        event.succeed()


def install_event_loops(patches: Patches, sim: Simulation) -> None:
    """Give the loops that ranks make another selector."""
    loop_class: Any = BaseSelectorEventLoop
    real_init, real_write = loop_class.__init__, loop_class._write_to_self

    def init(self: Any, selector: Any = None) -> None:
        real_init(self, selector)
        if sim.here() is not None:
            self._selector = SimSelector(sim, self._selector)

    def write_to_self(self: Any) -> None:
        real_write(self)
        if isinstance(self._selector, SimSelector):
            self._selector.wake()

    patches.set(loop_class, "__init__", init)
    patches.set(loop_class, "_write_to_self", write_to_self)
