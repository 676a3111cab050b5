"""Whether simulated ranks and real ones did the same: `ok` with equal values, `hang`, or `error`.

A hang here is what a program does whose time-outs never strike. A rank that only finds its connections closed, since
a peer has failed, counts with its peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator import Outcome, Verdict, simulate
from simulator.analysis.facts import CONSEQUENCES
from tests.parity.program import Program
from tests.parity.real_worker import RankEnd

CLOSED = (*CONSEQUENCES, "Read error", "Connection reset by peer", "Broken pipe", "Write error")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program did.

    Attributes:
        what: `ok`, `hang`, `error`, or `broken` (a mismatch for which gloo promises nothing but that it is no `ok`).
        values: rank to result, of ranks that returned.
        raised: rank to the type of the error that it raised by itself.
    """

    what: str
    values: dict[int, Any]
    raised: dict[int, str]

    def agrees(self, other: Answer) -> bool:
        """The same kind of end, with the same values, or the same ranks that raised the same."""
        if "broken" in (self.what, other.what):
            return "ok" not in (self.what, other.what)
        if self.what != other.what:
            return False
        return repr(self.values) == repr(other.values) if self.what == "ok" else self.raised == other.raised


def simulated(program: Program) -> tuple[Answer, Outcome]:
    """The simulator's answer, at its level `torch`."""
    outcome = simulate(program.main(), program.world_size, args=(program.world_size,))
    bad = [f for f in outcome.findings if not f.warning and f.level == "torch"]
    raised = {
        rank: record.error_type
        for rank, record in sorted(outcome.ranks.items())
        if record.status == "exception" and not _is_closed(record.error)
    }
    if not bad and len(outcome.results) == program.world_size:
        what = "ok"
    elif any(f.kind is Verdict.MISMATCH and ("elements" in f.cause or "dtype" in f.cause) for f in bad):
        what = "broken"
    else:
        what = "error" if raised else "hang"
    return Answer(what, dict(sorted(outcome.results.items())), raised), outcome


def real(ends: dict[int, RankEnd]) -> Answer:
    """What real ranks did."""
    values = {rank: end.value for rank, end in sorted(ends.items()) if end.status == "ok"}
    raised = {
        rank: end.error.partition(":")[0]
        for rank, end in sorted(ends.items())
        if end.status == "error" and not _is_closed(end.error)
    }
    died = any(end.status == "died" for end in ends.values())
    if len(values) == len(ends):
        return Answer("ok", values, raised)
    return Answer("broken" if died else "error" if raised else "hang", values, raised)


def _is_closed(error: str) -> bool:
    return any(text in error for text in CLOSED)
