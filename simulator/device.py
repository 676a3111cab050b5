"""The device of one rank: what it has still to do, and how its host waits for it (`nccl`).

What it does comes from `device_work`, in streams (`device_queue`); tensors that it has still to fill are known by
`device_tensors`. Follows torch's ProcessGroupNCCL.cpp. See docs/limits.md for what is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from simulator.device_queue import DeviceOp, Streams
from simulator.device_tensors import Modes, storage_keys
from simulator.engine.site import Stack
from simulator.torch_world.context import RankContext
from simulator.torch_world.simulation import Simulation

if TYPE_CHECKING:
    from simulator.device_queue import Unit


class Device:
    """What one rank's host has given its device to do.

    Args:
        defers: operators on tensors that are not computed yet are deferred; else the host waits for each call.

    Attributes:
        streams: its streams. modes: what catches operators and reads.
    """

    def __init__(self, sim: Simulation, *, defers: bool) -> None:
        self.sim = sim
        self.defers = defers
        self.streams = Streams(sim.pump)
        self.modes = Modes(self)
        self._last_of: dict[object, DeviceOp] = {}
        self._error: BaseException | None = None

    def touches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the current stream has still to do with any of `tensors`."""
        busy = self.streams.busy
        return bool(busy) and any(key in busy for key in storage_keys(tensors))

    def issue(self, op: DeviceOp, stream: object, order: object) -> None:
        """Put a group's operation on a stream, behind what the host has issued on the current stream by now.

        Args:
            order: of what is issued with the same `order`, only one runs at a time.
        """
        if self.defers:
            self.modes.enter()
        previous, self._last_of[order] = self._last_of.get(order), op
        self.streams.issue(op, stream, [self.streams.tail(), previous])

    def compute(self, unit: Unit, tensors: Sequence[Tensor]) -> None:
        """Put an operator on the current stream."""
        self.streams.issue(DeviceOp(self.streams.pump, [unit], storage_keys(tensors)))

    def join(self, op: DeviceOp) -> None:
        """Let the current stream wait for `op`; a host that cannot defer waits itself."""
        if self.defers:
            self.modes.enter()
            self.streams.join(op)
        else:
            self.wait_for(op)

    def failed(self, error: BaseException) -> None:
        """A computation raised: the host hears of the first such error when it next waits for the device."""
        self._error = self._error or error

    # -- the host waits ----------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all that is on the current stream."""
        tail = self.streams.tail()
        if tail is not None:
            self.wait_for(tail)
        self.raise_error()

    def drain(self) -> None:
        """Wait for all that was ever issued."""
        while self.streams.unfinished:
            self.wait_for(next(iter(self.streams.unfinished)))
        self.raise_error()

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_for(self, op: DeviceOp, limit_s: float | None = None) -> bool:
        """Wait until `op` is over. False after `limit_s` virtual seconds.

        Raises:
            DistBackendError: something that it waits for has timed out.
        """
        read_at = self.sim.sites.capture(1)
        end_s = None if limit_s is None else self.now_s() + limit_s
        while not op.done:
            if not self._wait_for_head(op.head(), read_at, end_s):
                return False
        return True

    def _wait_for_head(self, head: DeviceOp, read_at: Stack, end_s: float | None) -> bool:
        event, wait = head.awaited()
        wait.read_at, wait.deadline_is_explicit = read_at, end_s is not None
        own_end_s = None if head.limit_s is None else head.issued_s + head.limit_s
        ends = [end for end in (own_end_s, end_s) if end is not None]
        if self.sim.wait(event, wait, max(0.0, min(ends) - self.now_s()) if ends else None):
            return True
        if end_s is not None and end_s == min(ends):
            return False
        if head.expire is not None and not head.done:
            error = head.expire()
            head.finish()
            raise error
        return True

    def now_s(self) -> float:
        return float(self.sim.scheduler.env.now)

    def first_open(self) -> DeviceOp | None:
        """The first operation that has begun and is not over."""
        return next((op for op in self.streams.unfinished if op.started), None)

    def give_up(self, owner: object) -> None:
        """Drop the operations of one communicator (`abort`)."""
        for op in list(self.streams.unfinished):
            if op.owner is owner and not op.done:
                op.finish()

    def die(self) -> None:
        """Its process was killed: nothing that is not over ends, or begins, any more."""
        for op in self.streams.unfinished:
            op.done = True
        self.streams.unfinished.clear()

    def finish(self, owner: object) -> None:
        """Wait for the operations of one communicator (`destroy_process_group`)."""
        for op in list(self.streams.unfinished):
            if op.owner is owner:
                self.wait_for(op)


def device_of(sim: Simulation) -> Device:
    """The device of the calling rank."""
    context = sim.must_be_here("a device")
    if context.device is None:
        context.device = Device(sim, defers=sim.scheduler.has_threads)
    found: Device = context.device
    return found


def settle(sim: Simulation, tensors: Sequence[Tensor]) -> None:
    """Before the host, or a backend that works on it, reads `tensors`: wait for the device."""
    context = sim.here()
    if context is not None and context.device is not None and context.device.touches(tensors):
        context.device.synchronize()


def leave_device(context: RankContext) -> None:
    """The main function of a rank is over: its device has to come to an end too.

    Raises:
        Exception: what a deferred computation raised, or the time-out of what never ends.
    """
    if context.device is not None:
        context.device.drain()
        context.device.modes.leave()
