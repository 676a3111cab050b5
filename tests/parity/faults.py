"""What can be wrong with a planned program: each fault changes the part of one rank, and says how."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.parity.plan import ROOTED, Plan, Step

Fault = Callable[[Plan, random.Random], str]


def _pick(plan: Plan, rng: random.Random, fits: Callable[[Step], bool]) -> tuple[int, int] | None:
    """A place (rank, index) whose step fits."""
    places = [(r, i) for r, steps in enumerate(plan.steps) for i, step in enumerate(steps) if fits(step)]
    return rng.choice(places) if places else None


def _drop(plan: Plan, rng: random.Random) -> str:
    place = _pick(plan, rng, lambda step: step.op != "wait")
    if place is None:
        return ""
    rank, index = place
    gone = plan.steps[rank][index]
    plan.steps[rank] = [step for step in plan.steps[rank] if step.event != gone.event]
    return f"rank {rank} leaves out event {gone.event} ({gone.op})"


def _swap(plan: Plan, rng: random.Random) -> str:
    """A wait never comes before its issue: the issue itself moves with it."""
    ranks = [rank for rank, steps in enumerate(plan.steps) if len({s.event for s in steps}) > 1]
    if not ranks:
        return ""
    rank = rng.choice(ranks)
    steps = plan.steps[rank]
    issues = [index for index, step in enumerate(steps) if step.op != "wait"]
    first = rng.randrange(len(issues) - 1)
    a, b = issues[first], issues[first + 1]
    moved, events = [steps[b], steps[a]], {steps[a].event, steps[b].event}
    between = [step for step in steps[a + 1 : b] if step.event not in events]
    early = [step for step in steps[a + 1 : b] if step.event in events]
    plan.steps[rank] = [*steps[:a], *moved, *early, *between, *steps[b + 1 :]]
    return f"rank {rank} swaps events {moved[1].event} ({moved[1].op}) and {moved[0].event} ({moved[0].op})"


def _change(
    fits: Callable[[Plan, int, Step], bool], changed: Callable[[Plan, int, Step, random.Random], Step]
) -> Fault:
    def fault(plan: Plan, rng: random.Random) -> str:
        places = [(r, i) for r, steps in enumerate(plan.steps) for i, s in enumerate(steps) if fits(plan, r, s)]
        if not places:
            return ""
        rank, index = rng.choice(places)
        old = plan.steps[rank][index]
        new = plan.steps[rank][index] = changed(plan, rank, old, rng)
        return f"rank {rank} does {_told(new)} instead of {_told(old)} at event {old.event}"

    return fault


def _told(step: Step) -> str:
    where = f" on group {step.group}"
    root = f" with {step.root}" if step.op in (*ROOTED, "send", "recv", "exchange") else ""
    return f"{step.op}({step.count}){root}{where}" + (f" tag {step.tag}" if step.tag else "")


def _other_root(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, root=rng.choice([r for r in plan.members(step.group) if r != step.root]))


def _other_peer(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, root=rng.choice([r for r in plan.members(step.group) if r not in (rank, step.root)]))


def _other_groups(plan: Plan, rank: int, step: Step) -> list[int]:
    """Groups that have this rank, the root, and as many members, since lists are made for their number."""
    size = len(plan.members(step.group))
    groups = range(len(plan.groups) + 1)
    fitting = [g for g in groups if {rank, step.root} <= set(plan.members(g)) and len(plan.members(g)) == size]
    return [g for g in fitting if g != step.group]


def _other_group(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, group=rng.choice(_other_groups(plan, rank, step)))


def _other_op(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, op="broadcast" if step.op != "broadcast" else "all_reduce")


def _shorten(plan: Plan, rng: random.Random) -> str:
    rank = rng.randrange(plan.world_size)
    steps = plan.steps[rank]
    if not steps:
        return ""
    cut = rng.randrange(len(steps))
    plan.steps[rank] = steps[:cut]
    return f"rank {rank} returns after {cut} of {len(steps)} steps"


def _repeat(plan: Plan, rng: random.Random) -> str:
    place = _pick(plan, rng, lambda step: step.op != "wait" and not step.is_async)
    if place is None:
        return ""
    rank, index = place
    step = plan.steps[rank][index]
    plan.steps[rank].insert(index, step)
    return f"rank {rank} does event {step.event} ({step.op}) twice"


def _skip_creation(plan: Plan, rng: random.Random) -> str:
    """The last group, so that no later one gets another name; a member does nothing on it either."""
    if not plan.groups or plan.local:
        return ""
    rank, last = rng.randrange(plan.world_size), len(plan.groups)
    plan.skips.add((rank, last))
    gone = {step.event for step in plan.steps[rank] if step.group == last and step.op != "wait"}
    plan.steps[rank] = [step for step in plan.steps[rank] if step.event not in gone]
    kind = "a member" if rank in plan.members(last) else "no member"
    return f"rank {rank}, {kind}, does not create group {last}"


def _is_message(plan: Plan, rank: int, step: Step) -> bool:
    return step.op in ("send", "recv")


def _gives(plan: Plan, rank: int, step: Step) -> bool:
    """Real gloo ends a receiver whose tensor is too small."""
    return step.op == "send" or (step.op == "broadcast" and step.root == rank)


FAULTS: tuple[Fault, ...] = (
    _drop,
    _drop,
    _swap,
    _swap,
    _swap,
    _shorten,
    _repeat,
    _skip_creation,
    _change(lambda plan, rank, step: step.op in ROOTED and len(plan.members(step.group)) == 2, _other_root),
    _change(lambda plan, rank, step: step.op in ("send", "recv", "exchange") and len(plan.members(step.group)) > 2,
            _other_peer),
    _change(lambda plan, rank, step: step.op != "wait" and bool(_other_groups(plan, rank, step)), _other_group),
    _change(lambda plan, rank, step: step.op in ("all_reduce", "broadcast", "barrier"), _other_op),
    _change(_is_message, lambda plan, rank, step, rng: replace(step, tag=step.tag + 1)),
    _change(_gives, lambda plan, rank, step, rng: replace(step, count=step.count + 1)),
)  # fmt: skip
