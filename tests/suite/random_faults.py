"""Class `random`: random programs, right by construction, and the same with one fault, whose place is known.

They are those of the differential test, on more ranks. A fault that may come to nothing, such as two calls swapped
that do not depend on each other, is not made here. What follows from a fault shows anywhere later on, so both words
for a hang are right, and the ranks that share the call may be named beside the one to blame.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.parity.plan import Plan, Step
from tests.parity.plan_text import program_of
from tests.parity.random_programs import right_plan
from tests.suite.label import Case, Label

Places = Sequence[tuple[int, Step]]
"""Pairs of a rank and a step of it."""


def random_cases(seeds: int) -> list[Case]:
    """Right programs and one of each fault, `seeds` times."""
    return [case for seed in range(seeds) for case in (*_right(seed), *_wrong(seed))]


def _right(seed: int) -> list[Case]:
    """As many as there are faults."""
    cases = []
    for number in range(len(FAULTS)):
        rng = random.Random(f"right {seed} {number}")
        program = program_of(right_plan(seed, rng.randint(2, 8), rng), f"random-right-gloo-{seed}-right{number or ''}")
        cases.append(Case(program, Label(), "random", "right"))
    return cases


def _wrong(seed: int) -> list[Case]:
    cases = []
    for fault in FAULTS:
        rng = random.Random(f"{fault.__name__} {seed}")
        label = None
        while label is None:  # the plan may have no place for this fault
            plan = right_plan(seed, rng.randint(2, 8), rng)
            label = fault(plan, rng)
        name = fault.__name__.removeprefix("_")
        plan.fault = name.replace("_", " ")
        cases.append(Case(program_of(plan, f"random-{name}-gloo-{seed}-wrong"), label, "random", name))
    return cases


# -- faults ----------------------------------------------------------------------------------------------------------


def _left_out(plan: Plan, rng: random.Random) -> Label | None:
    victim, step = rng.choice(_issues(plan))
    plan.marks |= {(rank, step.event) for rank in _sharing(plan, step)} | _next(plan, victim, step)
    label = _label(plan, victim, [step])
    plan.steps[victim] = [other for other in plan.steps[victim] if other.event != step.event]
    return label


def _returns_early(plan: Plan, rng: random.Random) -> Label | None:
    victim, step = rng.choice(_issues(plan))
    cut = plan.steps[victim].index(step)
    gone = [other for other in plan.steps[victim][cut:] if other.op != "wait"]
    plan.marks |= {(rank, other.event) for other in gone for rank in _sharing(plan, other)}
    label = _label(plan, victim, gone)
    plan.steps[victim] = plan.steps[victim][:cut]
    return label


def _once_more(plan: Plan, rng: random.Random) -> Label | None:
    places = [(rank, step) for rank, step in _issues(plan) if not step.is_async and step.op != "exchange"]
    if not places:
        return None
    victim, step = rng.choice(places)
    plan.marks |= {(victim, step.event)} | {
        mark for rank in _sharing(plan, step) if rank != victim for mark in _next(plan, rank, step)
    }
    later = [other for _, other in _issues(plan) if other.group == step.group and other.event > step.event]
    plan.steps[victim].insert(plan.steps[victim].index(step), step)
    return _label(plan, victim, [step, *later])


def _another_operation(plan: Plan, rng: random.Random) -> Label | None:
    return _changed(
        plan, rng, ("all_reduce", "reduce", "barrier", "all_gather_into_tensor"), lambda step: {"op": "broadcast"}
    )


def _another_tag(plan: Plan, rng: random.Random) -> Label | None:
    return _changed(plan, rng, ("send", "recv"), lambda step: {"tag": step.tag + 1})


def _another_peer(plan: Plan, rng: random.Random) -> Label | None:
    places = [(rank, s) for rank, s in _issues(plan) if s.op in ("send", "recv") and len(plan.members(s.group)) > 2]
    if not places:
        return None
    victim, step = rng.choice(places)
    wrong = rng.choice([rank for rank in plan.members(step.group) if rank not in (victim, step.root)])
    label = _change(plan, victim, step, replace(step, root=wrong))
    return replace(label, also=tuple(sorted({*label.also, wrong})))


FAULTS: tuple[Callable[[Plan, random.Random], Label | None], ...] = (
    _left_out,
    _returns_early,
    _once_more,
    _another_operation,
    _another_tag,
    _another_peer,
)


def _changed(
    plan: Plan, rng: random.Random, ops: Sequence[str], change: Callable[[Step], dict[str, object]]
) -> Label | None:
    places = [(rank, step) for rank, step in _issues(plan) if step.op in ops]
    if not places:
        return None
    victim, step = rng.choice(places)
    return _change(plan, victim, step, replace(step, **change(step)))  # type: ignore[arg-type]


def _change(plan: Plan, victim: int, step: Step, new: Step) -> Label:
    plan.marks |= {(rank, step.event) for rank in _sharing(plan, step)}
    label = _label(plan, victim, [step])
    plan.steps[victim][plan.steps[victim].index(step)] = new
    return label


# -- what the label needs --------------------------------------------------------------------------------------------


def _issues(plan: Plan) -> list[tuple[int, Step]]:
    return [(rank, step) for rank, steps in enumerate(plan.steps) for step in steps if step.op != "wait"]


def _sharing(plan: Plan, step: Step) -> list[int]:
    """The ranks that take part in an event."""
    return [rank for rank, other in _issues(plan) if other.event == step.event]


def _next(plan: Plan, rank: int, step: Step) -> set[tuple[int, int]]:
    """What a rank does next, on the same group and in all: its line may be shown in place of what is missing."""
    later = [other for other in plan.steps[rank] if other.op != "wait" and other.event > step.event]
    return {(rank, other.event) for other in (*later[:1], *[o for o in later if o.group == step.group][:1])}


def _label(plan: Plan, victim: int, steps: Sequence[Step]) -> Label:
    sharing = {rank for step in steps for rank in _sharing(plan, step)}
    return Label(("deadlock", "mismatch"), (victim,), tuple(sorted(sharing - {victim})))
