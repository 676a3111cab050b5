"""What asynchronous calls return: handles on collectives and messages, and their futures. They block in virtual time.

A future is settled by its own rank: in `wait`, or on a thread of that rank once somebody has attached a callback, so
that callbacks run among their own rank's state. While autograd runs a backward pass, `get_future` waits at once: there
C++ (DistributedDataParallel's reducer) waits for the future, and would block the simulation's only running thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as _c

from simulator.backends import seconds
from simulator.communicator import Slot
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.torch_world.host_order import Part
from simulator.torch_world.in_flight import over

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup

PAIR_CLOSURE = "Application timeout caused pair closure"
NO_SOURCE = "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."


class SimFuture(torch.futures.Future):  # type: ignore[type-arg]
    """The future of a piece of work."""

    def __new__(cls, work: SimWork) -> SimFuture:
        return super().__new__(cls)

    def __init__(self, work: SimWork) -> None:
        super().__init__()
        self._work = work
        self._watched = False
        self._is_set = False

    def settle(self) -> None:
        """Give the future its value or error, once its work has come to an end."""
        if self._is_set or not self._work.settled():
            return
        self._work.heard()
        over(self._work._group.sim, self._work)
        self._is_set = True
        error = self._work.exception()
        if error is None:
            self.set_result(self._work.result())
        else:
            self.set_exception(error)

    def watch(self) -> None:
        """See to it that the future is settled although nobody waits for it."""
        self.settle()
        if not (self._is_set or self._watched):
            self._watched = True
            threading.Thread(target=self._attend, name="future", daemon=True).start()

    def _attend(self) -> None:
        self._work.wait_quietly()
        self.settle()

    def wait(self) -> Any:
        self._work.wait_quietly()
        self.settle()
        return super().wait()

    def done(self) -> bool:
        if not self._is_set and self._work.is_completed():
            self.settle()
        return super().done()

    def value(self) -> Any:
        self.settle()
        return super().value()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        self.watch()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.watch()
        super().add_done_callback(callback)


class SimWork(_c.Work):
    """A handle on a collective or a message.

    Args:
        limit_s: time-out in virtual seconds; None: that of the group.

    Attributes:
        part: what its rank learns at the end, if some rank has symmetric memory.
    """

    part: Part | None = None

    def __init__(
        self,
        group: SimProcessGroup,
        op: str,
        outputs: Sequence[Tensor],
        stack: Stack,
        limit_s: float | None = None,
    ) -> None:
        super().__init__()
        self._group = group
        self._op = op
        self._outputs = list(outputs)
        self._stack = stack
        self._limit_s = group.timeout_s if limit_s is None else limit_s
        self._issued_s = float(group.sim.scheduler.env.now)
        self._error: BaseException | None = None
        self._future: SimFuture | None = None

    # -- what subclasses know ------------------------------------------------------------------------------------

    def _met(self) -> Any:
        """The simpy event that triggers when the work can go on (done, or a member lost)."""
        raise NotImplementedError

    def _done(self) -> bool:
        raise NotImplementedError

    def _failure(self) -> BaseException | None:
        """The error that has become known by now, if there is one."""
        return None

    def _waiting_for(self) -> Wait:
        raise NotImplementedError

    # -- waiting -------------------------------------------------------------------------------------------------

    def settled(self) -> bool:
        """Whether it has come to an end, good or bad."""
        if self._error is not None or self._done():
            return True
        self._error = self._failure()
        return self._error is not None or self._done()

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            return self.wait_up_to(seconds(timeout), named=True)
        finally:
            over(self._group.sim, self)

    def wait_up_to(self, limit_s: float | None, *, named: bool) -> bool:
        """`wait`; `named`: the user named the time-out, so it may be meant to strike."""
        self._group.unwaited.pop(id(self), None)
        if not self.settled():
            self._group.sim.must_be_here(f"wait for {self._op}")
            self._block(limit_s, named)
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        self.heard()
        return True

    def heard(self) -> bool:
        """The rank hears of the end. True, so that a query can say it in passing."""
        part, self.part = self.part, None
        if part is not None and self._error is None:
            part.finish()
        return True

    def wait_quietly(self) -> None:
        """Wait for the end; `exception` has the error."""
        try:
            self.wait()
        except Exception as error:
            self._error = self._error or error

    def _block(self, explicit_s: float | None, named: bool) -> None:
        group = self._group
        wait = self._waiting_for()
        wait.deadline_is_explicit = named and explicit_s is not None
        limits = [limit for limit in (self._left_s(), explicit_s) if limit is not None]
        if group.sim.wait(self._met(), wait, min(limits) if limits else None):
            if not self.settled():
                self._error = group.lost_error()
        elif explicit_s is not None and explicit_s == min(limits):
            self._give_up_waiting(explicit_s)
        else:
            self._time_out()

    def _left_s(self) -> float | None:
        """Virtual seconds until the work times out; None: never."""
        group = self._group
        if not group.model.keeps_time:
            return None
        return max(0.0, self._issued_s + self._limit_s - float(group.sim.scheduler.env.now))

    def _give_up_waiting(self, explicit_s: float) -> None:
        """The time-out of `wait` struck: the work itself goes on."""
        raise RuntimeError("Operation timed out!")

    def _time_out(self) -> None:
        """The work's own time-out struck."""
        group = self._group
        self._error = group.model.timed_out(int(self._limit_s * 1000), self._op)
        wait = self._waiting_for()
        group.sim.note(
            "timeout", str(self._error), stack=self._stack, group=group.comm.view, what=wait.what, doing=wait.text
        )
        group.give_up(PAIR_CLOSURE)

    # -- torch's interface ---------------------------------------------------------------------------------------

    def is_completed(self) -> bool:
        if not self.settled():
            self._group.sim.scheduler.poll(f"{self._op}.is_completed()")
        return self._seen_to_be(self.settled())

    def is_success(self) -> bool:
        return self._seen_to_be(self.settled() and self._error is None)

    def _seen_to_be(self, ended: bool) -> bool:
        """A query says yes: the rank has heard of the end."""
        if ended:
            self.heard()
            over(self._group.sim, self)
        return ended

    def exception(self) -> BaseException | None:
        return self._error if self.settled() else None

    def result(self) -> list[Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        raise RuntimeError(NO_SOURCE)

    def get_future(self) -> Any:
        if self._future is None:
            self._future = SimFuture(self)
        if torch._C._current_graph_task_id() != -1:
            self.wait_quietly()
        self._future.settle()
        return self._future

    def get_future_result(self) -> Any:
        return self.get_future()


class CollectiveWork(SimWork):
    """One rank's part in a collective."""

    def __init__(
        self,
        group: SimProcessGroup,
        slot: Slot,
        outputs: Sequence[Tensor],
        stack: Stack,
        limit_s: float | None = None,
    ) -> None:
        super().__init__(group, slot.gathering.op, outputs, stack, limit_s)
        self._slot = slot

    def _met(self) -> Any:
        return self._slot.barrier.released

    def _done(self) -> bool:
        return self._slot.done or self._group.global_rank in self._slot.left

    def _failure(self) -> BaseException | None:
        if self._slot.error is not None:
            return self._slot.error
        if self._slot.broken:
            return self._group.lost_error()
        if self._left_s() == 0.0:
            self._time_out()
        return self._error

    def _waiting_for(self) -> Wait:
        gathering = self._slot.gathering
        text = f"{gathering.op} on group '{gathering.group.label}' seq {gathering.seq}"
        return Wait("collective", text, self._stack, gathering)


class LambdaWork(CollectiveWork):
    """gloo's reduce_scatter: a function that runs in `wait`; it never counts as completed, and has no future."""

    def is_success(self) -> bool:
        return True

    def is_completed(self) -> bool:
        self._group.sim.scheduler.poll(f"{self._op}.is_completed()")
        return False

    def result(self) -> list[Tensor]:
        raise RuntimeError("result() not implemented.")

    def get_future(self) -> Any:
        raise RuntimeError("Work::getFuture not implemented.")


class FinishedWork(SimWork):
    """Work that was over when it was issued; with `error`, in a bad way."""

    def __init__(
        self,
        group: SimProcessGroup,
        op: str,
        outputs: Sequence[Tensor],
        stack: Stack,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(group, op, outputs, stack)
        self._error = error

    def _done(self) -> bool:
        return True
