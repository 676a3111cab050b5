"""The handle on a posted send or receive. gloo's moves on in `wait` only, and its time-out closes connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.communicator import ANY_SOURCE, Message
from simulator.engine.scheduler import Wait
from simulator.records import PeerWait
from simulator.torch_world.host_order import Part

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup
from simulator.work import NO_SOURCE, PAIR_CLOSURE, SimWork


def message_text(message: PeerWait) -> str:
    """One phrase for people."""
    other = "any rank" if message.peer == ANY_SOURCE else f"rank {message.peer}"
    direction = "to" if message.op == "send" else "from"
    tag = f" tag {message.tag}" if message.tag else ""
    return f"{message.op} {direction} {other}{tag} on group '{message.group.label}'"


class MessageWork(SimWork):
    """A posted send or receive."""

    def __init__(self, group: SimProcessGroup, message: Message) -> None:
        super().__init__(group, message.wait.op, [message.tensor], message.stack)
        self._message = message
        self._lazy = group.model.lazy_messages
        self._waited = False
        self._is_told = False

    def heard(self) -> bool:
        if self._op == "recv" and not self._is_told and self._error is None:
            self._is_told = True
            Part(self._group.sim, self._message.token, (self._message.tensor,), self._stack).finish()
        return True

    def _met(self) -> Any:
        return self._message.met

    def _done(self) -> bool:
        return self._message.partner is not None

    def _failure(self) -> BaseException | None:
        return self._group.lost_error() if self._message.met.triggered else None

    def _left_s(self) -> float | None:
        """The time-out counts from the wait on."""
        return self._limit_s if self._group.model.keeps_time else None

    def _waiting_for(self) -> Wait:
        peer = self._message.wait
        return Wait(peer.op, message_text(peer), self._stack, peer)

    def wait_up_to(self, limit_s: float | None, *, named: bool) -> bool:
        self._waited = True
        return super().wait_up_to(limit_s, named=named)

    def _give_up_waiting(self, explicit_s: float) -> None:
        """gloo closes its connections after any time-out; what waits later hears of that."""
        if not self._lazy:
            super()._give_up_waiting(explicit_s)
        self._abandon()
        raise self._group.model.timed_out(int(explicit_s * 1000), self._op)

    def _time_out(self) -> None:
        super()._time_out()
        first = self._error
        self._abandon()
        if first is not None:
            raise first

    def _abandon(self) -> None:
        self._group.comm.withdraw(self._message)
        self._group.give_up(PAIR_CLOSURE)
        self._error = self._group.lost_error()

    def is_completed(self) -> bool:
        if self._lazy:
            if not self._waited:
                self._group.sim.scheduler.poll(f"{self._op}.is_completed()")
            return self._seen_to_be(self._waited and self.settled())
        return super().is_completed()

    def get_future(self) -> Any:
        if self._lazy:
            raise RuntimeError("Work::getFuture not implemented.")
        return super().get_future()

    def _source_rank(self) -> int:
        if self._op != "recv" or self._message.partner is None:
            raise RuntimeError(NO_SOURCE)
        return self._group.comm.view.ranks.index(self._message.partner)
