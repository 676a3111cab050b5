"""A simpy model of the barriers that process groups are built on: world, cohort, store, membership.

    env = simpy.Environment()
    barrier = WorldBarrier(env, world_size=6)
    released = [barrier.arrive(rank) for rank in (4, 5)]
    env.run()
    assert barrier.missing == (0, 1, 2, 3) and not any(event.triggered for event in released)

The process groups of `fake_pg` meet in these barriers, and the analysis asks them what *would* happen
(`predict_store_barrier`). They model who waits for whom and when all go on; they model no messages and no latency.
Sources: torch/distributed/distributed_c10d.py (`_store_based_barrier`, `_new_group_with_tag`), DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import simpy


class Barrier:
    """Releases everybody once each of `expected` has arrived.

    Args:
        env: the simpy environment whose events are returned.
        expected: who must come; the order is kept for reports.
    """

    def __init__(self, env: simpy.Environment, expected: Iterable[int]) -> None:
        self.expected = tuple(expected)
        self._env = env
        self._arrived: dict[int, None] = {}
        self._members = frozenset(self.expected)
        self.released = env.event()

    def arrive(self, who: int) -> simpy.Event:
        """`who` has come. The event triggers when all have.

        Raises:
            ValueError: `who` is not expected, or has come before.
        """
        if who not in self._members:
            raise ValueError(f"{who} arrives at a barrier of {list(self.expected)}")
        if who in self._arrived:
            raise ValueError(f"{who} arrives twice at a barrier of {list(self.expected)}")
        self._arrived[who] = None
        if len(self._arrived) == len(self._members):
            self.released.succeed()
        return self.released

    def withdraw(self, who: int) -> None:
        """`who`, which has come, is gone again before all have."""
        self._arrived.pop(who, None)

    @property
    def complete_with_one_more(self) -> bool:
        """The next one to come is the last."""
        return len(self._arrived) + 1 == len(self._members)

    @property
    def arrived(self) -> tuple[int, ...]:
        """Who has come, in order of arrival."""
        return tuple(self._arrived)

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not come yet."""
        return tuple(who for who in self.expected if who not in self._arrived)

    @property
    def complete(self) -> bool:
        return len(self._arrived) == len(self._members)


class WorldBarrier(Barrier):
    """All ranks of the default group: what a world-mode `new_group` asks for by contract."""

    def __init__(self, env: simpy.Environment, world_size: int) -> None:
        super().__init__(env, range(world_size))


class CohortBarrier(Barrier):
    """The members of one list only: `use_local_synchronization=True`, and every collective of a group."""


class StoreBarrier:
    """The counter that torch's `_store_based_barrier` keeps in the store under one group name.

    It counts arrivals and knows no identities: the key outlives the group, so a second group of the same name finds
    the count of the first, and its `last_worker` key too. A later arrival then passes although nobody else came.
    """

    def __init__(self, env: simpy.Environment, world_size: int) -> None:
        self._world_size = world_size
        self.count = 0
        self.last_worker = env.event()

    def arrive(self, world_size: int | None = None) -> simpy.Event:
        """One more caller, who expects `world_size` callers in all (its own view of the world)."""
        self.count += 1
        if self.count == (world_size or self._world_size) and not self.last_worker.triggered:
            self.last_worker.succeed()
        return self.last_worker


def predict_store_barrier(arrivals: Mapping[int, int]) -> dict[int, bool]:
    """Who passes the store barrier of one name, if each rank arrives once, in rank order.

    Args:
        arrivals: rank to the world size that this rank expects.

    Returns:
        rank to True (goes on) or False (waits for ever).
    """
    env = simpy.Environment()
    barrier = StoreBarrier(env, max(arrivals.values(), default=0))
    passed = {rank: barrier.arrive(size) for rank, size in arrivals.items()}
    env.run()
    return {rank: event.triggered for rank, event in passed.items()}


@dataclass(slots=True, eq=False)
class Membership:
    """Who takes part in an elastic group: slots up to a capacity, of which some are active.

    A joiner becomes a candidate when it registers; it is active once it joins and a member admits it.
    """

    env: simpy.Environment
    capacity: int
    active: dict[int, None] = field(default_factory=dict)
    registered: dict[int, None] = field(default_factory=dict)
    joining: dict[int, simpy.Event] = field(default_factory=dict)
    _joined: list[simpy.Event] = field(default_factory=list)

    def register(self, slot: int) -> None:
        """A joiner made its group and is isolated from now on.

        Raises:
            ValueError: the slot lies beyond the capacity.
        """
        if not 0 <= slot < self.capacity:
            raise ValueError(f"slot {slot} is out of range: the group has capacity {self.capacity}")
        self.registered[slot] = None

    def join(self, slot: int) -> simpy.Event:
        """The joiner asks to be admitted; the event triggers when it is."""
        event = self.joining[slot] = self.env.event()
        waiting, self._joined = self._joined, []
        for waiter in waiting:
            waiter.succeed()
        return event

    def wait_for_join(self) -> simpy.Event:
        """Triggers at the next `join`."""
        event = self.env.event()
        self._joined.append(event)
        return event

    def admit(self, slots: Iterable[int]) -> bool:
        """Make joiners active, all or none. False if one of them has not joined yet."""
        wanted = list(slots)
        if any(slot not in self.joining and slot not in self.active for slot in wanted):
            return False
        for slot in wanted:
            self.active[slot] = None
            self.registered.pop(slot, None)
            event = self.joining.pop(slot, None)
            if event is not None:
                event.succeed()
        return True

    def deactivate(self, slots: Iterable[int]) -> None:
        """Members that are active take part no longer; they stay, and may join again."""
        for slot in slots:
            if slot in self.active:
                del self.active[slot]
                self.registered[slot] = None

    def withdraw(self, slot: int) -> bool:
        """A joiner that waits is gone: nobody can admit it any more. False if it did not wait."""
        if self.joining.pop(slot, None) is None:
            return False
        self.registered[slot] = None
        return True

    @property
    def world_size(self) -> int:
        """As Mooncake counts it: the highest active slot plus one."""
        return max(self.active, default=-1) + 1

    @property
    def mask(self) -> list[int]:
        """1 for an active slot, else 0; `capacity` entries."""
        return [int(slot in self.active) for slot in range(self.capacity)]
