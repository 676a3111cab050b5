"""One rank's part in one collective of a Mooncake group, and when it learns of a peer that is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from simulator.collectives import Entry
from simulator.communicator import Slot
from simulator.engine.site import Stack
from simulator.records import Note
from simulator.torch_world.mooncake.wire import Sent


@dataclass(slots=True, eq=False)
class Seat:
    """A rank in a collective.

    Attributes:
        place: its slot in the group. size: the world size when it came.
        writes: what it has sent.
        over: triggers once it goes on.
        members: the global ranks that were active when it came.
        failed: slots that it could not reach.
        timed: it will look again at a set time. asking: it waits for the coordinator's decision.
        note: of its partial result, if it got one.
    """

    rank: int
    place: int
    size: int
    entry: Entry
    stack: Stack
    entered_s: float
    writes: Sent
    over: simpy.Event
    members: tuple[int, ...]
    failed: dict[int, None] = field(default_factory=dict)
    timed: bool = False
    asking: bool = False
    done: bool = False
    note: Note | None = None


@dataclass(slots=True, eq=False)
class ElasticSlot(Slot):
    """A collective of a group whose members may change while it goes on.

    Attributes:
        seats: those who came, by global rank.
        parity: which of its two buffers each rank uses.
    """

    seats: dict[int, Seat] = field(default_factory=dict)
    parity: int = 0


def next_probe_s(entered_s: float, every_s: float, after_s: float) -> float:
    """When a rank that came at `entered_s` asks next, at or after `after_s`, whether its peers live."""
    if every_s <= 0:
        return after_s
    rounds = max(1, -int(-(after_s - entered_s) // every_s))
    return entered_s + rounds * every_s
