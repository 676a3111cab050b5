"""What tasks do that others can see, in the order in which it takes effect.

Only a run under a schedule keeps such a log. Its order is what a schedule decides; `simulator.exploration` reads it.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.engine.site import Stack

Target = tuple[object, ...]
"""What an operation touches: first its kind (`key`, `keys`, `message`, `lock`, `segment`, `group`, `collective`,
`clock`, `task`), then what names it. The same in each run of a program."""


class Operation(NamedTuple):
    """One operation of one task.

    Attributes:
        task: label of the task.
        number: of the task's operations, from 1; 0 is its start.
        verb: `set`, `get`, `send`, ...
        target: what it touches.
        writes: whether others see a difference afterwards.
        stack: user frames, innermost first; empty where nobody asked for them.
    """

    task: str
    number: int
    verb: str
    target: Target
    writes: bool
    stack: Stack = ()


class After(NamedTuple):
    """`task` went on because of what happened up to `position` in the log: somebody woke it, or came before it."""

    task: str
    position: int


class OperationLog:
    """Operations and what made tasks go on, by position.

    Attributes:
        last: label of a task to the position of its last entry.
    """

    def __init__(self) -> None:
        self.entries: list[Operation | After] = []
        self.last: dict[str, int] = {}

    def add(self, entry: Operation | After) -> None:
        """Append."""
        self.last[entry.task] = len(self.entries)
        self.entries.append(entry)
