"""Precision, recall and strict recall, for each class and in all.

A wrong program counts as found if anything is said; strictly, if kind, ranks and line are right. Precision is the
share of wrong programs among those of which something is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.suite.answer import Answer
from tests.suite.label import CLASSES, Case


@dataclass(frozen=True, slots=True)
class Result:
    """A program and what was said of it."""

    case: Case
    answer: Answer

    @property
    def faults(self) -> list[str]:
        return self.answer.faults(self.case.label, self.case.program.marked_lines)


@dataclass(frozen=True, slots=True)
class Score:
    """How good a checker is on some programs."""

    right: int
    wrong: int
    alarms: int
    found: int
    strict: int

    @classmethod
    def of(cls, results: Iterable[Result]) -> Score:
        """Count."""
        results = list(results)
        wrong = [result for result in results if not result.case.label.is_right]
        return cls(
            right=len(results) - len(wrong),
            wrong=len(wrong),
            alarms=sum("false alarm" in result.faults for result in results),
            found=sum("missed" not in result.faults for result in wrong),
            strict=sum(not result.faults for result in wrong),
        )

    @property
    def precision(self) -> float | None:
        return _share(self.found, self.found + self.alarms)

    @property
    def recall(self) -> float | None:
        return _share(self.found, self.wrong)

    @property
    def strict_recall(self) -> float | None:
        return _share(self.strict, self.wrong)

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain data for JSON."""
        counts = {"right": self.right, "wrong": self.wrong, "false_alarms": self.alarms, "found": self.found}
        shares = {"precision": self.precision, "recall": self.recall, "strict_recall": self.strict_recall}
        return {**counts, **shares}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def by_class(results: Sequence[Result]) -> dict[str, Score]:
    """A score for each class that has programs, and one for all."""
    scores = {name: [r for r in results if r.case.klass == name] for name in CLASSES}
    return {**{name: Score.of(some) for name, some in scores.items() if some}, "all": Score.of(results)}


def table(title: str, results: Sequence[Result]) -> str:
    """The scores as text."""
    head = f"{'class':20} {'right':>5} {'wrong':>5}  {'false':>5} {'missed':>6}  precision  recall  strict"
    lines = [title, head, "-" * len(head)]
    for name, score in by_class(results).items():
        counts = f"{score.right:5} {score.wrong:5}  {score.alarms:5} {score.wrong - score.found:6}"
        precision, recall, strict = map(_spelled, (score.precision, score.recall, score.strict_recall))
        lines.append(f"{name:20} {counts}  {precision:>9}  {recall:>6}  {strict:>6}")
    return "\n".join(lines)


def _spelled(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def by_fault(results: Iterable[Result]) -> dict[str, dict[str, list[str]]]:
    """Pattern to what is wrong about its answers, and in which programs."""
    faults: dict[str, dict[str, list[str]]] = {}
    for result in results:
        if result.faults:
            kinds = faults.setdefault(f"{result.case.klass}-{result.case.pattern}", {})
            kinds.setdefault(", ".join(result.faults), []).append(result.case.name)
    return faults
