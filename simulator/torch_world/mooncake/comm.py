"""Where the ranks of a Mooncake group meet: collectives go on without the dead, and differing calls read garbage.

A collective waits for every active member that lives, without end. If members are dead, each of the others learns of it
by itself: at once if they were dead when it came, else when it next asks (`set_collective_timeout_us`). It then waits
for the coordinator's decision, unless `auto_sync_on_failure` is off, and goes on with the data of those that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.barrier_model import CohortBarrier
from simulator.collectives import Entry, deliver, move
from simulator.communicator import Communicator, Message, Slot
from simulator.engine.site import Stack
from simulator.mooncake_model.groups import Group
from simulator.records import Gathering, GroupView
from simulator.torch_world.mooncake.failures import BAD_CHUNK, abort, ask, note_grown, note_partial
from simulator.torch_world.mooncake.seats import ElasticSlot, Seat, next_probe_s
from simulator.torch_world.mooncake.wire import Wire, sent
from simulator.torch_world.simulation import Simulation

if TYPE_CHECKING:
    from simulator.torch_world.mooncake.group import MooncakeGroup

_ALIKE = ("all_reduce", "reduce", "broadcast", "barrier")
"""Collectives whose data moves as on any backend, whatever world size their callers counted with."""


class MooncakeComm(Communicator):
    """The shared side of a Mooncake group.

    Attributes:
        record: the group as the coordinator keeps it; None for one that runs alone.
        handles: each slot's group object.
        dead: processes that are gone, by global rank, with the time of their end.
    """

    def __init__(self, sim: Simulation, view: GroupView, key: str) -> None:
        super().__init__(sim, view, key)
        self.record: Group | None = None
        self.handles: dict[int, MooncakeGroup] = {}
        self.dead: dict[int, float] = {}
        self.wire = Wire()
        self._first_seq = 0

    def bind(self, record: Group) -> None:
        """The group is known to its coordinator from now on."""
        self.record = record
        record.on_change.append(self._on_change)

    def rank_of(self, slot: int) -> int:
        """The global rank in a slot."""
        return self.view.ranks[slot] if self.record is None else self.record.order[slot]

    def _slots(self) -> tuple[int, ...]:
        return () if self.record is None else self.record.active

    # -- collectives -----------------------------------------------------------------------------------------------

    def _open(self, entry: Entry, seq: int) -> Slot:
        gathering = Gathering(entry.op, self.view, seq)
        barrier = CohortBarrier(self.sim.scheduler.env, self.view.ranks)
        return ElasticSlot(gathering, barrier, parity=(seq - self._first_seq) % 2)

    def enter(self, rank: int, entry: Entry, stack: Stack, slot: Slot | None = None) -> Slot:
        slot = slot or self._next_slot(rank, entry)
        assert isinstance(slot, ElasticSlot)
        self._compare(slot, rank, entry, stack)
        slot.gathering.arrived[rank] = stack
        slot.entries[rank] = entry
        env, place = self.sim.scheduler.env, self._place(rank)
        size = self.record.world_size if self.record is not None else len(self.view.ranks)
        now_s = float(env.now)
        writes = sent(entry, place, now_s)
        seat = slot.seats[rank] = Seat(rank, place, size, entry, stack, now_s, writes, env.event(), self.view.ranks)
        seat.failed = dict.fromkeys(self._place(gone) for gone in self.dead if gone in self.view.ranks)
        self.sim.trace.add(env.now, rank, "enter", entry.op, self.view.label, f"seq={slot.gathering.seq}")
        if self._is_complete(slot):
            self._compare_splits(slot)
            faults = self.sim.faults
            if faults is None or not faults.hold(slot.gathering, lambda: self._look(slot)):
                self._look(slot)
        return slot

    def _place(self, rank: int) -> int:
        order = self.view.ranks if self.record is None else self.record.order
        return rank if rank < len(order) and order[rank] == rank else order.index(rank)

    def _compare_splits(self, slot: Slot) -> None:
        if len(slot.entries) == len(self.view.ranks):
            super()._compare_splits(slot)

    def _is_complete(self, slot: ElasticSlot) -> bool:
        """Every active member that lives is there."""
        absent = len(self.view.ranks) - len(slot.seats)
        if absent > 0 and self.dead:
            absent -= sum(rank in self.view.ranks and rank not in slot.seats for rank in self.dead)
        return absent <= 0 and all(rank in slot.seats or rank in self.dead for rank in self.view.ranks)

    def _look(self, slot: ElasticSlot) -> None:
        """All that live have come, or the members have changed: let go whom nothing holds."""
        if not self._is_complete(slot):
            return
        gone = [rank for rank in self.dead if rank in self.view.ranks]
        if not gone and self._is_plain(slot):
            self._complete_plain(slot)
            return
        for seat in list(slot.seats.values()):
            if not (seat.done or seat.asking or seat.rank in self.dead):
                self._look_after(slot, seat, gone)

    def _is_plain(self, slot: ElasticSlot) -> bool:
        """Nothing is out of the ordinary: the data moves as on any backend."""
        op, ranks = slot.gathering.op, self.view.ranks
        whole = op in _ALIKE or all(seat.size == len(ranks) for seat in slot.seats.values())
        holes = op in ("all_gather", "reduce_scatter") and self._slots() != tuple(range(len(ranks)))
        held = any(seat.done or seat.asking or seat.failed or self._lost(slot, seat) for seat in slot.seats.values())
        return whole and len(slot.seats) == len(ranks) and not (held or holes or slot.mismatched)

    def _complete_plain(self, slot: ElasticSlot) -> None:
        seats = [slot.seats[rank] for rank in self.view.ranks]
        entries = [seat.entry for seat in seats]
        root, places = entries[0].root, range(len(entries))
        if root is not None and (root not in places or self._slots()[: len(entries)] != tuple(places)):
            self._finish_all(slot, seats)  # roots are slots, and slots have holes, or the root has left them
            return
        move(entries)
        self.wire.keep(slot.parity, [seat.writes for seat in seats])
        for seat in seats:
            self._let_go(slot, seat)
        self._close(slot)

    def _finish_all(self, slot: ElasticSlot, seats: list[Seat]) -> None:
        for seat in seats:
            self._finish(slot, seat)

    def _look_after(self, slot: ElasticSlot, seat: Seat, gone: list[int]) -> None:
        """What holds one rank: peers that were dead when it came, or that died while it waited."""
        since = [rank for rank in gone if rank not in slot.seats and self._place(rank) not in seat.failed]
        if not since:
            self._add_expelled(slot, seat)
        if not (seat.failed or since):
            self._finish(slot, seat)
        elif not since:
            self._found_dead(slot, seat)
        elif not seat.timed:
            seat.timed = True
            env, knobs = self.sim.scheduler.env, self.handles[seat.place].process
            died_s = max(self.dead[rank] for rank in since)
            at_s = next_probe_s(seat.entered_s, knobs.collective_timeout_s, max(float(env.now), died_s))
            env.timeout(max(0.0, at_s - env.now)).callbacks.append(lambda _: self._probe(slot, seat))

    def _add_expelled(self, slot: ElasticSlot, seat: Seat) -> None:
        """Members that died after the rank came, and were taken out of the group before it asked: no data of theirs."""
        seat.failed |= dict.fromkeys(self._place(rank) for rank in self._lost(slot, seat))

    def _lost(self, slot: ElasticSlot, seat: Seat) -> list[int]:
        if not self.dead or seat.members is self.view.ranks:
            return []
        return [rank for rank in seat.members if rank in self.dead and rank not in slot.seats]

    def _probe(self, slot: ElasticSlot, seat: Seat) -> None:
        seat.timed = False
        if not (seat.done or seat.asking or seat.rank in self.dead):
            self._found_dead(slot, seat)

    def _found_dead(self, slot: ElasticSlot, seat: Seat) -> None:
        """The rank cannot reach the dead: it reports them, and asks for a decision."""
        since = [rank for rank in self.dead if rank in self.view.ranks and rank not in slot.seats]
        seat.failed |= dict.fromkeys(self._place(rank) for rank in since)
        handle = self.handles[seat.place]
        if not seat.failed:
            self._finish(slot, seat)
            return
        seat.asking = handle.settings.auto_sync_on_failure
        ask(handle, list(seat.failed), lambda: self._finish(slot, seat), waits=seat.asking)

    def _finish(self, slot: ElasticSlot, seat: Seat) -> None:
        """A rank goes on with what is in its buffer."""
        if seat.done:
            return
        active = self._slots()
        writes = [other.writes for other in slot.seats.values()]
        self.wire.read(slot.parity, seat.entry, seat.place, writes, frozenset(active), seat.size)
        if seat.failed:
            note_partial(self.handles[seat.place], slot, seat)
        self._let_go(slot, seat)
        if all(other.done or rank in self.dead for rank, other in slot.seats.items()):
            self.wire.keep(slot.parity, writes)
            self._close(slot)

    def _let_go(self, slot: ElasticSlot, seat: Seat) -> None:
        seat.done = True
        seat.over.succeed()

    def _close(self, slot: ElasticSlot) -> None:
        slot.done = True
        slot.entries.clear()
        for position in slot.positions:
            self.sim.follow(position)
        self.slots.pop(slot.gathering.seq or 0, None)
        self.sim.scheduler.progress()
        self.sim.log("complete", slot.gathering.op, self.view.label, f"seq={slot.gathering.seq}")
        for finished in slot.finished:
            finished()

    def let_leave(self) -> bool:
        return False

    # -- members ---------------------------------------------------------------------------------------------------

    def end(self, rank: int) -> None:
        """The process of `rank` is gone. Its peers find out one by one."""
        self.dead[rank] = float(self.sim.scheduler.env.now)
        for slot in list(self.slots.values()):
            self._look(slot)  # type: ignore[arg-type]

    def forget(self, rank: int) -> None:
        """A member was killed. What it had sent in a collective is there; its messages are not."""
        for message in [m for m in (*self._sends, *self._receives, *self._held) if m.wait.rank == rank]:
            self.withdraw(message)

    def _on_change(self, before: frozenset[int]) -> None:
        """Other slots are active: ranks, masks and numbers follow, and so do collectives that wait."""
        assert self.record is not None
        view, active = self.view, self.record.active
        ranks = tuple(self.rank_of(slot) for slot in active)
        numbers = [self.next_seq.get(rank, 0) for rank in view.ranks if rank not in self.dead] or [0]
        for slot in active:
            if slot not in before:
                self.next_seq[self.rank_of(slot)] = min(numbers)
        self._first_seq = max(numbers)
        self.view = GroupView(view.name, view.desc, ranks, view.backend)
        for handle in self.handles.values():
            handle.follow()
        note_grown(self, [self.rank_of(slot) for slot in active if slot not in before])
        self.sim.scheduler.progress()
        self.sim.log("admit", view.label, list(ranks))
        for call in list(self.slots.values()):
            call.gathering.group = self.view
            self._look(call)  # type: ignore[arg-type]

    # -- messages --------------------------------------------------------------------------------------------------

    def _deliver(self, send: Message, receive: Message) -> None:
        gives, takes = send.tensor, receive.tensor
        if gives.numel() * gives.element_size() != takes.numel() * takes.element_size():
            self._note_message(send, receive)
            self._receives.append(receive)  # it goes on waiting: its sender is about to end
            abort(self.sim, send.wait.rank, BAD_CHUNK, self.view)
            return
        if gives.dtype is not takes.dtype:
            self._note_message(send, receive)
            gives = gives.detach().contiguous().reshape(-1).view(takes.dtype).reshape(takes.shape)
        deliver(takes, gives)
        self._met(send, receive)

    def _met(self, send: Message, receive: Message) -> None:
        receive.token = send.token
        send.partner, receive.partner = receive.wait.rank, send.wait.rank
        send.met.succeed()
        receive.met.succeed()
        self.sim.scheduler.progress()
        self.sim.log("message", self.view.label, f"{send.wait.rank}->{receive.wait.rank}", f"tag={send.wait.tag}")
        for finished in (send.finished, receive.finished):
            if finished is not None:
                finished()
