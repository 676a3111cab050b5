"""Sends, receives and batches as torch calls them, for all backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from simulator.backends import BackendModel
from simulator.communicator import ANY_SOURCE, Communicator
from simulator.device import settle
from simulator.device_work import Batch, DeviceWork, MessageUnit, launch
from simulator.engine.site import Stack
from simulator.gpu_groups import check_devices
from simulator.message_work import MessageWork
from simulator.torch_world.in_flight import asked_for_handle, begin
from simulator.torch_world.simulation import Simulation
from simulator.work import FinishedWork, SimWork

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup


class MessageCalls:
    """The part of a process group that torch's messages and batches call."""

    sim: Simulation
    model: BackendModel
    comm: Communicator
    global_rank: int
    _group_rank: int
    _batch: Batch | None = None

    @property
    def _whole(self) -> SimProcessGroup:
        """The process group that this is a part of."""
        return self  # type: ignore[return-value]

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> SimWork:
        if (half := self._whole.half_for(tensors)) is not self:
            return half.send(tensors, peer, tag)
        self._whole._must.message(tensors, tag, "send to", peer, self._group_rank)
        self._check_connected("send", peer)
        check_devices(self._whole, tensors)
        self._strike("send")
        stack = self.sim.sites.capture(1)
        on_device = self.model.on_device
        work: SimWork = (
            self._message_on_device("send", tensors[0], peer, tag, stack)
            if on_device
            else self.post_send(tensors[0], peer, tag, stack)
        )
        return self._posted(work, "send", stack, (tensors, ()))

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> SimWork:
        if (half := self._whole.half_for(tensors)) is not self:
            return half.recv(tensors, peer, tag)
        self._whole._must.message(tensors, tag, "recv from", peer, self._group_rank)
        self._check_connected("recv", peer)
        check_devices(self._whole, tensors)
        self._strike("recv")
        stack = self.sim.sites.capture(1)
        on_device = self.model.on_device
        work: SimWork = (
            self._message_on_device("recv", tensors[0], peer, tag, stack)
            if on_device
            else self.post_receive(tensors[0], peer, tag, stack)
        )
        return self._posted(work, "recv", stack, ((), tensors))

    def _strike(self, op: str) -> None:
        if self.sim.faults is not None:
            self.sim.faults.call(op)

    def _posted(
        self, work: SimWork, op: str, stack: Stack, tensors: tuple[Sequence[Tensor], Sequence[Tensor]]
    ) -> SimWork:
        if not isinstance(work, FinishedWork):
            begin(self.sim, work, op, self._whole, stack, tensors, is_async=asked_for_handle())
        return work

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> SimWork:
        if not self.model.any_source:
            raise RuntimeError(f"Backend {self.model.name} does not support recvAnysource")
        someone = 0 if self._group_rank else self._whole.size() - 1
        self._whole._must.message(tensors, tag, "recv from", someone, self._group_rank)
        self._check_connected("recv", ANY_SOURCE)
        self._strike("recv")
        stack = self.sim.sites.capture(1)
        return self._posted(self.post_receive(tensors[0], ANY_SOURCE, tag, stack), "recv", stack, ((), tensors))

    recvAnysource = recv_anysource

    def _check_connected(self, op: str, peer: int) -> None:
        self._whole._check_open(op)
        ends = {self.global_rank, ANY_SOURCE if peer == ANY_SOURCE else self.comm.view.ranks[peer]}
        if self.model.notices_death and not ends.isdisjoint(self.comm.lost):
            raise self._whole.fails_at_once(op)

    def post_send(self, tensor: Tensor, peer: int, tag: int, stack: Stack) -> MessageWork:
        """A send to group rank `peer`."""
        settle(self.sim, [tensor])
        ranks = self.comm.view.ranks
        return MessageWork(self._whole, self.comm.post_send(self.global_rank, ranks[peer], tensor, tag, stack))

    def post_receive(self, tensor: Tensor, peer: int, tag: int, stack: Stack) -> MessageWork:
        """A receive from group rank `peer`, or from ANY_SOURCE."""
        settle(self.sim, [tensor])
        source = ANY_SOURCE if peer == ANY_SOURCE else self.comm.view.ranks[peer]
        return MessageWork(self._whole, self.comm.post_receive(self.global_rank, source, tensor, tag, stack))

    def _message_on_device(self, op: str, tensor: Tensor, peer: int, tag: int, stack: Stack) -> SimWork:
        """In a batch, or where the group was connected eagerly, on its communicator; else on one of the two ranks."""
        comm, mine, other = self.comm, self.global_rank, self.comm.view.ranks[peer]
        channel = "group" if comm.eager or self._batch is not None else "pair"
        prepare = comm.prepare_send if op == "send" else comm.prepare_receive
        message = prepare(mine, other, tensor, tag if self.model.has_tags else 0, stack)
        message.wait.channel = channel
        unit = MessageUnit(comm, message, channel)
        if self._batch is not None:
            return self._whole._in_batch(unit, op, stack)
        stream = channel if channel == "group" else (min(mine, other), max(mine, other))
        work: DeviceWork = launch(self._whole, Batch([unit]), op, stack, stream)
        return work

    # -- batches ---------------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: Any) -> None:
        if (half := self._whole._get_backend(device)) is not self:
            half._start_coalescing(device)
            return
        if not self.model.coalesces:
            raise RuntimeError(f"Backend {self.model.name} does not support startCoalescing")
        self._batch = Batch()

    def _end_coalescing(self, device: Any) -> SimWork:
        if (half := self._whole._get_backend(device)) is not self:
            return half._end_coalescing(device)
        if not self.model.coalesces:
            raise RuntimeError(f"Backend {self.model.name} does not support endCoalescing")
        batch, self._batch = self._batch, None
        stack = self.sim.sites.capture(1)
        if batch is None or not batch.units:
            return FinishedWork(self._whole, "coalesced", [], stack)
        return launch(self._whole, batch, "coalesced", stack, "group")

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing
