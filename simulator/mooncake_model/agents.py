"""One process as the coordinator knows it.

agent = Agent(rank=2, registered_s=0.0, gone=env.event())
agent.died_s = 4.3
assert agent.times_out_s == 34.0  # the last heartbeat was at 4.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import simpy

from simulator.mooncake_model.timing import HEARTBEAT_S, HEARTBEAT_TIMEOUT_S


class Health(StrEnum):
    """What the coordinator believes."""

    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    """Reported by a peer, and out of the healthy set; a replacement may register."""
    OFFLINE = "offline"


@dataclass(slots=True, eq=False)
class Agent:
    """A registered process.

    Attributes:
        rank: the number under which it registered.
        gone: triggers once a replacement may register.
        died_s: when it ended; None while it lives. Nobody but the coordinator's clock may act on it.
    """

    rank: int
    registered_s: float
    gone: simpy.Event
    health: Health = Health.HEALTHY
    died_s: float | None = None

    @property
    def alive(self) -> bool:
        return self.died_s is None

    @property
    def times_out_s(self) -> float:
        """When its silence is noticed: counted from the last heartbeat that it sent.

        Raises:
            ValueError: it lives.
        """
        if self.died_s is None:
            raise ValueError(f"process {self.rank} lives, so its heartbeats go on")
        beats = math.floor((self.died_s - self.registered_s) / HEARTBEAT_S)
        return self.registered_s + beats * HEARTBEAT_S + HEARTBEAT_TIMEOUT_S
