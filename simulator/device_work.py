"""What the device of a rank does for a process group, and the works that such calls return (`nccl`).

Follows torch's ProcessGroupNCCL.cpp: a synchronous collective runs on the current stream, an asynchronous one and each
message on a stream of the communicator; `wait` lets the current stream wait, and the host only for a barrier, with a
time-out, or under TORCH_NCCL_BLOCKING_WAIT. Collectives of one communicator run in the order of issue, on whichever
stream. A coalesced batch is one operation. See docs/limits.md for what was measured and what is not modelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

import simpy
import torch
from torch import Tensor

from simulator.collectives import Entry
from simulator.communicator import Communicator, Message, Slot
from simulator.contacts import Calls
from simulator.device_queue import CURRENT, DeviceOp
from simulator.device_tensors import storage_keys
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.message_work import message_text
from simulator.records import Gathering
from simulator.torch_world.host_order import Part, hear_later
from simulator.work import SimWork

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup
from simulator.device import Device, device_of

_CPP_READERS = ("torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
"""Whose C++ halves read a result as soon as they have waited for it."""


def holds_host(caller: FrameType) -> bool:
    """Whether C++ code calls that reads results itself: a reducer in a backward pass, or a comparison of models."""
    in_backward = torch._C._current_graph_task_id() != -1
    return bool(in_backward or caller.f_code.co_filename.replace("\\", "/").endswith(_CPP_READERS))


@dataclass(slots=True, eq=False)
class CollectiveUnit:
    """One rank's part in a collective."""

    comm: Communicator
    rank: int
    entry: Entry
    stack: Stack
    slot: Slot
    calling: Calls
    part: Part | None = None
    error: BaseException | None = None

    def heard(self) -> None:
        """The rank knows that it is over."""
        part, self.part = self.part, None
        if part is not None:
            part.finish()

    @property
    def tensors(self) -> Sequence[Tensor]:
        return [*self.entry.inputs, *self.entry.outputs]

    def begin(self, finished: Callable[[], None]) -> None:
        def over() -> None:
            self.error = self.slot.error
            finished()

        self.slot.finished.append(over)
        self.comm.enter(self.rank, self.entry, self.stack, self.slot)

    def awaited(self) -> tuple[simpy.Event, Wait]:
        return self.slot.barrier.released, self._wait(self.slot.gathering)

    def _wait(self, what: Gathering) -> Wait:
        return Wait("collective", f"{what.op} on group '{what.group.label}' seq {what.seq}", self.stack, what)

    def contact(self, *, eager: bool) -> tuple[simpy.Event, Wait] | None:
        """What the host waits for because its communicator has not been used so before."""
        event = self.comm.contacts.collective(self.calling, self.entry, eager=eager)
        return None if event is None else (event, self._wait(self.calling.gathering))


@dataclass(slots=True, eq=False)
class MessageUnit:
    """A send or a receive."""

    comm: Communicator
    message: Message
    channel: str
    is_told: bool = False
    error: BaseException | None = None

    def heard(self) -> None:
        """The rank knows that it is over."""
        message = self.message
        if message.wait.op == "recv" and not self.is_told:
            self.is_told = True
            Part(self.comm.sim, message.token, (message.tensor,), message.stack).finish()

    @property
    def tensors(self) -> Sequence[Tensor]:
        return [self.message.tensor]

    def begin(self, finished: Callable[[], None]) -> None:
        self.message.finished = finished
        self.comm.offer(self.message)

    def awaited(self) -> tuple[simpy.Event, Wait]:
        return self.message.met, self._wait()

    def _wait(self) -> Wait:
        peer = self.message.wait
        return Wait(peer.op, message_text(peer), self.message.stack, peer)

    def contact(self, *, eager: bool) -> tuple[simpy.Event, Wait] | None:
        event = self.comm.contacts.message(self.message.wait, self.channel)
        return None if event is None else (event, self._wait())


@dataclass(slots=True, eq=False)
class Batch:
    """What is collected between _start_coalescing and _end_coalescing."""

    units: list[CollectiveUnit | MessageUnit] = field(default_factory=list)
    is_async: bool = True
    limit_s: float | None = None
    holds_host: bool = False


