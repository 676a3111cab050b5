"""What the function of a fault may do to a run: the one protocol of all faults.

    def unplug(injection: Injection) -> None:
        injection.at_time(2.0, lambda: injection.kill(1, restart_after_s=None))

It is called once, before the ranks start, and registers what is to happen: at a time, at a call, at a request to a
store, at the start of a rank. What it does is noted, so that the report can say it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simulator.engine.errors import require
from simulator.engine.site import Stack
from simulator.faults.values import Moment, Ranks
from simulator.records import InjectedFault, Strike

if TYPE_CHECKING:
    from simulator.faults.faults import Faults

INFINITY = float("inf")
CHANGING = ("set", "multi_set", "add", "append", "compare_set", "queue_push")
"""Requests that end others' waits for keys."""


class InjectedError(RuntimeError):
    """What a fault with `how=raise` raises in a rank; code may catch it."""


class Call(NamedTuple):
    """A call that a rank is about to make.

    Attributes:
        operation: `all_reduce`, `send`, `create`, `store`, ...
        number: of all calls of this process, from 1; `number_of_kind`: of this operation.
    """

    rank: int
    operation: str
    number: int
    number_of_kind: int


class Request(NamedTuple):
    """A request that a client is about to send to a TCPStore.

    Attributes:
        operation: `set`, `get`, ...
        keys: what it names. node: where the server is.
    """

    rank: int
    operation: str
    keys: Sequence[str]
    store: str
    node: int | None


class Window(NamedTuple):
    """From when to when a fault is at work, in virtual seconds."""

    since_s: float
    until_s: float

    def holds(self, now_s: float) -> bool:
        return self.since_s <= now_s < self.until_s


