"""What a finding is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from simulator.engine.site import Frame, Stack


class Verdict(StrEnum):
    """The answer to `what is wrong`, of a run or of one finding."""

    OK = "ok"
    CRASH = "crash"
    EXCEPTION = "exception"
    MISMATCH = "mismatch"
    WRONG_RANKS = "wrong_ranks"
    WRONG_DEVICE = "wrong_device"
    UNNEEDED_PROBE = "unneeded_probe"
    RACE = "race"
    LEAK = "leak"
    DEADLOCK = "deadlock"
    LIVELOCK = "livelock"
    TIMEOUT = "timeout"


class Level(StrEnum):
    """Whose rule is broken."""

    CONTRACT = "contract"
    """torch's documented contract, even where the installed torch gets away with it."""
    TORCH = "torch"
    """What the installed torch really does."""


class Certainty(StrEnum):
    """How sure the finding is."""

    CAUSE = "cause"
    SUSPECT = "suspect"
    UNDECIDED = "cannot decide"


@dataclass(frozen=True, slots=True)
class Side:
    """What some ranks do, all of them the same.

    Attributes:
        role: `waiting`, `missing`, `raised`, `crashed`, `gave`, ...
        doing: e.g. `all_reduce on group 'tp' seq 7`, or `finished at 0.5 s`.
        stack: user frames, innermost first.
    """

    role: str
    ranks: tuple[int, ...]
    doing: str
    stack: Stack = ()

    @property
    def site(self) -> Frame | None:
        return self.stack[0] if self.stack else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: which verdict it leads to.
        title: one line: what cannot be or must not be.
        group: description or name of the process group; empty if none is concerned.
        group_ranks: its global ranks.
        seq: number of the collective in its group.
        sides: who does what.
        cause, remedy: one sentence each.
        at_other_level: what holds at the other level, if that differs.
        warning: worth knowing, but the run is not bad for it.
    """

    kind: Verdict
    level: Level
    certainty: Certainty
    title: str
    group: str = ""
    group_ranks: tuple[int, ...] = ()
    seq: int | None = None
    sides: tuple[Side, ...] = ()
    cause: str = ""
    remedy: str = ""
    at_other_level: str = ""
    warning: bool = False
    time_s: float = 0.0

    def ranks(self, role: str) -> tuple[int, ...]:
        """All ranks with the given role, in order."""
        return tuple(sorted({rank for side in self.sides if side.role == role for rank in side.ranks}))

    @property
    def waiting(self) -> tuple[int, ...]:
        return self.ranks("waiting")

    @property
    def missing(self) -> tuple[int, ...]:
        return self.ranks("missing")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self)
        for side, given in zip(data["sides"], self.sides, strict=True):
            side["stack"] = [{"file": f.file, "line": f.line, "function": f.function} for f in given.stack]
        return data


def overall(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict of a run: that of the first finding that is not a warning (they are sorted by what explains what)."""
    return next((finding.kind for finding in findings if not finding.warning), Verdict.OK)
