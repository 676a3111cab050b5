"""Random small programs: correct ones, projected onto the ranks from one order of events, and ones with a single fault.

An event is a collective, a message, or an exchange of messages in a batch. Every rank does its part of the events in
their order, so the program is right by construction, whatever is asynchronous; a fault then changes one rank's part.
What a faulty program does is not said here: real gloo says it.

Not made: dtypes and reductions that differ between ranks, sizes other than one that is too large for its receivers, and
roots that differ in a group of more than two, because gloo has no defined outcome there: it mixes data silently, aborts
or hangs, by its tree and the number of elements. Nor is what a `reduce` leaves on other ranks recorded.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.parity.faults import FAULTS
from tests.parity.plan import Plan, Step, unwaited

COLLECTIVES = (
    "all_reduce", "all_reduce", "broadcast", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter_tensor", "all_to_all_single", "barrier", "all_gather_object", "broadcast_object_list",
)  # fmt: skip
ALWAYS_SYNCHRONOUS = ("all_gather_object", "broadcast_object_list")
REDUCTIONS = ("SUM", "MAX", "MIN", "PRODUCT")


def random_plan(seed: int) -> Plan:
    """The plan of one seed; about half of them have a fault."""
    rng = random.Random(seed)
    plan = right_plan(seed, rng.choice((2, 3, 3, 4)), rng)
    plan.local = rng.random() < 0.15
    if rng.random() < 0.5:
        plan.fault = rng.choice(FAULTS)(plan, rng)
    return plan


def right_plan(seed: int, size: int, rng: random.Random) -> Plan:
    """A plan without a fault."""
    groups = [sorted(rng.sample(range(size), rng.randint(2, size))) for _ in range(rng.randint(0, 2))]
    plan = Plan(seed, size, groups, [[] for _ in range(size)])
    for event in range(rng.randint(2, 9)):
        _add_event(plan, event, rng)
    return plan


def _add_event(plan: Plan, event: int, rng: random.Random) -> None:
    group = rng.randint(0, len(plan.groups))
    members = list(plan.members(group))
    if rng.random() < 0.35:
        a, b = rng.sample(members, 2)
        _add_message(plan, Step(event, "", group, 0, rng.randint(1, 3), rng.choice((0, 0, 5))), a, b, rng)
        return
    op = rng.choice(COLLECTIVES)
    step = Step(event, op, group, rng.choice(members), rng.randint(1, 3), reduction=rng.choice(REDUCTIONS))
    for rank in members:
        is_async = op not in ALWAYS_SYNCHRONOUS and rng.random() < 0.3
        _do(plan, rank, replace(step, is_async=is_async), rng)


def _add_message(plan: Plan, step: Step, a: int, b: int, rng: random.Random) -> None:
    if rng.random() < 0.3:
        for rank, peer in ((a, b), (b, a)):
            _do(plan, rank, replace(step, op="exchange", root=peer, is_async=rng.random() < 0.3, tag=0), rng)
        return
    for rank, peer, op in ((a, b, "send"), (b, a, "recv")):
        _do(plan, rank, replace(step, op=op, root=peer, is_async=rng.random() < 0.4), rng)


def _do(plan: Plan, rank: int, step: Step, rng: random.Random) -> None:
    """Add a step, after the waits that are due by chance."""
    mine = plan.steps[rank]
    for pending in unwaited(mine):
        if rng.random() < 0.4:
            mine.append(Step(pending.event, "wait"))
    mine.append(step)
