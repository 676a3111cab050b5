"""A program before it is text: what each rank does at each event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

ROOTED = ("broadcast", "reduce", "gather", "scatter", "broadcast_object_list")


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does at one event.

    Attributes:
        event: number of the event; tensors and handles are named after it.
        op: a collective, `send`, `recv` or `exchange` (a batch of both).
        group: 0 is WORLD, 1 and 2 are sub-groups.
        root: global rank of the root, or of the peer of a message.
        is_async: issue only; the wait is a step of its own, `wait`.
    """

    event: int
    op: str
    group: int = 0
    root: int = 0
    count: int = 1
    tag: int = 0
    reduction: str = "SUM"
    is_async: bool = False


@dataclass(slots=True)
class Plan:
    """A program before it is text.

    Attributes:
        groups: lists of global ranks of the sub-groups 1, 2, ...
        local: the sub-groups are made by their members only, with local synchronisation.
        steps: what each rank does, in order.
        skips: (rank, sub-group) pairs: this rank makes no such `new_group` call.
        fault: what was done to one rank, or nothing.
        marks: (rank, event) pairs whose lines are marked as those to blame.
    """

    seed: int
    world_size: int
    groups: list[list[int]]
    steps: list[list[Step]]
    local: bool = False
    skips: set[tuple[int, int]] = field(default_factory=set)
    fault: str = ""
    marks: set[tuple[int, int]] = field(default_factory=set)

    def members(self, group: int) -> Sequence[int]:
        return self.groups[group - 1] if group else range(self.world_size)

    @property
    def events(self) -> list[int]:
        """The numbers of all events."""
        return sorted({step.event for steps in self.steps for step in steps})


def unwaited(steps: Sequence[Step]) -> list[Step]:
    """The asynchronous calls that nobody has waited for so far."""
    waited = {step.event for step in steps if step.op == "wait"}
    return [step for step in steps if step.is_async and step.event not in waited]


def without(plan: Plan, event: int) -> Plan:
    """The plan without one event on any rank."""
    steps = [[step for step in mine if step.event != event] for mine in plan.steps]
    return replace(plan, steps=steps)
