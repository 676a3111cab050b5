"""What the members of an NCCL communicator have connected so far: the first use of a connection holds the host.

Measured with NCCL 2.28.9 under torch 2.11: a communicator without `device_id` is made by its first call, for which all
members must come. One that was made eagerly still connects its rings at the first collective (NCCL_RUNTIME_CONNECT=0
turns that off), and a pair of ranks at its first message in a direction; what is made of messages (all_to_all, gather,
scatter) connects apart from the other collectives. Each time the host waits for the other end. Later calls return at
once. Not modelled: that the algorithms of large and small collectives may connect apart.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import simpy

from simulator.barrier_model import CohortBarrier
from simulator.collectives import Entry
from simulator.engine.site import Stack
from simulator.records import Gathering, GroupView, PeerWait

_OF_MESSAGES = ("all_to_all", "all_to_all_single", "gather", "scatter")


@dataclass(slots=True, eq=False)
class Calls:
    """Who of a group has called."""

    gathering: Gathering
    barrier: CohortBarrier

    def add(self, rank: int, stack: Stack) -> None:
        if rank not in self.gathering.arrived:
            self.gathering.arrived[rank] = stack
            self.barrier.arrive(rank)


@dataclass(slots=True, eq=False)
class _Ends:
    event: simpy.Event
    ops: dict[str, None]


class Contacts:
    """Of one communicator."""

    def __init__(self, env: simpy.Environment, view: GroupView) -> None:
        self._env = env
        self._view = view
        self._joined = self.calls("connect", None)
        self._known: dict[Hashable, None] = {}
        self._pairs: dict[tuple[int, int, str], _Ends] = {}

    def calls(self, op: str, seq: int | None) -> Calls:
        """Nobody has called yet."""
        return Calls(Gathering(op, self._view, seq), CohortBarrier(self._env, self._view.ranks))

    def join(self, rank: int, stack: Stack) -> Calls | None:
        """`rank` makes the communicator. What it waits for, if not all are there."""
        self._joined.add(rank, stack)
        return None if self._joined.barrier.complete else self._joined

    def collective(self, calling: Calls, entry: Entry, *, eager: bool) -> simpy.Event | None:
        """What the caller of a collective waits for."""
        of_messages = entry.op in _OF_MESSAGES
        kind = (entry.op.removesuffix("_single"), entry.root) if of_messages else "ring"
        if kind in self._known or (eager and not of_messages):
            return None
        if calling.barrier.complete:
            self._known[kind] = None
            return None
        return calling.barrier.released

    def message(self, wait: PeerWait, channel: str) -> simpy.Event | None:
        """What the caller of a send or receive waits for."""
        ends = (wait.rank, wait.peer) if wait.op == "send" else (wait.peer, wait.rank)
        pair = self._pairs.setdefault((*ends, channel), _Ends(self._env.event(), {}))
        pair.ops[wait.op] = None
        if len(pair.ops) == 2 and not pair.event.triggered:
            pair.event.succeed()
        return None if pair.event.triggered else pair.event