class Injection:
    """One fault's hold on one run.

    Attributes:
        rng: drawn from the run's seed and the fault's place among the faults.
        record: what the report says of it.
    """

    def __init__(self, faults: Faults, text: str, rng: random.Random) -> None:
        self.rng = rng
        self.record = InjectedFault(text)
        self._faults = faults
        self._reason: Callable[[], str] = lambda: "nothing happened that it applies to"

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._faults.port.now_s

    @property
    def text(self) -> str:
        """As it is written on a command line."""
        return self.record.text

    def pick(self, ranks: Ranks) -> Sequence[int]:
        """The ranks that are meant; `any` is one that the seed chooses.

        Raises:
            UsageError: a rank that no cohort has.
        """
        known = self._faults.port.ranks
        missing = [rank for rank in ranks if rank not in known]
        require(
            not missing,
            f"fault {self.text!r}: there is no rank {', '.join(map(str, missing))}; give ranks up to {max(known)}",
        )
        return ranks or (self.rng.choice(sorted(known)),)

    def check_node(self, node: int) -> None:
        """Raise unless there is such a node."""
        nodes = self._faults.port.nodes
        require(node < nodes, f"fault {self.text!r}: there is no node {node}; give a node up to {nodes - 1}")

    def node_of(self, rank: int) -> int:
        return self._faults.port.node_of(rank)

    def window(self, since_s: float | None = None, until_s: float | None = None) -> Window:
        """A window that ends when all faults do."""
        since, until = since_s or 0.0, INFINITY if until_s is None else until_s
        require(since < until, f"fault {self.text!r}: it ends before it begins; give an until behind since")
        return Window(since, min(until, self._faults.end_s))

    # -- when --------------------------------------------------------------------------------------------------------

    def at_time(self, at_s: float, action: Callable[[], None]) -> None:
        """Do `action` at a virtual time, unless faults have ended by then."""
        if at_s >= self._faults.end_s:
            self.unless_struck(lambda: f"faults ended at {self._faults.end_s:g} s")
            return
        self.unless_struck(lambda: f"the run was over at {self.now_s:g} s")
        self._faults.port.later(at_s, action)

    def at_moment(self, moment: Moment, rank: int, action: Callable[[], None]) -> None:
        """Do `action` at the moment, on `rank`'s own calls if it is one of them; once."""
        if moment.at_s is not None:
            self.at_time(moment.at_s, action)
            return
        done = False

        def look(call: Call) -> None:
            nonlocal done
            number = call.number if moment.operation == "call" else call.number_of_kind
            fits = moment.operation in ("call", call.operation) and number == moment.number
            if fits and not done and self.now_s < self._faults.end_s:
                done = True
                action()

        self.unless_struck(lambda: f"rank {rank} made {self._faults.made(rank, moment.operation)}")
        self.at_calls(rank, look)

    def at_calls(self, rank: int, look: Callable[[Call], None]) -> None:
        """`look` before each call of `rank`, as part of it."""
        self._faults.call_hooks.setdefault(rank, []).append(look)

    def at_requests(self, delay_s: Callable[[Request], float]) -> None:
        """`delay_s` before each request to a TCPStore: for how many virtual seconds it is held up."""
        self._faults.requests.hooks.append(delay_s)

    def at_start(self, start_s: Callable[[int, str, float], float | None]) -> None:
        """When a rank starts: from its number, its cohort and the time it would; None: never."""
        self._faults.start_hooks.append(start_s)

    def at_clock(self, rank: int, offset_s: float, rate: float) -> None:
        """The clock of `rank` is ahead by `offset_s`, and gains `rate` seconds in each."""
        self._faults.clocks.setdefault(rank, []).append((self, offset_s, rate))

    def cut(self, node: int, window: Window) -> None:
        """Nothing gets through between `node` and the others."""
        self._faults.cuts.append((self, node, window))

    def unless_struck(self, reason: Callable[[], str]) -> None:
        """What the report says if nothing comes of the fault."""
        self._reason = reason

    # -- what --------------------------------------------------------------------------------------------------------

    def held_up(self, request: Request, verb: str, *, spent_s: float = 0.0) -> None:
        """Note that a request came late, or not at all."""
        if request.operation in CHANGING:
            self.record.keys.update(dict.fromkeys(request.keys))
        keys = f"({request.keys[0]!r})" if request.keys else ""
        self.struck(request.rank, f"{verb} store.{request.operation}{keys}", spent_s=spent_s)

    def struck(self, rank: int, text: str, *, stack: Stack | None = None, spent_s: float = 0.0) -> None:
        """Note that the fault took place."""
        place = self._faults.port.stack() if stack is None else stack
        self.record.count += 1
        self.record.spent_s += spent_s
        if rank >= 0:
            self.record.ranks[rank] = None
        self.record.first = self.record.first or Strike(rank, self.now_s, text, place)
        self._faults.port.log(rank, self.text, text)

    def kill(self, rank: int, restart_after_s: float | None = None) -> None:
        """End the process of `rank` at once, as SIGKILL does; does not return if it is the calling one."""
        state = self._faults.port.state_of(rank)
        if state:
            self.unless_struck(lambda: state)
            return
        doing, stack = self._doing(rank)
        self.struck(rank, f"killed {doing}", stack=stack)
        self.record.killed[rank] = self.record.ended[rank] = None
        if restart_after_s is not None:
            self._faults.restart(self, rank, restart_after_s)
        self._faults.port.kill(rank, self.text, stack)

    def interrupt(self, rank: int) -> None:
        """Raise an `InjectedError` in `rank`, at its call or where its main thread waits."""
        state = self._faults.port.state_of(rank)
        if state:
            self.unless_struck(lambda: state)
            return
        doing, stack = self._doing(rank)
        self.struck(rank, f"raised {doing}", stack=stack)
        self._faults.port.interrupt(rank, self.text, InjectedError(f"fault injected: {self.text}"))

    def _doing(self, rank: int) -> tuple[str, Stack]:
        """What `rank` does, as a phrase, and where."""
        call = self._faults.calling
        if call is not None and call.rank == rank:
            return f"in {call.operation}#{call.number_of_kind}, its call#{call.number}", self._faults.port.stack()
        return self._faults.port.doing(rank)

    def spend(self, rank: int, seconds: float, text: str) -> None:
        """The calling rank loses `seconds` of virtual time."""
        self.struck(rank, text, spent_s=seconds)
        self._faults.port.sleep(seconds, self.text)

    def end_stores(self) -> int:
        """All TCPStore servers are gone; how many there were."""
        return self._faults.port.end_stores()

    def settle(self) -> InjectedFault:
        """The run is over: what came of the fault."""
        if self.record.first is None:
            self.record.why_not = self._reason()
        return self.record
