"""Proposals to change who takes part in a group: one after another, in the order in which they came.

A proposal to activate ranks waits until all of them have joined, at most `ADMISSION_TIMEOUT_S`. Once it is admitted,
every member has to confirm; those who are silent for `ACK_TIMEOUT_S` are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import simpy

from simulator.mooncake_model.agents import Agent, Health
from simulator.mooncake_model.groups import Group
from simulator.mooncake_model.timing import ACK_TIMEOUT_S, ADMISSION_TIMEOUT_S


class Status(StrEnum):
    """Named as the real module names them."""

    APPLIED = "Applied"
    DROPPED = "AppliedWithDroppedRanks"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a proposal.

    Attributes:
        epoch: in force when it was answered. dropped: slots that did not confirm. reason: why it was rejected.
    """

    status: Status
    epoch: int
    dropped: tuple[int, ...] = ()
    reason: str = ""


@dataclass(slots=True, eq=False)
class Proposal:
    """A request; `answered` triggers with an `Answer`."""

    slots: tuple[int, ...]
    activates: bool
    source: Agent
    deadline_s: float
    answered: simpy.Event


class Proposals:
    """The queue of one group.

    Args:
        gone: called for a process that did not confirm.
    """

    def __init__(self, env: simpy.Environment, group: Group, gone: Callable[[Agent], None]) -> None:
        self._env = env
        self._group = group
        self._gone = gone
        self._queue: deque[Proposal] = deque()
        self._unconfirmed = False

    def add(self, slots: Sequence[int], source: Agent, *, activates: bool) -> simpy.Event:
        """Queue a proposal; the event triggers with its `Answer`."""
        deadline_s = self._env.now + ADMISSION_TIMEOUT_S
        proposal = Proposal(tuple(slots), activates, source, deadline_s, self._env.event())
        self._queue.append(proposal)
        self.look()
        if not proposal.answered.triggered and not self._unconfirmed:
            self._env.timeout(ADMISSION_TIMEOUT_S).callbacks.append(lambda _: self.look())
        return proposal.answered

    def look(self) -> None:
        """Something has changed, or time has passed: admit or answer as many as possible."""
        while self._queue and not self._unconfirmed and self._settled(self._queue[0]):
            pass

    def _settled(self, first: Proposal) -> bool:
        """Deal with the first in the queue. False: it goes on waiting."""
        group = self._group
        reason = self._refusal(first)
        if reason:
            return self._reply(first, Status.REJECTED, reason)
        if all(group.is_active(slot) == first.activates for slot in first.slots):
            return self._reply(first, Status.APPLIED)
        if first.activates and not group.ready_for((*group.active, *first.slots)):
            late = self._env.now >= first.deadline_s
            return late and self._reply(first, Status.REJECTED, "proposal admission timed out")
        self._admit(first)
        return True

    def _refusal(self, proposal: Proposal) -> str:
        group = self._group
        if proposal.source.health == Health.OFFLINE:
            return "source rank is Offline or has a stale session"
        if any(not 0 <= slot < len(group.order) for slot in proposal.slots):
            return "target in-group rank is out of valid range"
        if not all(group.known(slot) for slot in proposal.slots):
            return "target rank is not valid group member"
        return ""

    def _admit(self, proposal: Proposal) -> None:
        group = self._group
        concerned = {slot: group.agents[slot] for slot in (*group.active, *proposal.slots) if slot in group.agents}
        change = group.activate if proposal.activates else group.deactivate
        epoch = group.epoch + 1
        change([slot for slot in proposal.slots if group.is_active(slot) != proposal.activates])
        silent = {slot: agent for slot, agent in concerned.items() if not agent.alive and agent.health != "offline"}
        if not silent:
            self._reply(proposal, Status.APPLIED)
            return
        self._queue.remove(proposal)
        self._unconfirmed = True
        timeout = self._env.timeout(ACK_TIMEOUT_S)
        timeout.callbacks.append(lambda _: self._drop(proposal, silent, epoch))

    def _drop(self, proposal: Proposal, silent: dict[int, Agent], epoch: int) -> None:
        """Time is up for those who had to confirm."""
        self._unconfirmed = False
        for agent in silent.values():
            self._gone(agent)
        answer = Answer(Status.DROPPED, epoch, tuple(sorted(silent)))
        proposal.answered.succeed(answer)
        self.look()

    def _reply(self, proposal: Proposal, status: Status, reason: str = "") -> bool:
        self._queue.remove(proposal)
        proposal.answered.succeed(Answer(status, self._group.epoch, (), reason))
        return True
