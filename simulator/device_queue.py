"""The work of one rank's device: operations on streams, which run once what they follow is done. No torch.

As on CUDA: what is issued on one stream runs in the order of issue; a stream can be made to wait for an operation of
another; the host goes on at once. Nothing here takes virtual time. An operation begins as soon as those before it are
done, on whichever rank runs at that moment.

Not modelled: that streams share the multiprocessors of a device, so that many collectives at once may not all fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import simpy

from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack

CURRENT = "current"
"""The stream on which the host issues its computations."""


class Unit(Protocol):
    """One thing that a device operation does: a rank's part in a collective, a message, a computation."""

    def begin(self, finished: Callable[[], None]) -> None:
        """Start; `finished` is to be called when it is over, now or later."""

    def awaited(self) -> tuple[simpy.Event, Wait]:
        """What it waits for, once it has begun and is not over."""


class Pump:
    """Starts what has become ready, one after another: an operation that ends another does not start it itself."""

    def __init__(self) -> None:
        self._ready: deque[DeviceOp] = deque()
        self._runs = False

    def start(self, op: DeviceOp) -> None:
        """Start `op`, or let whoever is starting operations already do it."""
        self._ready.append(op)
        if self._runs:
            return
        self._runs = True
        try:
            while self._ready:
                self._ready.popleft().begin()
        finally:
            self._runs = False


@dataclass(slots=True, eq=False)
class DeviceOp:
    """One operation on a stream. It is over when all of its units are.

    Attributes:
        units: what it does; all of them progress at once.
        held: keys of the storages that it reads or writes.
        owner: the communicator that it belongs to, if any.
        limit_s: virtual seconds from the issue after which it times out; None: never.
        expire: called when it has timed out; returns the error.
        before: those it follows. after: those that follow it.
    """

    pump: Pump
    units: Sequence[Unit] = ()
    held: tuple[int, ...] = ()
    stack: Stack = ()
    owner: object = None
    issued_s: float = 0.0
    limit_s: float | None = None
    expire: Callable[[], BaseException] | None = None
    on_done: Callable[[DeviceOp], None] | None = None
    before: list[DeviceOp] = field(default_factory=list)
    after: list[DeviceOp] = field(default_factory=list)
    started: bool = False
    done: bool = False
    error: BaseException | None = None
    _waiting: int = 0
    _pending: dict[int, None] = field(default_factory=dict)

    def follow(self, others: Sequence[DeviceOp | None]) -> None:
        """Begin once all of `others` are over."""
        for other in others:
            if other is not None and not other.done:
                self.before.append(other)
                other.after.append(self)
                self._waiting += 1
        if not self._waiting:
            self.pump.start(self)

    def begin(self) -> None:
        if self.done:
            return
        self.started = True
        self._pending = dict.fromkeys(range(len(self.units)))
        for number, unit in enumerate(self.units):
            unit.begin(lambda number=number: self._unit_is_over(number))  # type: ignore[misc]
        self._end_if_over()

    def _unit_is_over(self, number: int) -> None:
        self._pending.pop(number, None)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if not (self._pending or self.done):
            self.finish()

    def finish(self) -> None:
        """It is over; or it is given up, and what follows it goes on."""
        self.done = True
        self.before.clear()
        if self.on_done is not None:
            self.on_done(self)
        followers, self.after = self.after, []
        for op in followers:
            op._waiting -= 1
            if not op._waiting:
                self.pump.start(op)

    def head(self) -> DeviceOp:
        """The operation that holds this one up: the first that has begun and is not over."""
        op = self
        while not op.started:
            op = next(other for other in op.before if not other.done)
        return op

    def awaited(self) -> tuple[simpy.Event, Wait]:
        """What its first open unit waits for."""
        return self.units[next(iter(self._pending))].awaited()


class Streams:
    """The streams of one device.

    Attributes:
        busy: storages that operations on the current stream will still read or write, with how many do.
        unfinished: all operations that are not over, in the order of issue.
    """

    def __init__(self, pump: Pump) -> None:
        self.pump = pump
        self.busy: dict[int, int] = {}
        self.unfinished: dict[DeviceOp, None] = {}
        self._tails: dict[Hashable, DeviceOp] = {}

    def tail(self, stream: Hashable = CURRENT) -> DeviceOp | None:
        """The last operation of a stream, if it is not over."""
        op = self._tails.get(stream)
        return None if op is None or op.done else op

    @property
    def idle(self) -> bool:
        """Nothing is left to do on the current stream."""
        op = self._tails.get(CURRENT)
        return op is None or op.done

    def issue(self, op: DeviceOp, stream: Hashable = CURRENT, after: Sequence[DeviceOp | None] = ()) -> None:
        """Put `op` on a stream, behind what is there, and behind `after`."""
        before = [self.tail(stream), *after]
        self._tails[stream] = op
        self.unfinished[op] = None
        if stream == CURRENT:
            for key in op.held:
                self.busy[key] = self.busy.get(key, 0) + 1
        op.on_done = self._release_current if stream == CURRENT else self._release
        op.follow(before)

    def join(self, op: DeviceOp) -> None:
        """Let the current stream wait for `op`."""
        if not op.done:
            self.issue(DeviceOp(self.pump, held=op.held, stack=op.stack), after=[op])

    def _release(self, op: DeviceOp) -> None:
        self.unfinished.pop(op, None)

    def _release_current(self, op: DeviceOp) -> None:
        self._release(op)
        for key in op.held:
            left = self.busy[key] - 1
            if left:
                self.busy[key] = left
            else:
                del self.busy[key]
