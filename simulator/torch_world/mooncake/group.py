"""One rank's Mooncake group: a torch ProcessGroup that is an active member, an isolated newcomer, or alone.

isolated   it attached to a group that others have, or found none: its collectives are its own
quiescing  it waits in `join_group`
normal     it takes part, or did until it was deactivated (then its collectives are refused)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from simulator.collective_calls import _terms
from simulator.collectives import Entry, below_torch
from simulator.communicator import ANY_SOURCE, Message
from simulator.device import settle
from simulator.engine.site import Stack
from simulator.fake_pg import MODELS, SimProcessGroup, SimWork
from simulator.records import Note
from simulator.torch_world.meeting import Room
from simulator.torch_world.mooncake.arguments import MooncakeArguments, check_reduction, failed
from simulator.torch_world.mooncake.comm import MooncakeComm
from simulator.torch_world.mooncake.pg import CreationRequest, Settings
from simulator.torch_world.mooncake.process import Process
from simulator.torch_world.mooncake.seats import ElasticSlot
from simulator.torch_world.mooncake.wire import Wire, sent
from simulator.torch_world.mooncake.work import ElasticMessage, ElasticWork, LocalWork
from simulator.torch_world.simulation import Simulation

ISOLATED, QUIESCING, NORMAL = "isolated", "quiescing", "normal"
SIZES_READ_MAX = 1000
"""Reading the world size so often, with nothing in between, may be a loop that waits for others."""


class MooncakeGroup(SimProcessGroup):
    """One rank's handle.

    Args:
        ranks: global ranks as this rank declares them.

    Attributes:
        partial: notes of calls that went on without some member, until the rank asks about them.
        rejected: notes of proposals that were rejected, by call, reason and line.
    """

    comm: MooncakeComm

    def __init__(
        self,
        sim: Simulation,
        room: Room,
        request: CreationRequest,
        settings: Settings,
        process: Process,
        ranks: tuple[int, ...],
    ) -> None:
        model = MODELS[room.comm.view.backend]
        super().__init__(sim, model, room.comm, request.group_rank, request.store, request.timeout, ranks)
        self.settings = settings
        self.process = process
        self.mode = ISOLATED
        self.partial: list[Note] = []
        self.rejected: dict[object, Note] = {}
        self._looked: tuple[float, int] | None = None
        self._sizes_read = 0
        self._alone = (Wire(), [0])
        mask = settings.active_ranks
        self.mask = torch.zeros(settings.max_group_size, dtype=torch.int32) if mask is None else mask
        self.comm.handles[self.slot] = self
        self.follow()

    @property
    def slot(self) -> int:
        return self._group_rank

    @property
    def valid(self) -> bool:
        """The coordinator knows the group."""
        return self.comm.record is not None

    @property
    def active(self) -> bool:
        return self.comm.record is not None and self.mode == NORMAL and self.comm.record.is_active(self.slot)

    def size(self) -> int:
        """The world size. A loop that does nothing but read it waits for others, so reading it costs time then."""
        self._sizes_read += 1
        if self._sizes_read >= SIZES_READ_MAX:
            self._sizes_read = 0
            self._poll("the world size of a Mooncake group")
        return self._size()

    def _size(self) -> int:
        record = self.comm.record
        return record.world_size if record is not None and self.mode == NORMAL else self._declared_size

    def follow(self) -> None:
        """The group's members have changed: take part if this rank is one of them, and fill in the user's mask."""
        record = self.comm.record
        if record is not None and record.is_active(self.slot):
            self.mode = NORMAL
        capacity = self.settings.max_group_size
        with torch.inference_mode():
            if record is not None and self.mode == NORMAL:
                self.mask[:capacity] = torch.tensor(record.mask, dtype=torch.int32)
            else:
                self.mask[:capacity] = 0
                self.mask[self.slot] = 1

    @property
    def _must(self) -> MooncakeArguments:
        size = self._size()
        if not isinstance(self._checks, MooncakeArguments) or self._checks.size != size:
            self._checks = MooncakeArguments(self.model, size, self.settings.max_group_size)
        return self._checks

    # -- collectives -----------------------------------------------------------------------------------------------

    def _check(self, entry: Entry) -> BaseException | None:
        self._check_open(entry.op)
        if self.mode == QUIESCING:
            raise failed(entry.op, "invalid state", "rank is quiescing and cannot issue operations")
        if self.mode == NORMAL and not self.active:
            raise failed(entry.op, "invalid state", "rank is not active in this group")
        check_reduction(entry)
        if entry.op == "all_to_all_single":
            raise RuntimeError("Backend mooncake does not support alltoall_base")
        return None

    def _on_host(self, entry: Entry, stack: Stack) -> SimWork:
        settle(self.sim, [*entry.inputs, *entry.outputs])
        if self.mode != NORMAL:
            return self._run_alone(entry, stack)
        part = self._part(entry, stack)
        slot = self._slot(entry, stack)
        assert isinstance(slot, ElasticSlot)
        self._note_threads(slot.gathering, stack)
        work = ElasticWork(self, slot, entry.outputs, stack)
        work.part = part
        return work

    def _run_alone(self, entry: Entry, stack: Stack) -> SimWork:
        """A collective of a rank that is alone: it finds its own part in its buffer, and nothing of the others."""
        self.sim.log("local", entry.op, self.comm.view.label)
        if self.valid and self._declared_size > 1:
            text = f"{entry.op} on group '{self.comm.view.label}' before join_group"
            self.sim.note("before_join", text, stack=stack, group=self.comm.view, op=entry.op)
        wire, calls = self._alone
        parity, calls[0] = calls[0] % 2, calls[0] + 1
        writes = [sent(entry, self.slot)]
        wire.read(parity, entry, self.slot, writes, (self.slot,), self._declared_size)
        wire.keep(parity, writes)
        return LocalWork(self, entry.op, entry.outputs, stack)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        """Each slot's piece lies where the sizes of the input put it, whatever the size of the output."""
        self._must.all_gather_single(output, source)
        with below_torch():
            cut: Any = torch.split
            pieces = list(cut(output.view(-1), max(source.numel(), 1)))[: self._size()]
        whole = [piece for piece in pieces if piece.numel() == source.numel()]
        return self._join(Entry("all_gather", [source], whole, terms=_terms(opts)))

    _allgather_base = all_gather_single

    # -- messages --------------------------------------------------------------------------------------------------

    def _check_connected(self, op: str, peer: int) -> None:
        self._check_open(op)
        if not self.valid:
            raise failed(op, "invalid state", "P2P is unavailable for an invalid group")
        if self.mode == QUIESCING:
            raise failed(op, "invalid state", "rank is quiescing and cannot issue operations")
        if peer != ANY_SOURCE and self.comm.record is not None and peer >= len(self.comm.record.order):
            raise failed(op, "invalid argument", f"P2P {op} peer is not assigned in this group")

    def post_send(self, tensor: Tensor, peer: int, tag: int, stack: Stack) -> ElasticMessage:
        settle(self.sim, [tensor])
        message = self.comm.prepare_send(self.global_rank, self.comm.rank_of(peer), tensor, 0, stack)
        return self._post(message, peer)

    def post_receive(self, tensor: Tensor, peer: int, tag: int, stack: Stack) -> ElasticMessage:
        settle(self.sim, [tensor])
        message = self.comm.prepare_receive(self.global_rank, self.comm.rank_of(peer), tensor, 0, stack)
        return self._post(message, peer)

    def _post(self, message: Message, peer: int) -> ElasticMessage:
        """A newcomer has no links yet: what it sends before it joins, and what is sent to it, meets nobody."""
        other = self.comm.handles.get(peer)
        record = self.comm.record
        known = other.mode != ISOLATED if other is not None else record is not None and record.is_active(peer)
        if self.mode == ISOLATED or not known:
            message.wait.channel = f"isolated {next(self.sim.numbers)}"
        return ElasticMessage(self, self.comm.offer(message), peer)

    # -- the end ---------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group. The others are not told."""
        if not self.closed and self.comm.record is not None and self.process.coordinator is not None:
            self.process.coordinator.leave(self.comm.record, self.slot)
        super().shutdown()

    def look(self, call: str) -> None:
        """The rank reads the state of the group; if nothing can have changed since it last did, that costs a poll."""
        self.asked()
        self._poll(call)

    def _poll(self, text: str) -> None:
        scheduler = self.sim.scheduler
        if self._looked == (float(scheduler.env.now), scheduler.progress_count):
            scheduler.poll(text)
        self._looked = float(scheduler.env.now), scheduler.progress_count

    def asked(self) -> None:
        """The rank has looked at who is left: it knows of the results that it got before."""
        for note in self.partial:
            note.facts["asked"] = True
        self.partial.clear()

    def __repr__(self) -> str:
        text: Any = super().__repr__()
        return text if self.mode == NORMAL else f"{text[:-1]}, {self.mode}>"
