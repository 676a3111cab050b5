"""What orders the hosts of different ranks, for the log of memory: collectives, messages, keys of a store.

Nothing is recorded before some rank has symmetric memory. A collective reads its inputs before its rank publishes, and
writes its outputs after its rank has observed the others; a rank observes when it hears of the end: in `wait`, in a
query that says so, in a future's callback. Where its device does the work and the host goes on, it observes when it
next touches symmetric memory: that comes later on the same stream, so it waits for the stream first.

Not modelled: order between the threads of one rank, which are one actor; order by sleeping.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from simulator.memory_records import Access
from simulator.torch_world.touched import spans_of

if TYPE_CHECKING:
    from simulator.engine.site import Stack
    from simulator.torch_world.simulation import Simulation

UNHEARD_MAX = 256
"""So many calls are kept until the rank touches symmetric memory again."""
_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather")


def tell(sim: Simulation, token: Hashable) -> None:
    """What the calling rank did so far comes before what others do after they `hear` of `token`."""
    if sim.memory.in_use:
        context = sim.here()
        if context is not None:
            sim.memory.publish(context.rank, token)


def hear(sim: Simulation, token: Hashable) -> None:
    """The calling rank knows of all that was told under `token` so far."""
    context = sim.here()
    if context is None:
        return
    if context.in_flight is not None:
        context.in_flight.heard += 1
    if sim.memory.in_use:
        sim.memory.observe(context.rank, token)


class Hearing(Protocol):
    """A call of the rank's device that the current stream waits for."""

    def settled(self) -> bool:
        """It is over."""

    def heard(self) -> bool:
        """The rank knows that it is over. True."""


def hear_later(sim: Simulation, call: Hearing) -> None:
    """The current stream of the calling rank waits for a call of the device, and the host does not."""
    context = sim.here()
    if context is not None and sim.memory.in_use:
        context.unheard.append(call)
        if len(context.unheard) > UNHEARD_MAX:
            context.unheard = [each for each in context.unheard if not (each.settled() and each.heard())]


def await_stream(sim: Simulation) -> None:
    """Before the calling rank touches symmetric memory: wait for what is on its current stream, and hear of it."""
    context = sim.here()
    if context is None or context.device is None:
        return
    context.device.synchronize()
    calls, context.unheard = context.unheard, []
    for call in calls:
        call.heard()


@dataclass(slots=True, eq=False)
class Part:
    """What a rank learns, and which tensors it writes, at the end of a collective or of a message.

    Attributes:
        token: None if it learns nothing.
    """

    sim: Simulation
    token: Hashable
    outputs: Sequence[torch.Tensor]
    stack: Stack

    def finish(self) -> None:
        """The calling rank hears of the end."""
        if self.token is not None:
            hear(self.sim, self.token)
        if self.sim.memory.in_use:
            _touch(self.sim, "write", self.outputs, self.stack)


def enter(
    sim: Simulation,
    token: Hashable,
    op: str,
    is_root: bool,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    stack: Stack,
) -> Part | None:
    """The calling rank brings its part to a collective; call `finish` of what is returned when it hears of the end."""
    if not sim.memory.in_use:
        return None
    gives = is_root or op not in _FROM_ROOT
    takes = is_root or op not in _TO_ROOT
    if gives:
        _touch(sim, "read", inputs, stack)
        tell(sim, token)
    written = outputs if takes and not (op == "broadcast" and is_root) else ()
    return Part(sim, token if takes else None, written, stack)


def send(sim: Simulation, tensor: torch.Tensor, stack: Stack) -> Hashable:
    """The calling rank sends; what is returned names the message."""
    if not sim.memory.in_use:
        return None
    token = ("message", next(sim.numbers))
    _touch(sim, "read", (tensor,), stack)
    tell(sim, token)
    return token


def _touch(sim: Simulation, kind: str, tensors: Sequence[torch.Tensor], stack: Stack) -> None:
    context = sim.here()
    if context is None:
        return
    for tensor in tensors:
        spans = spans_of(sim.memory, tensor)
        if spans:
            sim.memory.record(Access(sim.memory.host(context.rank).number, kind, "weak", "", spans, stack))