class DeviceWork(SimWork):
    """A handle on a device operation."""

    def __init__(
        self,
        group: SimProcessGroup,
        name: str,
        op: DeviceOp,
        units: Sequence[CollectiveUnit | MessageUnit],
        outputs: Sequence[Tensor],
        stack: Stack,
        *,
        holds_host: bool,
    ) -> None:
        super().__init__(group, name, outputs, stack, op.limit_s)
        self._device = device_of(group.sim)
        self._on = op
        self._units = units
        self._holds_host = holds_host

    def _done(self) -> bool:
        return self._on.done

    def heard(self) -> bool:
        for unit in self._units if self._on.done and self._error is None else ():
            unit.heard()
        return True

    def _failure(self) -> BaseException | None:
        return next((unit.error for unit in self._units if unit.error is not None), self._on.error)

    def settled(self) -> bool:
        self._error = self._error or self._failure()
        return self._error is not None or self._on.done

    def wait_up_to(self, limit_s: float | None, *, named: bool) -> bool:
        group = self._group
        group.unwaited.pop(id(self), None)
        group.sim.must_be_here(f"wait for {self._op}")
        if not self._on.done:
            self._device.join(self._on)
            hear_later(group.sim, self)
            if limit_s is not None or self._holds_host:
                self._hold_host(limit_s)
        if self.settled():
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            self.heard()
        return True

    def _hold_host(self, limit_s: float | None) -> None:
        if not self._device.wait_for(self._on, limit_s):
            self._device.give_up(self._group.comm)
            raise self._group.model.timed_out(int((limit_s or 0.0) * 1000), self._op)

    def wait_quietly(self) -> None:
        try:
            if not self._on.done:
                self._device.wait_for(self._on)
            self.settled()
        except Exception as error:
            self._error = self._error or error

    def _source_rank(self) -> int:
        unit = self._units[0]
        if isinstance(unit, MessageUnit) and unit.message.wait.op == "recv" and unit.message.partner is not None:
            return self._group.comm.view.ranks.index(unit.message.partner)
        return super()._source_rank()


# -- issuing ---------------------------------------------------------------------------------------------------------


def launch(group: SimProcessGroup, batch: Batch, name: str, stack: Stack, channel: object) -> DeviceWork:
    """Give a batch to the device of the calling rank; wait where the host has to connect first.

    Args:
        channel: the communicator that it runs on: that of the group, or one of a pair of ranks.
    """
    device, comm = device_of(group.sim), group.comm
    tensors = [tensor for unit in batch.units for tensor in unit.tensors]
    limit_s = (group.timeout_s if batch.limit_s is None else batch.limit_s) if group.model.keeps_time else None
    op = DeviceOp(device.streams.pump, batch.units, storage_keys(tensors), stack, comm, device.now_s(), limit_s)
    op.expire = lambda: _expired(group, name, op)
    outputs = [tensor for unit in batch.units for tensor in _outputs_of(unit)]
    device.issue(op, (comm, channel) if batch.is_async else CURRENT, (comm, channel))
    blocking_wait = batch.is_async and os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") == "1"
    holds = batch.holds_host or name == "barrier" or blocking_wait
    work = DeviceWork(group, name, op, batch.units, outputs, stack, holds_host=holds)
    _connect(group, device, batch, op)
    if not (device.defers or op.done) and not batch.is_async:
        device.wait_for(op)
    return work


def _outputs_of(unit: CollectiveUnit | MessageUnit) -> Sequence[Tensor]:
    return unit.entry.outputs if isinstance(unit, CollectiveUnit) else unit.tensors


def _expired(group: SimProcessGroup, name: str, op: DeviceOp) -> BaseException:
    """The watchdog struck: what the host raises, noted for the analysis."""
    error = group.model.timed_out(int((op.limit_s or 0.0) * 1000), name)
    wait = op.awaited()[1]
    group.sim.note("timeout", str(error), stack=op.stack, group=group.comm.view, what=wait.what, doing=wait.text)
    return error


def _connect(group: SimProcessGroup, device: Device, batch: Batch, op: DeviceOp) -> None:
    """The first use of a connection holds the host until the other end has called too."""
    comm, contacts = group.comm, []
    if not group.model.connects_at_first_use:
        return
    on_all = any(isinstance(unit, CollectiveUnit) or unit.channel == "group" for unit in batch.units)
    if on_all and not comm.eager:
        joined = comm.contacts.join(group.global_rank, op.stack)
        if joined is not None and not isinstance(batch.units[0], CollectiveUnit):
            text = f"the first connection of group '{comm.view.label}'"
            contacts.append((joined.barrier.released, Wait("collective", text, op.stack, joined.gathering)))
    eager = comm.eager and os.environ.get("NCCL_RUNTIME_CONNECT") == "0"
    contacts += [found for unit in batch.units if (found := unit.contact(eager=eager)) is not None]
    for event, wait in contacts:
        if not event.triggered and not group.sim.wait(event, wait, op.limit_s) and not op.done:
            error = group.model.timed_out(int((op.limit_s or 0.0) * 1000), wait.text.partition(" ")[0])
            group.sim.note("timeout", str(error), stack=op.stack, group=comm.view, what=wait.what, doing=wait.text)
            op.finish()
            raise error
