"""A group that is made again under the keys of its first life.

gloo publishes a member's address under a key, reads those of its peers, and leaves all of them behind. A group of the
same name on the same store finds the addresses of the first life where a peer has not come yet. Measured on gloo
(torch 2.13, two ranks, one of them 1.5 s late): of ten runs two went well, the others hung or raised `Connection
refused`; with both ranks in time, all of eight went well. So a peer that comes late is noted, and the run goes on.

Not noted: a store of another object, since it may be another server; NCCL and Mooncake, which were not measured.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.engine.site import Stack
from simulator.records import GroupView
from simulator.torch_world.simulation import Simulation

LATE_S = 0.01
"""Virtual seconds behind a peer from which on a member is late."""


class Arrival(NamedTuple):
    """When a member came, in virtual time, with which store object, and where in its code."""

    at_s: float
    store: weakref.ref[Any]
    stack: Stack


@dataclass(slots=True, eq=False)
class Life:
    """The members of a group as they come.

    Attributes:
        before: the life before this one.
        noted: a late member has been noted.
    """

    before: Life | None = None
    came: dict[int, Arrival] = field(default_factory=dict)
    noted: bool = False

    def arrive(self, sim: Simulation, view: GroupView, rank: int, store: Any, stack: Stack) -> None:
        """`rank` comes; if a peer has come much earlier in this life, it has read what the life before left."""
        now_s = float(sim.scheduler.env.now)
        for peer, arrival in self.came.items():
            if now_s - arrival.at_s >= LATE_S and self._same_store(peer) and not self.noted:
                self.noted = True
                late_s = now_s - arrival.at_s
                text = f"rank {rank} comes {late_s:.3g} s after rank {peer}, which has read the keys of the first life"
                facts = {"early": peer, "late": rank, "late_s": late_s, "early_stack": arrival.stack}
                sim.note("stale_keys", text, stack=stack, group=view, **facts)
        self.came[rank] = Arrival(now_s, weakref.ref(_bottom(store)), stack)

    def _same_store(self, peer: int) -> bool:
        """Whether `peer` uses the very store of the life before."""
        if self.before is None or peer not in self.before.came:
            return False
        store = self.came[peer].store()
        return store is not None and self.before.came[peer].store() is store


def _bottom(store: Any) -> Any:
    return getattr(store, "_underlying_non_prefix_store", store)
