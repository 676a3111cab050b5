"""What a checker says of a program, brought into one form: a kind, the ranks to blame, the lines shown.

A report is read as a developer reads it: the first finding counts, and in it the ranks that differ from the rest. Of
those who wait and those who are missing, the fewer are to blame; of those who gave different arguments, all but the
majority; where no side is smaller, both are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator import Finding
from tests.parity.compare import CLOSED
from tests.parity.program import Program
from tests.parity.real_worker import RankEnd
from tests.suite.label import Label

ASIDE = ("stranded", "also waiting", "then")
"""Roles of ranks that only suffer."""
TIMED_OUT = ("Timed out", "timed out", "timeout", "Timeout")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said.

    Attributes:
        kind: `ok`, or the kind of the first finding.
        ranks: those to blame.
        lines: the lines shown, the innermost of each side.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.kind == "ok"

    def faults(self, label: Label, marked: Sequence[int]) -> list[str]:
        """In what it differs from the label: `false alarm`, `missed`, `kind`, `ranks`, `line`."""
        if label.is_right:
            return [] if self.is_ok else ["false alarm"]
        if self.is_ok:
            return ["missed"]
        fits = {
            "kind": self.kind in label.kinds,
            "ranks": set(label.ranks) <= set(self.ranks) <= {*label.ranks, *label.also},
            "line": not set(self.lines).isdisjoint(marked),
        }
        return [name for name, good in fits.items() if not good]


def of_findings(found: Iterable[Finding], program: Program) -> Answer:
    """What the simulator says."""
    findings = [finding for finding in found if not finding.warning]
    if not findings:
        return Answer("ok")
    first = findings[0]
    sites = [side.site for side in first.sides if side.site is not None]
    lines = {site.line for site in sites if os.path.basename(site.file) == program.file}
    return Answer(str(first.kind), blamed(first), tuple(sorted(lines)))


def blamed(finding: Finding) -> tuple[int, ...]:
    """The ranks to blame."""
    cycle = re.findall(r"rank (\d+) in ", finding.cause) if finding.cause.startswith("a cycle") else []
    if cycle:
        return tuple(sorted({int(rank) for rank in cycle}))
    if finding.kind == "deadlock":
        return fewer(finding.waiting, finding.missing)
    if finding.kind == "timeout":
        return finding.ranks("late") or finding.ranks("timed out")
    sides = [side for side in finding.sides if side.role not in ASIDE]
    if finding.kind == "mismatch":
        rows: dict[str, list[int]] = {}
        for side in sides:
            rows.setdefault(side.doing, []).extend(side.ranks)
        return _all_but_the_majority(list(rows.values()))
    return tuple(sorted({rank for side in sides for rank in side.ranks}))


def fewer(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    """The smaller of two sides; both, if they are alike."""
    return _all_but_the_majority([side for side in (list(one), list(other)) if side])


def _all_but_the_majority(sides: Sequence[Sequence[int]]) -> tuple[int, ...]:
    total = sum(map(len, sides))
    majority = [side for side in sides if 2 * len(side) > total]
    kept = [side for side in sides if side not in majority] or list(sides)
    return tuple(sorted({rank for side in kept for rank in side}))


def of_ends(ends: dict[int, RankEnd]) -> Answer:
    """What a user sees today: the errors of the ranks, or that they never end."""
    bad = {rank: end for rank, end in ends.items() if end.status != "ok"}
    own = {rank: end for rank, end in bad.items() if not any(text in end.error for text in CLOSED)} or bad
    if not bad:
        return Answer("ok")
    lines = tuple(sorted({end.lines[0] for end in own.values() if end.lines}))
    waited = {rank: end for rank, end in own.items() if _waited(end)}
    errors = {rank: end for rank, end in own.items() if rank not in waited and end.status == "error"}
    if any("mismatch between collectives" in end.error for end in own.values()):
        return Answer("mismatch", tuple(sorted(own)), lines)
    if any(end.status == "died" for end in own.values()):
        return Answer("crash", tuple(rank for rank, end in sorted(own.items()) if end.status == "died"), lines)
    if errors:
        return Answer("exception", tuple(sorted(errors)), lines)
    return Answer("deadlock", fewer(sorted(waited), [rank for rank in ends if rank not in waited]), lines)


def _waited(end: RankEnd) -> bool:
    return end.status == "hung" or any(text in end.error for text in TIMED_OUT)
