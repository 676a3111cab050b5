"""How a task is suspended: on a thread of its own (the default), or as a greenlet.

Measured: a thread hand-over costs 16 to 70 us, a greenlet switch 1 to 2 us; but a greenlet that switches below a C++
frame of torch aborts the process, so greenlets are for programs that block from Python frames only, and a block that
they cannot carry is refused with the remedy.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Protocol

import greenlet

from simulator.engine.errors import UsageError

CARRIERS = ("thread", "greenlet")
_CPP_CALLERS = (
    "torch/_ops.py",
    "torch/autograd/graph.py",
    "torch/autograd/function.py",
    "torch/distributed/utils.py",
    "torch/futures/__init__.py",
    "torch/nn/parallel/distributed.py",
)


class Carrier(Protocol):
    """Exactly one carrier of a run is running at any time: it has the baton."""

    def start(self, body: Callable[[], None]) -> None:
        """Prepare `body`; it runs from the first `wake` on."""

    def wake(self) -> None:
        """Give the baton to this carrier (it goes on from its `park`)."""

    def park(self) -> None:
        """Wait, on the carrier's own stack, until `wake`."""

    def finish(self, successor: Carrier | None) -> None:
        """The body is over: hand the baton on as the last act (None: to whoever called `Scheduler.run`)."""

    def frame_owner(self) -> int:
        """The identity of the thread that runs this carrier's frames."""


class ThreadCarrier:
    """A daemon thread and a lock that is free only while the thread has the baton."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._baton = _thread.allocate_lock()
        self._baton.acquire()
        self._ident = 0

    def start(self, body: Callable[[], None]) -> None:
        def run() -> None:
            self._ident = _thread.get_ident()
            self._baton.acquire()
            body()

        threading.Thread(target=run, name=self._name, daemon=True).start()

    def adopt(self, body: Callable[[], None]) -> Callable[[], None]:
        """`body` for a thread that somebody else starts: it first waits for the baton."""

        def run() -> None:
            self._ident = _thread.get_ident()
            self._baton.acquire()
            body()

        return run

    def wake(self) -> None:
        self._baton.release()

    def park(self) -> None:
        self._baton.acquire()

    def finish(self, successor: Carrier | None) -> None:
        if successor is not None:
            successor.wake()

    def frame_owner(self) -> int:
        return self._ident


class GreenletCarrier:
    """A greenlet below the greenlet that called `Scheduler.run` (the hub).

    A greenlet inherits the recursion depth of the one that first switches to it, so each is started by the hub: whoever
    wants to start one switches to the hub and names it.
    """

    def __init__(self, name: str, hub: greenlet.greenlet) -> None:
        self._name = name
        self._hub = hub
        self._glet: greenlet.greenlet | None = None
        self._thread = _thread.get_ident()

    def start(self, body: Callable[[], None]) -> None:
        def run(*_: object) -> object:
            body()
            return self._heir

        self._heir: object = None
        self._glet = greenlet.greenlet(run, parent=self._hub)

    def wake(self) -> None:
        if self._glet or greenlet.getcurrent() is not self._hub:
            self._go(self)
            return
        asked: object = self
        while isinstance(asked, GreenletCarrier):
            assert asked._glet is not None
            asked = asked._glet.switch()

    def _go(self, carrier: GreenletCarrier) -> None:
        assert carrier._glet is not None
        if carrier._glet:
            carrier._glet.switch()
        else:
            self._hub.switch(carrier)

    def park(self) -> None:
        """Nothing: `wake` of another greenlet has already switched away, and switched back."""

    def finish(self, successor: Carrier | None) -> None:
        """The greenlet's last act is to return to its parent: the successor if that runs already, else the hub."""
        assert self._glet is not None
        if isinstance(successor, GreenletCarrier) and successor._glet:
            self._glet.parent = successor._glet
        else:
            self._glet.parent, self._heir = self._hub, successor

    def frame_owner(self) -> int:
        return self._thread


@cache
def _calls_cpp(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_CPP_CALLERS)


def is_below_cpp() -> bool:
    """Whether a C++ frame of torch lies below: a greenlet cannot be suspended there."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _calls_cpp(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def refuse_below_cpp() -> None:
    """Raise if a greenlet cannot be suspended here.

    Raises:
        UsageError: naming the remedy.
    """
    if is_below_cpp():
        raise UsageError(
            "a rank blocks inside a C++ operator of torch (a functional collective, autograd or a future), "
            "which greenlets cannot carry: use carrier='thread' (the default)"
        )
