"""The coordinator: a state machine in the process of rank 0, over all processes and groups of one deployment.

    env = simpy.Environment()
    coordinator = Coordinator(env)
    agents = [coordinator.register(rank) for rank in range(3)]
    group = coordinator.found((0, 1, 2), capacity=4)
    coordinator.end(agents[2])                         # its process is gone; nobody knows yet
    synced = coordinator.sync_after(agents[0], {2})    # what a failed collective does
    env.run(until=synced)
    assert env.now == 30.0 and group.mask == [1, 1, 0, 0]

A failure is noticed in two ways. A process whose heartbeats stop counts as gone `HEARTBEAT_TIMEOUT_S` after the last
one. A member that cannot reach a peer reports it; the first report opens a window, and at its end all that was
reported is decided at once. A report about a living process (a message that nobody took) changes nothing, since the
link is up again by then.
"""

from __future__ import annotations

from collections.abc import Iterable

import simpy

from simulator.barrier_model import Membership
from simulator.mooncake_model.agents import Agent, Health
from simulator.mooncake_model.groups import Group
from simulator.mooncake_model.proposals import Answer, Proposals, Status
from simulator.mooncake_model.timing import WINDOW_S


class Coordinator:
    """One deployment.

    Attributes:
        agents: the processes, by the rank under which they registered; a replacement takes the place.
        window_s: how long it collects reports before it decides.
        alive: its own process lives. If not, nothing is decided any more.
        decided_s: when it last decided.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.agents: dict[int, Agent] = {}
        self.groups: list[Group] = []
        self.window_s = WINDOW_S
        self.alive = True
        self.decided_s = -1.0
        self._proposals: dict[Group, Proposals] = {}
        self._decides: simpy.Event | None = None
        self._reported: dict[Agent, None] = {}

    # -- processes -------------------------------------------------------------------------------------------------

    def holder(self, rank: int) -> Agent | None:
        """The process that has `rank` and cannot be replaced yet."""
        agent = self.agents.get(rank)
        return agent if agent is not None and agent.health is Health.HEALTHY else None

    def register(self, rank: int) -> Agent:
        """A process takes `rank`.

        Raises:
            ValueError: another process holds it, with Mooncake's words.
        """
        if self.holder(rank) is not None:
            raise ValueError("rank already registered and is Healthy")
        before = self.agents.get(rank)
        agent = self.agents[rank] = Agent(rank, self._env.now, self._env.event())
        if before is not None:
            self._revoke(before)
        return agent

    def end(self, agent: Agent, at_s: float | None = None) -> None:
        """The process of `agent` is gone (at `at_s`, if that was earlier); its heartbeats stop."""
        if agent.died_s is None:
            agent.died_s = self._env.now if at_s is None else at_s
            delay_s = max(0.0, agent.times_out_s - self._env.now)
            self._env.timeout(delay_s).callbacks.append(lambda _: self._time_out(agent))

    def end_host(self) -> None:
        """The coordinator's own process is gone."""
        self.alive = False

    def _time_out(self, agent: Agent) -> None:
        if self.alive:
            self.lose(agent)

    def lose(self, agent: Agent) -> None:
        """The process counts as gone: it loses what it had promised, and its place in groups that deactivate."""
        if agent.health is Health.OFFLINE:
            return
        agent.health = Health.OFFLINE
        self._let_in(agent)
        self._revoke(agent)

    def _let_in(self, agent: Agent) -> None:
        if not agent.gone.triggered:
            agent.gone.succeed()

    def _revoke(self, agent: Agent) -> None:
        for group in self.groups:
            changed = [group.revoke(slot) for slot, holder in group.agents.items() if holder is agent]
            if any(changed):
                group.changed()
            self._look(group)

    def _look(self, group: Group) -> None:
        """Something has changed in a group; one that all have left has no proposals any more."""
        if group in self._proposals:
            self._proposals[group].look()

    # -- failures --------------------------------------------------------------------------------------------------

    def sync_after(self, reporter: Agent, failed: Iterable[int] = ()) -> simpy.Event:
        """`reporter` could not reach the processes `failed`, and asks what is decided.

        Returns:
            an event with True once a window has closed, False at once if there is nothing to decide.
        """
        self.report(failed)
        if self._decides is not None and reporter.health is not Health.OFFLINE:
            return self._decides
        return self._env.event().succeed(False)

    def report(self, failed: Iterable[int]) -> None:
        """Some member could not reach these processes."""
        for rank in failed:
            agent = self.agents.get(rank)
            if agent is None or agent.health is Health.OFFLINE or agent in self._reported:
                continue
            self._reported[agent] = None
            if self._decides is None:
                self._decides = self._env.event()
                self._env.timeout(self.window_s).callbacks.append(lambda _: self._decide())

    def _decide(self) -> None:
        """The window closes: those who were reported and are dead leave the healthy set and the groups."""
        decided, self._decides = self._decides, None
        dead = [agent for agent in self._reported if not agent.alive]
        self._reported.clear()
        if not self.alive or decided is None:
            return
        suspects = [agent for agent in dead if agent.health is Health.HEALTHY]
        for agent in suspects:
            agent.health = Health.SUSPECTED
            self._let_in(agent)
        self._expel(suspects)
        self.decided_s = float(self._env.now)
        decided.succeed(True)

    def _expel(self, agents: list[Agent]) -> None:
        for group in self.groups:
            slots = [slot for slot, holder in group.agents.items() if holder in agents and group.is_active(slot)]
            if slots and group.auto_deactivate:
                group.expel(slots)
            self._look(group)

    # -- groups ----------------------------------------------------------------------------------------------------

    def found(self, order: tuple[int, ...], capacity: int, *, auto_deactivate: bool = True) -> Group:
        """A group whose founding members, the registered processes `order`, have met."""
        members = Membership(self._env, capacity, dict.fromkeys(range(len(order))))
        group = Group(order, members, auto_deactivate)
        group.agents = {slot: self.agents[rank] for slot, rank in enumerate(order) if rank in self.agents}
        self.groups.append(group)
        self._proposals[group] = Proposals(self._env, group, self.lose)
        return group

    def attach(self, group: Group, slot: int, agent: Agent, order: tuple[int, ...]) -> None:
        """`agent` registers for a slot of a group that is ready."""
        group.attach(slot, agent, order)
        self._look(group)

    def join(self, group: Group, slot: int) -> simpy.Event:
        """The process in `slot` is ready to take part; the event triggers once it does."""
        group.epoch += 1
        event = group.members.join(slot)
        self._look(group)
        return event

    def propose(self, group: Group, slots: Iterable[int], source: Agent, *, activates: bool) -> simpy.Event:
        """Ask for slots to be activated or deactivated; the event triggers with an `Answer`."""
        if group not in self._proposals:
            return self._env.event().succeed(Answer(Status.REJECTED, 0, (), "group not found"))
        return self._proposals[group].add(tuple(slots), source, activates=activates)

    def leave(self, group: Group, slot: int) -> None:
        """A member destroys its side of the group. The others are not told; the last one takes the group with it."""
        group.members.registered.pop(slot, None)
        group.epoch += 1
        group.agents.pop(slot, None)
        group.left[slot] = None
        if not group.agents and group in self._proposals:
            self.groups.remove(group)
            del self._proposals[group]
