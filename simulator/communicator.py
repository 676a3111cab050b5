"""Where the ranks of one process group meet: collectives by number, messages by sender, receiver and tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import simpy
import torch
from torch import Tensor

from simulator.barrier_model import CohortBarrier
from simulator.collectives import Entry, move, split_disagreement
from simulator.engine.site import Stack
from simulator.records import Gathering, GroupView, PeerWait
from simulator.torch_world.simulation import Simulation

ANY_SOURCE = -1


@dataclass(slots=True, eq=False)
class Slot:
    """One collective of one group."""

    gathering: Gathering
    barrier: CohortBarrier
    entries: dict[int, Entry] = field(default_factory=dict)
    mismatched: bool = False
    done: bool = False


@dataclass(slots=True, eq=False)
class Message:
    """A posted send or receive. `partner` is the rank at the other end once the two have met."""

    wait: PeerWait
    tensor: Tensor
    met: simpy.Event
    stack: Stack
    partner: int | None = None


class Communicator:
    """The shared side of a process group.

    Args:
        view: name, description, global ranks, backend.
        key: identity under the store (for the trace).
    """

    def __init__(self, sim: Simulation, view: GroupView, key: str) -> None:
        self.sim = sim
        self.view = view
        self.key = key
        self.slots: dict[int, Slot] = {}
        self.next_seq: dict[int, int] = {}
        self.lost: dict[int, str] = {}
        self._sends: list[Message] = []
        self._receives: list[Message] = []

    # -- collectives ---------------------------------------------------------------------------------------------

    def enter(self, rank: int, entry: Entry, stack: Stack) -> Slot:
        """`rank` (global) brings its part to its next collective; the last one to come moves the data."""
        seq = self.next_seq.get(rank, 0)
        self.next_seq[rank] = seq + 1
        slot = self.slots.get(seq)
        if slot is None:
            slot = self.slots[seq] = self._open(entry, seq)
        self._compare(slot, rank, entry, stack)
        slot.gathering.arrived[rank] = stack
        slot.entries[rank] = entry
        self.sim.log("enter", entry.op, self.view.label, f"seq={seq}")
        if not slot.mismatched:
            slot.barrier.arrive(rank)
            if slot.barrier.complete:
                self._complete(slot)
        return slot

    def _open(self, entry: Entry, seq: int) -> Slot:
        gathering = Gathering(entry.op, self.view, seq)
        return Slot(gathering, CohortBarrier(self.sim.scheduler.env, self.view.ranks))

    def _compare(self, slot: Slot, rank: int, entry: Entry, stack: Stack) -> None:
        if not slot.entries:
            return
        other = next(iter(slot.entries))
        mine, theirs = entry.signature(), slot.entries[other].signature()
        if mine == theirs:
            return
        slot.mismatched = True
        sides = ((other, theirs, slot.gathering.arrived[other]), (rank, mine, stack))
        self._note_mismatch(slot, sides)

    def _note_mismatch(self, slot: Slot, sides: tuple[tuple[int, dict[str, object], Stack], ...]) -> None:
        self.sim.note(
            "mismatch",
            f"collective seq {slot.gathering.seq} on group '{self.view.label}' differs between ranks",
            stack=sides[-1][2],
            group=self.view,
            seq=slot.gathering.seq,
            sides=sides,
        )

    def _complete(self, slot: Slot) -> None:
        entries = [slot.entries[rank] for rank in self.view.ranks]
        if entries[0].op.startswith("all_to_all"):
            wrong = split_disagreement(entries)
            if wrong is not None:
                self._note_splits(slot, wrong)
                return
        move(entries)
        slot.done = True
        slot.entries.clear()
        del self.slots[slot.gathering.seq or 0]
        self.sim.scheduler.progress()
        self.sim.log("complete", slot.gathering.op, self.view.label, f"seq={slot.gathering.seq}")

    def _note_splits(self, slot: Slot, wrong: tuple[int, int, int, int]) -> None:
        slot.mismatched = True
        slot.barrier.released = self.sim.scheduler.event()
        sender, receiver, sent, expected = wrong
        ranks = self.view.ranks
        arrived = slot.gathering.arrived
        self._note_mismatch(
            slot,
            (
                (ranks[sender], {"op": slot.gathering.op, f"sends to rank {ranks[receiver]}": sent},
                 arrived[ranks[sender]]),
                (ranks[receiver], {"op": slot.gathering.op, f"expects from rank {ranks[sender]}": expected},
                 arrived[ranks[receiver]]),
            ),
        )  # fmt: skip

    # -- messages ------------------------------------------------------------------------------------------------

    def post_send(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """Send from `rank` to `peer` (global ranks). Complete once the receive is posted, whatever the size."""
        message = Message(PeerWait("send", self.view, rank, peer, tag), tensor, self.sim.scheduler.event(), stack)
        self.sim.log("send", self.view.label, f"to={peer}", f"tag={tag}")
        return self._post(message, self._sends, self._receives, _fits)

    def post_receive(self, rank: int, peer: int, tensor: Tensor, tag: int, stack: Stack) -> Message:
        """Receive at `rank` from `peer` (global rank, or ANY_SOURCE)."""
        message = Message(PeerWait("recv", self.view, rank, peer, tag), tensor, self.sim.scheduler.event(), stack)
        self.sim.log("recv", self.view.label, f"from={peer}", f"tag={tag}")
        return self._post(message, self._receives, self._sends, lambda mine, theirs: _fits(theirs, mine))

    def _post(
        self, message: Message, mine: list[Message], others: list[Message], fits: Callable[[PeerWait, PeerWait], bool]
    ) -> Message:
        for other in others:
            if fits(message.wait, other.wait):
                others.remove(other)
                sends = message.wait.op == "send"
                self._deliver(message, other) if sends else self._deliver(other, message)
                return message
        mine.append(message)
        return message

    def _deliver(self, send: Message, receive: Message) -> None:
        if send.tensor.numel() != receive.tensor.numel() or send.tensor.dtype != receive.tensor.dtype:
            self._note_message(send, receive)
            return
        with torch.inference_mode():
            receive.tensor.copy_(send.tensor.reshape(receive.tensor.shape))
        send.partner, receive.partner = receive.wait.rank, send.wait.rank
        send.met.succeed()
        receive.met.succeed()
        self.sim.scheduler.progress()
        self.sim.log("message", self.view.label, f"{send.wait.rank}->{receive.wait.rank}", f"tag={send.wait.tag}")

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
        for queue in (self._sends, self._receives):
            if message in queue:
                queue.remove(message)

    # -- the end of a member ---------------------------------------------------------------------------------------

    def lose(self, rank: int, reason: str) -> None:
        """A member is gone. Those who wait for it find out, each in its backend's way."""
        self.lost.setdefault(rank, reason)
        for slot in self.slots.values():
            if rank not in slot.entries and not slot.barrier.released.triggered:
                slot.barrier.released.succeed()
        for message in (*self._sends, *self._receives):
            if message.wait.peer == rank and not message.met.triggered:
                message.met.succeed()

    def lost_member(self) -> tuple[int, str] | None:
        """The first member that is gone, with the reason."""
        return next(iter(self.lost.items()), None)


def _fits(send: PeerWait, receive: PeerWait) -> bool:
    return (
        send.peer == receive.rank
        and receive.peer in (send.rank, ANY_SOURCE)
        and send.tag == receive.tag
    )  # fmt: skip


def describe_peer(view: GroupView, rank: int) -> str:
    """`rank 3` or `any rank`."""
    return "any rank" if rank == ANY_SOURCE else f"rank {rank}"


Factory = Callable[[Simulation, GroupView, str], Any]
