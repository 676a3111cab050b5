"""Asynchronous calls of a rank between their issue and the moment at which the rank hears of their end.

Until then the tensors belong to the call: what it writes must not be touched, what it reads must not be written. A call
that the rank never hears of is left behind.

A call that has ended unheard counts as in flight, unless the rank has heard of something else since the issue: that may
have told it (a reply to the message that was sent).

Not seen: calls through functional collectives, whose results wait by themselves; tensors behind NumPy arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed import distributed_c10d as c10d

from simulator.torch_world.flight_watch import FlightWatch
from simulator.torch_world.touched import byte_runs

if TYPE_CHECKING:
    from simulator.engine.site import Stack
    from simulator.torch_world.context import RankContext
    from simulator.torch_world.simulation import Simulation

FRAMES_TO_TORCH = 6
"""So many frames may lie between the group and the function of torch that the user called."""


class Work(Protocol):
    """What is known of a call's handle."""

    def settled(self) -> bool:
        """Whether it has come to its end."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that a call uses: bytes of addresses, and whether it writes them."""

    runs: tuple[tuple[int, int], ...]
    written: bool

    def meets(self, runs: Sequence[tuple[int, int]]) -> bool:
        return any(low < stop and start < high for start, stop in self.runs for low, high in runs)


@dataclass(slots=True, eq=False)
class Flight:
    """One call.

    Attributes:
        order: calls of one order are executed one after the other (a group whose device stream does so); None: alone.
        heard: what the rank had heard of at the issue.
        used: how and where a tensor of the call was used first after it was over, before the rank heard of that.
    """

    work: Work
    op: str
    group: Any
    stack: Stack
    held: tuple[Held, ...]
    order: object
    heard: int = 0
    used: tuple[str, Stack] | None = None


@dataclass(slots=True, eq=False)
class InFlight:
    """The calls of one rank."""

    sim: Simulation
    flights: dict[int, Flight] = field(default_factory=dict)
    heard: int = 0
    watch: FlightWatch | None = None

    def attend(self, task: int) -> None:
        """Watch the calling thread, whose task has this number."""
        if self.sim.scheduler.has_threads:
            self.watch = self.watch or FlightWatch(self)
            self.watch.attend(task)

    def issue(self, flight: Flight, *, is_async: bool) -> None:
        """A call begins. A synchronous one is over before the rank does anything else."""
        for held in flight.held:
            for other in self._conflicts(held.runs, held.written):
                if self._is_on(other) and (flight.order is None or flight.order != other.order):
                    self._note(other, "written" if held.written else "read", flight.op, flight.stack)
        if is_async:
            flight.heard = self.heard
            self.flights[id(flight.work)] = flight

    def over(self, work: Work) -> None:
        """The rank has heard of the end of a call."""
        self.heard += 1
        self.flights.pop(id(work), None)

    def touch(self, tensor: torch.Tensor, *, written: bool) -> None:
        """An operator reads or writes `tensor`."""
        how = "written" if written else "read"
        for flight in self._conflicts(byte_runs(tensor), written):
            stack = self.sim.sites.capture(1)
            if self._is_on(flight):
                self._note(flight, how, "", stack)
            elif flight.used is None:
                flight.used = (how, stack)

    def left(self, group: object = None) -> list[Flight]:
        """The calls that the rank never heard of (of one group)."""
        return [flight for flight in self.flights.values() if group is None or flight.group is group]

    def _conflicts(self, runs: Sequence[tuple[int, int]], written: bool) -> Iterator[Flight]:
        for flight in tuple(self.flights.values()):
            if any((written or held.written) and held.meets(runs) for held in flight.held):
                yield flight

    def _is_on(self, flight: Flight) -> bool:
        return flight.heard == self.heard or not flight.work.settled()

    def _note(self, flight: Flight, how: str, by: str, stack: Stack) -> None:
        self.sim.note(
            "in_flight",
            f"a tensor of {flight.op} is {how}" + (f" by {by}" if by else ""),
            stack=stack,
            op=flight.op,
            how=how,
            by=by,
            group=flight.group.comm.view,
            issued=flight.stack,
        )


def held_by(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> tuple[Held, ...]:
    """The memory of a call that reads `inputs` and writes `outputs`."""
    written = tuple(Held(byte_runs(tensor), True) for tensor in outputs if tensor.layout is torch.strided)
    return (*written, *(Held(byte_runs(tensor), False) for tensor in inputs if tensor.layout is torch.strided))


def begin(
    sim: Simulation,
    work: Work,
    op: str,
    group: Any,
    stack: Stack,
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    *,
    is_async: bool,
) -> None:
    """The calling rank has issued a call of `group` that reads the first of `tensors` and writes the others."""
    context = sim.must_be_here(op)
    if context.in_flight is None:
        if not is_async:
            return
        context.in_flight = InFlight(sim)
    calls: InFlight = context.in_flight
    task = sim.scheduler.current
    if is_async and task is not None:
        calls.attend(task.number)
    if is_async or calls.flights:
        order = group.comm if group.model.on_device and op not in ("send", "recv") else None
        calls.issue(Flight(work, op, group, stack, held_by(*tensors), order), is_async=is_async)


def over(sim: Simulation, work: Work) -> None:
    """The calling rank has heard of the end of a call."""
    context = sim.here()
    if context is not None and context.in_flight is not None:
        context.in_flight.over(work)


def leave(sim: Simulation, context: RankContext, group: Any = None) -> None:
    """The rank, or one of its groups, comes to an end: what nobody waited for is noted, once."""
    if context.in_flight is None:
        return
    for flight in context.in_flight.left(group):
        settled = flight.work.settled()
        if group is None or not settled:
            del context.in_flight.flights[id(flight.work)]
            if flight.used is not None:
                context.in_flight._note(flight, flight.used[0], "", flight.used[1])
                continue
            sim.note(
                "left_behind",
                f"nobody waited for {flight.op}",
                stack=flight.stack,
                op=flight.op,
                group=flight.group.comm.view,
                settled=settled,
                destroyed=group is not None,
            )


def asked_for_handle() -> bool:
    """Whether the message that is posted just now is torch's `isend` or `irecv`, and not `send` or `recv`."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(FRAMES_TO_TORCH):
        if frame is None:
            return False
        if frame.f_globals is vars(c10d) and frame.f_code.co_name in ("isend", "irecv"):
            return True
        frame = frame.f_back
    return False
