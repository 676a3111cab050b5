"""Where the ranks of one process group meet: collectives by number, messages by sender, receiver and tag."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import simpy
from torch import Tensor

from simulator.arguments import run_error
from simulator.backends import MODELS
from simulator.barrier_model import CohortBarrier
from simulator.collectives import Entry, deliver, move, split_disagreement
from simulator.contacts import Calls, Contacts
from simulator.early_exits import left_behind, may_leave, take_share
from simulator.engine.site import Stack
from simulator.records import Gathering, GroupView, Note, PeerWait
from simulator.torch_world import host_order
from simulator.torch_world.simulation import Simulation

if TYPE_CHECKING:
    from simulator.gpu_groups import Claim

ANY_SOURCE = -1
CLOSING_S = 1e-3
"""Virtual seconds from the closing of a connection until the other end notices."""

Facts = dict[str, object]


@dataclass(slots=True, eq=False)
class Slot:
    """One collective of one group.

    Attributes:
        agreed: the signature of the first entry, with which all others are compared.
        note: says that what its members brought does not fit together; it never completes.
        broken: a member is gone.
        error: what every member gets.
        positions: how far each who came had come in the log of operations.
        left: global ranks that went on before all others had come.
        calling: whose hosts have called, on backends whose devices come later.
        finished: called once it is over.
    """

    gathering: Gathering
    barrier: CohortBarrier
    entries: dict[int, Entry] = field(default_factory=dict)
    agreed: Facts | None = None
    note: Note | None = None
    done: bool = False
    broken: bool = False
    error: BaseException | None = None
    positions: list[int | None] = field(default_factory=list)
    left: dict[int, None] = field(default_factory=dict)
    calling: Calls | None = None
    finished: list[Callable[[], None]] = field(default_factory=list)

    @property
    def mismatched(self) -> bool:
        return self.note is not None


@dataclass(slots=True, eq=False)
class Message:
    """A posted send or receive.

    Attributes:
        partner: the rank at the other end, once the two have met.
        position: how far its rank had come in the log of operations.
        token: of a send, in the log of memory; of a receive, that of its send.
        finished: called once the two have met.
    """

    wait: PeerWait
    tensor: Tensor
    met: simpy.Event
    stack: Stack
    partner: int | None = None
    position: int | None = None
    token: Hashable = None
    finished: Callable[[], None] | None = None


class Communicator:
    """The shared side of a process group.

    Args:
        view: name, description, global ranks, backend.
        key: identity under the store (for the trace).

    Attributes:
        eager: it is connected when it is made, not at its first call.
        contacts: what its members have connected so far, where that holds the host.
        claims: the simulated GPU that each member has brought, by global rank.
    """

    def __init__(self, sim: Simulation, view: GroupView, key: str) -> None:
        self.sim = sim
        self.view = view
        self.model = MODELS[view.backend]
        self.key = key
        self.number = next(sim.numbers)
        self.slots: dict[int, Slot] = {}
        self.next_seq: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self.eager = False
        self.claims: dict[int, Claim] = {}
        self.contacts = Contacts(sim.scheduler.env, view)
        self._sends: list[Message] = []
        self._receives: list[Message] = []
        self._held: list[Message] = []
        sim.communicators.append(self)

    # -- collectives ---------------------------------------------------------------------------------------------

    def call(self, rank: int, entry: Entry, stack: Stack) -> tuple[Slot, Calls]:
        """The host of `rank` (global) calls its next collective, which its device will `enter`."""
        slot = self._next_slot(rank, entry)
        slot.calling = slot.calling or self.contacts.calls(entry.op, slot.gathering.seq)
        slot.calling.add(rank, stack)
        return slot, slot.calling

    def _next_slot(self, rank: int, entry: Entry) -> Slot:
        self.sim.announce_within(entry.op, ("collective", self.key, rank))
        seq = self.next_seq.get(rank, 0)
        self.next_seq[rank] = seq + 1
        slot = self.slots.get(seq)
        if slot is None:
            slot = self.slots[seq] = self._open(entry, seq)
        slot.positions.append(self.sim.position())
        return slot

    def enter(self, rank: int, entry: Entry, stack: Stack, slot: Slot | None = None) -> Slot:
        """`rank` (global) brings its part to its next collective; the last one to come moves the data."""
        slot = slot or self._next_slot(rank, entry)
        self._compare(slot, rank, entry, stack)
        slot.gathering.arrived[rank] = stack
        slot.entries[rank] = entry
        now_s, seq = self.sim.scheduler.env.now, slot.gathering.seq
        self.sim.trace.add(now_s, rank, "enter", entry.op, self.view.label, f"seq={seq}")
        if len(slot.entries) == len(slot.barrier.expected):
            self._compare_splits(slot)
        if not (slot.mismatched or slot.broken):
            faults = self.sim.faults
            is_last = faults is not None and slot.barrier.complete_with_one_more
            if faults is None or not (is_last and faults.hold(slot.gathering, lambda: self._arrive(slot, rank))):
                self._arrive(slot, rank)
        return slot

    def _arrive(self, slot: Slot, rank: int) -> None:
        if not slot.broken:
            slot.barrier.arrive(rank)
            if slot.barrier.complete:
                self._complete(slot)

    def _open(self, entry: Entry, seq: int) -> Slot:
        gathering = Gathering(entry.op, self.view, seq)
        return Slot(gathering, CohortBarrier(self.sim.scheduler.env, self.view.ranks))

    def _compare(self, slot: Slot, rank: int, entry: Entry, stack: Stack) -> None:
        """A collective that does not fit together is noted once, with the sides of all who come."""
        mine = entry.signature()
        if slot.note is not None:
            slot.note.facts["sides"] += ((rank, mine, stack),)
            return
        if slot.agreed is None:
            slot.agreed = mine
        odd = entry.scrambled() if entry.raw else None
        if odd is None and slot.agreed == mine:
            return
        text = "differs between ranks"
        if odd is not None:
            text = f"has a tensor of shape {list(odd.shape)} with strides {list(odd.stride())}, which are ignored"
        others = [(r, e.signature(), slot.gathering.arrived[r]) for r, e in slot.entries.items()]
        self._note_mismatch(slot, text, (*others, (rank, mine, stack)))

    def _note_mismatch(self, slot: Slot, text: str, sides: tuple[tuple[int, Facts, Stack], ...]) -> None:
        self.sim.note(
            "mismatch",
            f"collective seq {slot.gathering.seq} on group '{self.view.label}' {text}",
            stack=sides[-1][2],
            group=self.view,
            seq=slot.gathering.seq,
            sides=sides,
        )
        slot.note = self.sim.records.notes[-1]

    def _compare_splits(self, slot: Slot) -> None:
        """All are there: what each sends must be what the other expects, in an all_to_all."""
        ranks, op = self.view.ranks, slot.gathering.op
        wrong = split_disagreement(self._entries(slot)) if op.startswith("all_to_all") and not slot.mismatched else None
        if wrong is not None:
            sender, receiver = ranks[wrong[0]], ranks[wrong[1]]
            way = f"elements from rank {sender} to rank {receiver}"
            arrived = slot.gathering.arrived
            gives: Facts = {"op": op, way: wrong[2]}
            takes: Facts = {"op": op, way: wrong[3]}
            sides = ((sender, gives, arrived[sender]), (receiver, takes, arrived[receiver]))
            self._note_mismatch(slot, "differs between ranks", sides)

    def _entries(self, slot: Slot) -> list[Entry]:
        return [slot.entries[rank] for rank in self.view.ranks]

    def _complete(self, slot: Slot) -> None:
        entries = self._entries(slot)
        slot.error = run_error(self.model, entries[0])
        if slot.error is None:
            slot.error = _moved(entries)
        slot.done = slot.error is None
        slot.entries.clear()
        for position in slot.positions:
            self.sim.follow(position)
        del self.slots[slot.gathering.seq or 0]
        self.sim.scheduler.progress()
        self.sim.log("complete", slot.gathering.op, self.view.label, f"seq={slot.gathering.seq}")
        for finished in slot.finished:
            finished()

    def let_leave(self) -> bool:
        """Nothing can move: let go whom the backend lets go before all have come. True if some rank goes on."""
        slots = [slot for slot in self.slots.values() if not (slot.mismatched or slot.broken)]
        return self.model.early_exits and any(self._let_leave(slot) for slot in slots)

    def _let_leave(self, slot: Slot) -> bool:
        ranks, first = self.view.ranks, next(iter(slot.entries.values()))
        root, tensors = first.root, first.inputs or first.outputs
        if root is None or not tensors or run_error(self.model, first) is not None:
            return False
        here = [place for place, rank in enumerate(ranks) if rank in slot.entries]
        length, itemsize = tensors[0].numel(), tensors[0].element_size()
        free = may_leave(first.op, root, len(ranks), here, length=length, itemsize=itemsize)
        leaving = [place for place in free if ranks[place] not in slot.left]
        for place in leaving:
            take_share(slot.entries[ranks[place]], place, slot.entries.get(ranks[root]))
        for place in leaving:
            slot.left[ranks[place]] = None
            slot.entries[ranks[place]] = left_behind(slot.entries[ranks[place]])
        woken = [self.sim.go_on_after(slot.gathering, ranks[place]) for place in leaving]
        return any(woken)

    # -- messages ------------------------------------------------------------------------------------------------

    def post_send(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """Send from `rank` to `peer` (global ranks). Complete once the receive is posted, whatever the size."""
        return self.offer(self.prepare_send(rank, peer, tensor, tag, stack))

    def prepare_send(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """A send that nobody meets before `offer`."""
        self.sim.announce("send", ("message", self.key, peer, rank, tag))
        message = Message(PeerWait("send", self.view, rank, peer, tag), tensor, self.sim.scheduler.event(), stack)
        message.token = host_order.send(self.sim, tensor, stack)
        message.position = self.sim.position()
        self.sim.log("send", self.view.label, f"to={peer}", f"tag={tag}")
        return message

    def post_receive(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """Receive at `rank` from `peer` (global rank, or ANY_SOURCE)."""
        return self.offer(self.prepare_receive(rank, peer, tensor, tag, stack))

    def prepare_receive(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """A receive that nobody meets before `offer`."""
        self.sim.announce("recv", ("receive", self.key, rank, peer, tag))
        message = Message(PeerWait("recv", self.view, rank, peer, tag), tensor, self.sim.scheduler.event(), stack)
        message.position = self.sim.position()
        self.sim.log("recv", self.view.label, f"from={peer}", f"tag={tag}")
        return message

    def offer(self, message: Message) -> Message:
        """Let the other end meet a message, if it is there already or once it comes."""
        faults = self.sim.faults
        if faults is not None and faults.hold(message.wait, lambda: self._release(message)):
            self._held.append(message)
            return message
        return self._offer(message)

    def _release(self, message: Message) -> None:
        if message in self._held:
            self._held.remove(message)
            self._offer(message)

    def _offer(self, message: Message) -> Message:
        if message.wait.op == "send":
            return self._post(message, self._sends, self._receives, _fits)
        return self._post(message, self._receives, self._sends, lambda mine, theirs: _fits(theirs, mine))

    def _post(
        self, message: Message, mine: list[Message], others: list[Message], fits: Callable[[PeerWait, PeerWait], bool]
    ) -> Message:
        for other in others:
            if fits(message.wait, other.wait):
                others.remove(other)
                self.sim.follow(other.position)
                sends = message.wait.op == "send"
                self._deliver(message, other) if sends else self._deliver(other, message)
                return message
        mine.append(message)
        return message

    def _deliver(self, send: Message, receive: Message) -> None:
        if send.tensor.numel() != receive.tensor.numel() or send.tensor.dtype != receive.tensor.dtype:
            self._note_message(send, receive)
            return
        deliver(receive.tensor, send.tensor)
        receive.token = send.token
        send.partner, receive.partner = receive.wait.rank, send.wait.rank
        send.met.succeed()
        receive.met.succeed()
        self.sim.scheduler.progress()
        self.sim.log("message", self.view.label, f"{send.wait.rank}->{receive.wait.rank}", f"tag={send.wait.tag}")
        for finished in (send.finished, receive.finished):
            if finished is not None:
                finished()

    def _note_message(self, send: Message, receive: Message) -> None:
        def facts(message: Message) -> dict[str, object]:
            return {"op": message.wait.op, "dtype": message.tensor.dtype, "elements": message.tensor.numel()}

        self.sim.note(
            "mismatch",
            f"message from rank {send.wait.rank} to rank {receive.wait.rank} on group '{self.view.label}' "
            "differs in size or dtype",
            stack=receive.stack,
            group=self.view,
            seq=None,
            sides=((send.wait.rank, facts(send), send.stack), (receive.wait.rank, facts(receive), receive.stack)),
        )

    def withdraw(self, message: Message) -> None:
        """A time-out struck: the message is no longer offered."""
        for queue in (self._sends, self._receives, self._held):
            if message in queue:
                queue.remove(message)

    def forget(self, rank: int) -> None:
        """A member was killed: what only it could have brought to an end stays open."""
        for message in [m for m in (*self._sends, *self._receives, *self._held) if m.wait.rank == rank]:
            self.withdraw(message)
        for slot in self.slots.values():
            if rank in slot.entries and not (slot.barrier.complete or slot.mismatched):
                del slot.entries[rank], slot.gathering.arrived[rank]
                slot.barrier.withdraw(rank)

    # -- the end of a member ---------------------------------------------------------------------------------------

    def lose(self, rank: int, reason: str) -> None:
        """A member is gone. Those who wait for it find out, each in its backend's way."""
        self.lost.setdefault(rank, reason)
        for slot in self.slots.values():
            if not (slot.mismatched or slot.barrier.released.triggered):
                slot.broken = True
                slot.barrier.released.succeed()
        for message in (*self._sends, *self._receives):
            if rank in (message.wait.peer, message.wait.rank) and not message.met.triggered:
                message.met.succeed()

    def give_up(self, rank: int, reason: str) -> None:
        """A time-out struck at `rank`, which closes its connections; the others notice a moment later."""
        if rank not in self.lost:
            self.lost[rank] = reason
            closing = self.sim.scheduler.env.timeout(CLOSING_S)
            closing.callbacks.append(lambda _: self.lose(rank, reason))

    def lost_member(self) -> tuple[int, str] | None:
        """The first member that is gone, with the reason."""
        return next(iter(self.lost.items()), None)


def _fits(send: PeerWait, receive: PeerWait) -> bool:
    return (
        send.peer == receive.rank
        and receive.peer in (send.rank, ANY_SOURCE)
        and send.tag == receive.tag
        and send.channel == receive.channel
    )  # fmt: skip


def _moved(entries: Sequence[Entry]) -> BaseException | None:
    """Move the data; the error that this gave."""
    try:
        move(entries)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        return error
    return None
