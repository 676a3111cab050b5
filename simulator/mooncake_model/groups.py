"""One group as the coordinator keeps it: slots up to a capacity, who is in them, the mask and the epoch.

A slot is a rank within the group; `order` says which process has it. All members see a change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from simulator.barrier_model import Membership
from simulator.mooncake_model.agents import Agent

READY_EPOCH = 2
"""Of a group whose founding members have met."""


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """A group that is ready.

    Attributes:
        order: the process of each slot that somebody has declared.
        auto_deactivate: who has failed is taken out of the mask.
        agents: of each slot, the process that holds it now.
        left: slots whose process has destroyed its side.
        on_change: called with the slots that were active before, when others are.
    """

    order: tuple[int, ...]
    members: Membership
    auto_deactivate: bool = True
    epoch: int = READY_EPOCH
    agents: dict[int, Agent] = field(default_factory=dict)
    left: dict[int, None] = field(default_factory=dict)
    on_change: list[Callable[[frozenset[int]], None]] = field(default_factory=list)
    active: tuple[int, ...] = ()
    mask: list[int] = field(default_factory=list)
    _before: frozenset[int] = frozenset()
    _published: dict[int, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._published = dict.fromkeys(self.members.active)
        self._take()

    def __repr__(self) -> str:
        return f"<group of {list(self.order)}, epoch {self.epoch}>"

    def _take(self) -> None:
        self.active = tuple(sorted(self.members.active))
        self.mask = self.members.mask
        self._before = frozenset(self.active)

    @property
    def world_size(self) -> int:
        """As Mooncake counts: the highest active slot plus one."""
        return self.active[-1] + 1 if self.active else 0

    def is_active(self, slot: int) -> bool:
        return slot in self.members.active

    def attach(self, slot: int, agent: Agent, order: Sequence[int]) -> None:
        """`agent` takes a slot, and is no active member until it joins and is admitted.

        Raises:
            ValueError: the slot lies beyond the capacity.
        """
        new = not self.known(slot)
        if new:
            self.members.register(slot)
        if len(order) > len(self.order):
            self.order = tuple(order)
        self.agents[slot] = agent
        self.left.pop(slot, None)
        self.publish(slot)
        self.epoch += new

    def publish(self, slot: int) -> None:
        """A process tells where its buffers are."""
        self._published[slot] = None
        self.epoch += 1

    def ready_for(self, slots: Iterable[int]) -> bool:
        """All of them are active, or wait to be, and are believed healthy."""
        return all(self.may_be_active(slot) for slot in slots)

    def may_be_active(self, slot: int) -> bool:
        """What `get_peer_state` says: active or waiting for it, and believed healthy."""
        agent = self.agents.get(slot)
        known = slot in self.members.active or slot in self.members.joining
        return known and agent is not None and agent.health == "healthy"

    def known(self, slot: int) -> bool:
        """Some process has registered for the slot and has not left it."""
        return slot in self.members.active or slot in self.members.registered or slot in self.members.joining

    def activate(self, slots: Iterable[int]) -> None:
        self.members.admit(slots)
        self.changed()

    def deactivate(self, slots: Iterable[int]) -> None:
        self.members.deactivate(slots)
        self.changed()

    def expel(self, slots: Sequence[int]) -> None:
        """Those who have failed are taken out, together with what they had published."""
        for slot in slots:
            self._published.pop(slot, None)
        self.deactivate(slots)

    def revoke(self, slot: int) -> bool:
        """A process is gone: what it promised no longer holds. True if that changed something."""
        changed = slot in self._published
        self._published.pop(slot, None)
        changed |= self.members.withdraw(slot)
        if self.auto_deactivate and slot in self.members.active:
            self.members.deactivate([slot])
            changed = True
        return changed

    def changed(self) -> None:
        """A new epoch; if other slots are active now, those who want to know hear of it."""
        self.epoch += 1
        before = self._before
        self._take()
        if before != self._before:
            for tell in self.on_change:
                tell(before)
