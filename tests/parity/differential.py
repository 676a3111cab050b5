"""Random programs on simulated ranks and on real gloo: the same outcome, or a disagreement.

A hang costs real time, since only time tells it from slowness. So each program gets little time at first, and much
more once its answers differ: a busy machine is no disagreement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from simulator import Outcome
from tests.parity.compare import Answer, real, simulated
from tests.parity.plan import Plan, without
from tests.parity.plan_text import program_of
from tests.parity.real_ranks import RealRanks
from tests.parity.real_worker import Job

QUICK_S = 1.5
PATIENT_S = 8.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One program, and both answers."""

    plan: Plan
    simulated: Answer
    real: Answer
    outcome: Outcome

    @property
    def agrees(self) -> bool:
        return self.simulated.agrees(self.real)

    def told(self) -> str:
        """The program and what became of it."""
        lines = [f"seed {self.plan.seed}: {self.plan.fault or 'correct'}"]
        for name, answer in (("simulated", self.simulated), ("real", self.real)):
            lines.append(f"{name}: {answer.what} {answer.values if answer.what == 'ok' else answer.raised}")
        return "\n".join([*lines, program_of(self.plan).source, self.outcome.report()])


def compared(
    plans: Iterable[Plan], ranks: RealRanks, on_end: Callable[[int], None] = lambda done: None
) -> Iterator[Comparison]:
    """Run all plans on both sides; those that differ once more, with time."""
    plan_of = {program_of(plan).name: plan for plan in plans}
    doubtful = []
    for name, answer in _real_answers(plan_of.values(), ranks, QUICK_S, on_end):
        mine, outcome = simulated(program_of(plan_of[name]))
        comparison = Comparison(plan_of[name], mine, answer, outcome)
        if comparison.agrees:
            yield comparison
        else:
            doubtful.append(comparison)
    again = dict(_real_answers([comparison.plan for comparison in doubtful], ranks, PATIENT_S, lambda done: None))
    for comparison in doubtful:
        yield replace(comparison, real=again[program_of(comparison.plan).name])


def _real_answers(
    plans: Iterable[Plan], ranks: RealRanks, deadline_s: float, on_end: Callable[[int], None]
) -> Iterator[tuple[str, Answer]]:
    for job, ends in ranks.run([Job(program_of(plan), deadline_s) for plan in plans], on_end):
        yield job.program.name, real(ends)


def smallest(comparison: Comparison, ranks: RealRanks) -> Comparison:
    """A disagreement with as few events as still disagree."""
    found = True
    while found:
        found = False
        for event in comparison.plan.events:
            smaller = next(compared([without(comparison.plan, event)], ranks))
            if not smaller.agrees:
                comparison, found = smaller, True
                break
    return comparison
