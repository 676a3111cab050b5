"""What becomes of requests to TCPStores under faults.

Measured on Linux 6.18 with torch 2.13, server and client in network namespaces with a router between them that drops
everything for a while: a request that was sent meanwhile gets through with the first try after that (an `add` took
0.21, 0.65, 1.67, 3.35 and 13.5 s for 0.1, 0.3, 1, 3 and 7 s of loss; tries are 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s behind
the first). A `set` returns at once, and what follows it queues behind it. A `wait` whose time-out strikes meanwhile
raises only once its cancellation is answered. Not measured: that the kernel gives up after 15 tries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simulator.faults.injection import INFINITY, Request
from simulator.faults.stores import give_up_s, through_s

if TYPE_CHECKING:
    from simulator.faults.faults import Faults

UNANSWERED = ("set", "multi_set")
"""Requests after which a client goes on at once."""
FIRST_CONNECT_RETRY_S = 1.0
"""Virtual seconds after which the kernel asks again for a connection."""


class Requests:
    """Requests of all ranks.

    Attributes:
        hooks: say by how many virtual seconds a request is late; infinity: its connection is given up.
    """

    def __init__(self, faults: Faults) -> None:
        self.hooks: list[Callable[[Request], float]] = []
        self._faults = faults
        self._free_at_s: dict[tuple[int, str], float] = {}

    def send(self, operation: str, keys: Sequence[str], store: str, node: int | None) -> float:
        """The calling rank is about to send a request: hold it up, if it has to wait for an answer.

        Returns:
            The virtual seconds by which it is late.

        Raises:
            DistNetworkError: the kernel gave the connection up.
        """
        rank = self._faults.port.here()
        if rank is None:
            return 0.0
        self._faults.call("store")
        late_s, fault = self._late_s(Request(rank, operation, keys, store, node))
        is_lost, now_s = late_s == INFINITY, self._faults.port.now_s
        free_at_s = max(now_s + min(late_s, give_up_s()), self._free_at_s.get((rank, store), 0.0))
        self._free_at_s[rank, store] = free_at_s
        if operation in UNANSWERED:
            return INFINITY if is_lost else free_at_s - now_s
        if free_at_s > now_s:
            self._faults.port.sleep(free_at_s - now_s, fault)
        if is_lost:
            raise self._faults.port.refuse_connection()
        return free_at_s - now_s

    def _late_s(self, request: Request) -> tuple[float, str]:
        late_s = max([0.0, *[hook(request) for hook in self.hooks]])
        cut = None if request.node is None else self._faults.cut_from(request.rank, request.node)
        if cut is None:
            return late_s, "a request to a store"
        cut[0].held_up(request, "held up")
        return max(late_s, through_s(cut[1] - self._faults.port.now_s)), cut[0].text

    def connect(self, store: str, node: int | None, limit_s: float) -> bool:
        """The calling rank asks for a connection; whether it gets one in time."""
        rank = self._faults.port.here()
        if rank is None:
            return True
        self._faults.call("store")
        late_s = max([0.0, *[hook(Request(rank, "connect", (), store, node)) for hook in self.hooks]])
        cut, fault = None if node is None else self._faults.cut_from(rank, node), "a connection to a store"
        if cut is not None:
            cut[0].struck(rank, "held up the connection to a store")
            late_s, fault = max(late_s, through_s(cut[1] - self._faults.port.now_s, FIRST_CONNECT_RETRY_S)), cut[0].text
        if late_s:
            self._faults.port.sleep(min(late_s, limit_s), fault)
        return late_s <= limit_s

    def answer(self, operation: str, keys: Sequence[str], store: str, node: int | None) -> None:
        """The server answers the calling rank, which has waited, or its cancellation: a cut may hold that up."""
        rank = self._faults.port.here()
        cut = None if rank is None or node is None else self._faults.cut_from(rank, node)
        if rank is None or cut is None:
            return
        cut[0].struck(rank, f"held up the answer to store.{operation}")
        late_s = through_s(cut[1] - self._faults.port.now_s)
        if late_s == INFINITY:
            shown = f"store.{operation}({', '.join(map(repr, keys[:4]))})"
            self._faults.port.wait_for_ever(shown, keys, store, cut[0].text)
        self._faults.port.sleep(late_s, cut[0].text)
