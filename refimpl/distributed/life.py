"""Where one rank is in its elastic life, and what may follow: a table, and a diary of how the rank came there.

    life = Life(State.SERVING, "4 ranks")
    life.enter(State.WAITING_FOR_PEERS, "ranks 4, 5 join")
    life.enter(State.SERVING, "")        # RuntimeError: serving does not follow waiting for peers

Not here: what a rank does in a state (`elastic`, `joiner`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """Where a rank is in its elastic life."""

    REGISTERING = "registering"
    CREATING_GROUPS = "creating groups"
    WAITING_TO_JOIN = "waiting to join"
    JOINING = "joining"
    SERVING = "serving"
    WAITING_FOR_PEERS = "waiting for peers"
    ADMITTING = "admitting"
    CONFIGURING = "configuring"
    SYNCING = "syncing"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling back"
    TURNED_AWAY = "turned away"


NEXT: dict[State, tuple[State, ...]] = {
    State.REGISTERING: (State.CREATING_GROUPS, State.TURNED_AWAY),
    State.CREATING_GROUPS: (State.WAITING_TO_JOIN, State.TURNED_AWAY),
    State.WAITING_TO_JOIN: (State.JOINING, State.TURNED_AWAY),
    State.JOINING: (State.CONFIGURING, State.TURNED_AWAY),
    State.SERVING: (State.WAITING_FOR_PEERS, State.SERVING),
    State.WAITING_FOR_PEERS: (State.ADMITTING, State.ROLLING_BACK),
    State.ADMITTING: (State.CONFIGURING, State.ROLLING_BACK),
    State.CONFIGURING: (State.SYNCING, State.ROLLING_BACK, State.TURNED_AWAY),
    State.SYNCING: (State.COMMITTING, State.ROLLING_BACK, State.TURNED_AWAY),
    State.COMMITTING: (State.SERVING,),
    State.ROLLING_BACK: (State.SERVING,),
    State.TURNED_AWAY: (),
}
"""From each state to those that may follow; from SERVING to itself when ranks are lost.

A joiner starts in REGISTERING, a launched rank in SERVING.
"""


class Step(NamedTuple):
    """One change of state."""

    at_s: float
    """On this rank's monotonic clock, in seconds."""
    state: State
    """The state that was entered."""
    why: str


@dataclass(slots=True)
class Life:
    """The state of one rank, and how it came there."""

    state: State
    why: str = ""
    """Of the first state."""
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps.append(Step(time.monotonic(), self.state, self.why))

    def enter(self, state: State, why: str) -> None:
        """Raises: RuntimeError for a state that does not follow."""
        if state not in NEXT[self.state]:
            raise RuntimeError(f"{state} does not follow {self.state}; {', '.join(NEXT[self.state]) or 'nothing'} does")
        self.state = state
        self.steps.append(Step(time.monotonic(), state, why))
