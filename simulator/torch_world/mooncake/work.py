"""What Mooncake's asynchronous calls return. Time-outs of `wait` and of the group are ignored, but for messages.

A message that nobody takes is given up after `set_p2p_timeout_us`: its sender or receiver reports the peer, waits for
the coordinator's decision, and goes on as if all were well; only `get_local_success` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulator.communicator import Message
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.message_work import MessageWork
from simulator.records import Note
from simulator.torch_world.mooncake.failures import ask
from simulator.torch_world.mooncake.seats import ElasticSlot
from simulator.work import CollectiveWork, FinishedWork

if TYPE_CHECKING:
    from simulator.torch_world.mooncake.group import MooncakeGroup

RECONNECT_S = 1.0
"""How long a process tries to reach one that is gone (measured)."""
_NO_FUTURE = "Work::getFuture not implemented."


def hint_of(group: MooncakeGroup, failed: Sequence[int]) -> Tensor:
    """[max_group_size], int32: 1 for each slot that could not be reached."""
    hint = torch.zeros(group.settings.max_group_size, dtype=torch.int32)
    for slot in failed:
        hint[slot] = 1
    return hint


class LocalWork(FinishedWork):
    """A collective of a rank that is alone."""

    def local_success(self) -> bool:
        return True

    def failed_slots(self) -> list[int]:
        return []


class ElasticWork(CollectiveWork):
    """One rank's part in a collective of a group whose members may go."""

    def __init__(self, group: MooncakeGroup, slot: ElasticSlot, outputs: Sequence[Tensor], stack: Stack) -> None:
        super().__init__(group, slot, outputs, stack)
        self.seat = slot.seats[group.global_rank]

    def local_success(self) -> bool:
        """Whether all active peers could be reached, as far as is known by now."""
        if self.seat.note is not None:
            self.seat.note.facts["asked"] = True
        return not (self.seat.done and self.seat.failed)

    def failed_slots(self) -> list[int]:
        self.local_success()
        return list(self.seat.failed) if self.seat.done else []

    def _met(self) -> Any:
        return self.seat.over

    def _done(self) -> bool:
        return self.seat.done

    def _failure(self) -> BaseException | None:
        return self._slot.error

    def wait_up_to(self, limit_s: float | None, *, named: bool) -> bool:
        return super().wait_up_to(None, named=False)

    def get_future(self) -> Any:
        raise RuntimeError(_NO_FUTURE)


class ElasticMessage(MessageWork):
    """A posted send or receive."""

    def __init__(self, group: MooncakeGroup, message: Message, peer: int) -> None:
        super().__init__(group, message)
        self._mooncake = group
        self._peer = peer
        self._gave_up = False
        self._refused = message.wait.op == "recv" and message.wait.peer in group.comm.dead
        self.note: Note | None = None

    def local_success(self) -> bool:
        """Whether it is over and went well."""
        if self.note is not None:
            self.note.facts["asked"] = True
        return self.settled() and not self._gave_up

    def failed_slots(self) -> list[int]:
        self.local_success()
        return [self._peer] if self._gave_up else []

    def _done(self) -> bool:
        return self._gave_up or super()._done()

    def _failure(self) -> BaseException | None:
        return None

    def _ends_s(self) -> float:
        """When it is given up. A receive writes to its sender at once, and so hears soon that nobody is there."""
        return self._issued_s + (RECONNECT_S if self._refused else self._mooncake.process.p2p_timeout_s)

    def _block(self, explicit_s: float | None, named: bool) -> None:
        group = self._group
        wait, now_s = self._waiting_for(), float(group.sim.scheduler.env.now)
        wait.deadline_is_explicit = True
        limits = [max(0.0, self._ends_s() - now_s), *([] if explicit_s is None else [explicit_s])]
        if not group.sim.wait(self._met(), wait, min(limits)) and explicit_s != min(limits):
            self._ask(wait)

    def _ask(self, wait: Wait) -> None:
        """Nobody has taken it: report the peer, and wait for what the coordinator decides."""
        group, comm = self._mooncake, self._mooncake.comm
        comm.withdraw(self._message)
        decided = group.sim.scheduler.event()
        waits = group.settings.auto_sync_on_failure and not self._is_decided()
        ask(group, [self._peer], lambda: self._leave(decided), waits=waits)
        if not self._gave_up:
            text = f"the coordinator's decision after {wait.text}"
            group.sim.wait(decided, Wait("decision", text, self._stack, wait.what))

    def _is_decided(self) -> bool:
        """It was given up some time ago, and the coordinator has decided since."""
        coordinator, now_s = self._mooncake.process.coordinator, float(self._group.sim.scheduler.env.now)
        if coordinator is None or now_s <= self._ends_s():
            return False
        return coordinator.decided_s >= self._ends_s() or now_s >= self._ends_s() + coordinator.window_s

    def _leave(self, decided: Any) -> None:
        sim, peer = self._group.sim, self._message.wait
        self._gave_up = True
        facts = {
            "group": self._group.comm.view, "what": peer, "doing": self._waiting_for().text, "asked": False,
            "waited_s": float(sim.scheduler.env.now) - self._issued_s,
        }  # fmt: skip
        now_s = float(sim.scheduler.env.now)
        self.note = Note("gave_up", peer.rank, f"{facts['doing']} was given up", self._stack, now_s, facts)
        sim.records.notes.append(self.note)
        self._mooncake.partial.append(self.note)
        decided.succeed()

    def is_completed(self) -> bool:
        if not self.settled() and float(self._group.sim.scheduler.env.now) >= self._ends_s():
            self._ask(self._waiting_for())
        return super().is_completed()

    def get_future(self) -> Any:
        raise RuntimeError(_NO_FUTURE)
