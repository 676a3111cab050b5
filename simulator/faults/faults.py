"""All faults of one run: what the simulation asks before calls, requests, starts and looks at a clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from simulator.faults.fault import Fault, FaultFunction
from simulator.faults.injection import INFINITY, Call, Injection, Window
from simulator.faults.port import Port
from simulator.faults.requests import Requests
from simulator.faults.values import OPERATIONS, operation_name
from simulator.records import Gathering, PeerWait, Records

LIVENESS_S = 600.0
"""Virtual seconds without progress, once faults have ended, after which a run that goes on counts as a livelock."""
PROGRESS = ("complete", "message", "start", "end")
"""Events of the trace that say that something got done."""


class Faults:
    """The faults of one run.

    Args:
        asked: in the order of their numbers, from which their generators follow.
        end_s: no fault strikes from then on.

    Attributes:
        calling: the call at which a fault is about to strike.
    """

    def __init__(
        self, port: Port, asked: Sequence[Fault | FaultFunction], records: Records, *, seed: int, end_s: float | None
    ) -> None:
        self.port = port
        self.end_s = INFINITY if end_s is None else end_s
        self.calling: Call | None = None
        self.call_hooks: dict[int, list[Callable[[Call], None]]] = {}
        self.requests = Requests(self)
        self.start_hooks: list[Callable[[int, str, float], float | None]] = []
        self.clocks: dict[int, list[tuple[Injection, float, float]]] = {}
        self.cuts: list[tuple[Injection, int, Window]] = []
        self._records = records
        self._counts: dict[int, dict[str, int]] = {}
        self._seen_events, self._progress_s, self._look_s = 0, self.end_s, self.end_s
        self._injections = []
        for number, fault in enumerate(asked):
            own = str(fault) if isinstance(fault, Fault) else getattr(fault, "__name__", repr(fault))
            text = (isinstance(fault, Fault) and fault.text) or own
            injection = Injection(self, text, random.Random(f"{seed} {number} {own}"))
            self._injections.append(injection)
            fault(injection)
        records.faults = [injection.record for injection in self._injections]
        records.faults_end_s = end_s

    def settle(self) -> None:
        """The run is over: complete what the report says."""
        for injection in self._injections:
            injection.settle()

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, name: str) -> None:
        """The calling rank is about to call a collective, a send, a receive, or to make a group."""
        rank = self.port.here()
        if rank is None:
            return
        operation = operation_name(name) or name
        counts = self._counts.setdefault(rank, {})
        counts["call"] = counts.get("call", 0) + 1
        counts[operation] = counts.get(operation, 0) + 1
        self._check_progress()
        call = Call(rank, operation, counts["call"], counts[operation])
        for look in self.call_hooks.get(rank, ()):
            self.calling = call
            look(call)
        self.calling = None

    def made(self, rank: int, operation: str) -> str:
        """How many calls of a kind a rank made, for people."""
        number = self._counts.get(rank, {}).get(operation, 0)
        calls = "1 call" if number == 1 else f"{number or 'no'} calls"
        return calls if operation not in OPERATIONS else f"{calls} of {operation}"

    def _check_progress(self) -> None:
        """Faults have ended: something must get done from time to time."""
        now_s = self.port.now_s
        if now_s < self._look_s:
            return
        kinds = self.port.kinds_of_events(self._seen_events)
        self._seen_events += len(kinds)
        if self._look_s == self.end_s:
            self._look_s = self._progress_s + LIVENESS_S
        elif any(kind in PROGRESS for kind in kinds):
            self._progress_s, self._look_s = now_s, now_s + LIVENESS_S
        else:
            self._records.idle_since_s = self._progress_s
            self.port.give_up()

    # -- the network -------------------------------------------------------------------------------------------------

    def hold(self, what: Gathering | PeerWait, action: Callable[[], None]) -> bool:
        """Whether a cut lies between the ranks of `what`; `action` is then done when it heals."""
        ranks = what.group.ranks if isinstance(what, Gathering) else (what.rank, what.peer)
        cut = self.cut_between({self.port.node_of(rank) for rank in ranks if rank >= 0})
        if cut is None:
            return False
        injection, heals_s = cut
        injection.struck(-1, f"held up {what.op} on group '{what.group.label}'")
        what.held_by = injection.text
        if heals_s != INFINITY:
            self.port.later(heals_s, lambda: self._healed(what, action))
        return True

    def _healed(self, what: Gathering | PeerWait, action: Callable[[], None]) -> None:
        what.held_by = ""
        if not self.hold(what, action):
            action()

    def cut_from(self, rank: int, node: int) -> tuple[Injection, float] | None:
        """The cut between a rank and a node, and when it heals."""
        return self.cut_between({self.port.node_of(rank), node})

    def cut_between(self, nodes: set[int]) -> tuple[Injection, float] | None:
        """The cut that lasts longest of those that have `nodes` on both sides."""
        now_s, found = self.port.now_s, None
        for injection, node, window in self.cuts:
            if (
                node in nodes
                and len(nodes) > 1
                and window.holds(now_s)
                and (found is None or found[1] < window.until_s)
            ):
                found = injection, window.until_s
        return found

    # -- processes and clocks ----------------------------------------------------------------------------------------

    def start_s(self, rank: int, cohort: str, at_s: float) -> float | None:
        """When a rank starts; None: never."""
        start: float | None = at_s
        for hook in self.start_hooks:
            if start is not None:
                start = hook(rank, cohort, start)
        return start

    def restart(self, injection: Injection, rank: int, after_s: float) -> None:
        """A new process of `rank` starts later, with counts of its own."""
        self.port.restart(rank, after_s)

        def begin() -> None:
            self._counts.pop(rank, None)
            injection.record.ended.pop(rank, None)

        self.port.later(self.port.now_s + after_s, begin)

    def clock_s(self, rank: int, now_s: float) -> float:
        """By how much the clocks of a rank are ahead."""
        ahead_s = 0.0
        for injection, offset_s, rate in self.clocks.get(rank, ()):
            self._note_clock(injection, rank)
            ahead_s += offset_s + rate * now_s
        return ahead_s

    def real_s(self, rank: int, seconds: float) -> float:
        """How long `seconds` of a rank's own clock last."""
        drifting = [(injection, rate) for injection, _, rate in self.clocks.get(rank, ()) if rate]
        for injection, _ in drifting if seconds else ():
            self._note_clock(injection, rank)
        rate = sum(rate for _, rate in drifting)
        return seconds / (1.0 + rate) if rate > -1.0 else seconds

    def _note_clock(self, injection: Injection, rank: int) -> None:
        """Once for each rank: it goes by its clock."""
        if rank not in injection.record.ranks:
            injection.struck(rank, "its clock is off")
