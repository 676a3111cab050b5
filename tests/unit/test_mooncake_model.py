"""Mooncake's control plane alone: registration, heartbeats, proposals, decisions. The times are those measured."""

from __future__ import annotations

import pytest
import simpy

from simulator.mooncake_model.coordinator import Coordinator
from simulator.mooncake_model.groups import Group
from simulator.mooncake_model.proposals import Answer, Status


def serving(env: simpy.Environment, ranks: int, capacity: int, **options: bool) -> tuple[Coordinator, Group]:
    """A deployment of `ranks` processes and their one group."""
    coordinator = Coordinator(env)
    for rank in range(ranks):
        coordinator.register(rank)
    return coordinator, coordinator.found(tuple(range(ranks)), capacity, **options)


def answer(env: simpy.Environment, event: simpy.Event) -> Answer:
    value = env.run(until=event)
    assert isinstance(value, Answer)
    return value


def test_a_living_process_keeps_its_rank_from_others() -> None:
    """A second process of that number is refused, in Mooncake's words."""
    coordinator, _ = serving(simpy.Environment(), 2, 2)
    with pytest.raises(ValueError, match="rank already registered and is Healthy"):
        coordinator.register(1)


def test_an_idle_deployment_has_no_events() -> None:
    """Heartbeats cost nothing, and keep no deadlocked run alive."""
    env = simpy.Environment()
    serving(env, 4, 8)
    assert env.peek() == float("inf")


@pytest.mark.parametrize(("died_s", "noticed_s"), [(0.0, 30.0), (4.0, 34.0), (4.9, 34.0), (5.1, 35.0)])
def test_a_death_is_noticed_thirty_seconds_after_the_last_heartbeat(died_s: float, noticed_s: float) -> None:
    """One beat a second: the last one was sent up to a second before the end."""
    env = simpy.Environment()
    coordinator, group = serving(env, 3, 3)
    env.run(until=died_s) if died_s else None
    coordinator.end(coordinator.agents[2])
    env.run(until=noticed_s - 0.01)
    assert (group.mask, group.epoch) == ([1, 1, 1], 2)
    env.run(until=noticed_s + 0.01)
    assert (group.mask, group.epoch, group.world_size) == ([1, 1, 0], 3, 2)


def test_a_report_opens_a_window_and_its_end_decides() -> None:
    """Whoever asks meanwhile is answered at the same moment; the heartbeat that runs out later changes nothing."""
    env = simpy.Environment()
    coordinator, group = serving(env, 3, 3)
    coordinator.window_s = 4.0
    coordinator.end(coordinator.agents[1])
    first = coordinator.sync_after(coordinator.agents[0], [1])
    env.run(until=3.0)
    second = coordinator.sync_after(coordinator.agents[2])
    assert env.run(until=second) is True and first.triggered and env.now == 4.0
    assert (group.mask, group.world_size, group.epoch) == ([1, 0, 1], 3, 3)
    env.run()
    assert group.epoch == 3
    assert coordinator.sync_after(coordinator.agents[0]).value is False


def test_a_report_about_a_living_process_changes_nothing() -> None:
    """Nobody took a message: at the end of the window the link is up again."""
    env = simpy.Environment()
    coordinator, group = serving(env, 2, 2)
    env.run(until=coordinator.sync_after(coordinator.agents[0], [1]))
    assert (env.now, group.mask, group.epoch) == (30.0, [1, 1], 2)


def test_two_deaths_in_one_window_are_one_change() -> None:
    """One epoch."""
    env = simpy.Environment()
    coordinator, group = serving(env, 4, 4)
    coordinator.window_s = 2.0
    for rank in (1, 3):
        coordinator.end(coordinator.agents[rank])
    env.run(until=coordinator.sync_after(coordinator.agents[0], [1, 3]))
    assert (group.mask, group.epoch) == ([1, 0, 1, 0], 3)


def test_without_auto_deactivation_the_dead_stay_in_the_mask() -> None:
    """Only their buffers are forgotten, which is a new epoch."""
    env = simpy.Environment()
    coordinator, group = serving(env, 3, 3, auto_deactivate=False)
    coordinator.end(coordinator.agents[2])
    env.run()
    assert (group.mask, group.epoch) == ([1, 1, 1], 3)


def test_a_replacement_registers_once_the_lost_process_counts_as_gone() -> None:
    """It attaches to its slot, and takes part only after it has joined and was admitted."""
    env = simpy.Environment()
    coordinator, group = serving(env, 3, 3)
    lost = coordinator.agents[1]
    coordinator.end(lost)
    env.run(until=lost.gone)
    fresh = coordinator.register(1)
    coordinator.attach(group, 1, fresh, (0, 1, 2))
    assert (group.mask, group.epoch) == ([1, 0, 1], 4)
    coordinator.join(group, 1)
    done = answer(env, coordinator.propose(group, [1], coordinator.agents[0], activates=True))
    assert (done.status, done.epoch, group.mask) == (Status.APPLIED, 6, [1, 1, 1])


# -- proposals ---------------------------------------------------------------------------------------------------


def grown(env: simpy.Environment, joined: tuple[int, ...]) -> tuple[Coordinator, Group]:
    """Two serve, 2 and 3 have attached, and some of them have joined."""
    coordinator, group = serving(env, 2, 4)
    for rank in (2, 3):
        coordinator.attach(group, rank, coordinator.register(rank), (0, 1, 2, 3))
    for rank in joined:
        coordinator.join(group, rank)
    return coordinator, group


def test_joiners_are_admitted_at_once_and_the_second_caller_is_answered_too() -> None:
    """One call suffices; epochs as measured: two for each that attaches, one for each that joins, one in the end."""
    env = simpy.Environment()
    coordinator, group = grown(env, (2, 3))
    assert [group.may_be_active(slot) for slot in range(4)] == [True] * 4
    events = [coordinator.propose(group, [2, 3], coordinator.agents[rank], activates=True) for rank in (0, 1)]
    assert [answer(env, event) for event in events] == [Answer(Status.APPLIED, 9)] * 2
    assert (env.now, group.mask, group.world_size) == (0.0, [1, 1, 1, 1], 4)


def test_who_has_not_registered_is_refused_at_once() -> None:
    """With the reason that Mooncake gives, for a slot nobody declared and for one nobody took."""
    env = simpy.Environment()
    coordinator, group = serving(env, 2, 4)
    proposal = coordinator.propose(group, [2], coordinator.agents[0], activates=True)
    assert answer(env, proposal) == Answer(Status.REJECTED, 2, (), "target in-group rank is out of valid range")
    coordinator.attach(group, 3, coordinator.register(3), (0, 1, 2, 3))
    proposal = coordinator.propose(group, [2], coordinator.agents[0], activates=True)
    assert answer(env, proposal).reason == "target rank is not valid group member"


def test_who_has_not_joined_is_waited_for_twenty_seconds() -> None:
    """Then the proposal is rejected; another one in the queue comes next."""
    env = simpy.Environment()
    coordinator, group = grown(env, (3,))
    both = coordinator.propose(group, [2, 3], coordinator.agents[0], activates=True)
    one = coordinator.propose(group, [3], coordinator.agents[1], activates=True)
    assert answer(env, both) == Answer(Status.REJECTED, 7, (), "proposal admission timed out")
    assert (env.now, answer(env, one), group.mask) == (20.0, Answer(Status.APPLIED, 8), [1, 1, 0, 1])
    assert group.world_size == 4


def test_a_joiner_that_comes_in_time_is_admitted_then() -> None:
    """After five seconds."""
    env = simpy.Environment()
    coordinator, group = grown(env, (3,))
    event = coordinator.propose(group, [2, 3], coordinator.agents[0], activates=True)
    env.run(until=5.0)
    coordinator.join(group, 2)
    assert (answer(env, event).status, env.now) == (Status.APPLIED, 5.0)


def test_a_joiner_that_died_while_it_waited_is_dropped() -> None:
    """It counts as ready for 30 s; the change waits 20 s for its confirmation; the next proposal is rejected."""
    env = simpy.Environment()
    coordinator, group = grown(env, (2,))
    env.run(until=1.0)
    coordinator.end(coordinator.agents[2])
    assert group.may_be_active(2)
    events = [coordinator.propose(group, [2], coordinator.agents[rank], activates=True) for rank in (0, 1)]
    assert group.mask == [1, 1, 1, 0]
    first, second = (answer(env, event) for event in events)
    assert (first.status, first.dropped, env.now) == (Status.DROPPED, (2,), 21.0)
    assert (second.status, second.reason) == (Status.REJECTED, "proposal admission timed out")
    assert group.mask == [1, 1, 0, 0]


def test_members_are_deactivated_and_join_again() -> None:
    """The world size counts holes; coming back takes an epoch more than a first join."""
    env = simpy.Environment()
    coordinator, group = serving(env, 4, 4)
    out = coordinator.propose(group, [1, 3], coordinator.agents[0], activates=False)
    assert answer(env, out) == Answer(Status.APPLIED, 3)
    assert (group.mask, group.world_size) == ([1, 0, 1, 0], 3)
    group.publish(3)
    coordinator.join(group, 3)
    back = coordinator.propose(group, [3], coordinator.agents[0], activates=True)
    assert (answer(env, back), group.mask) == (Answer(Status.APPLIED, 6), [1, 0, 1, 1])


def test_without_its_coordinator_nothing_is_decided() -> None:
    """Rank 0 is gone: the dead stay in the mask of those who are left."""
    env = simpy.Environment()
    coordinator, group = serving(env, 3, 3)
    coordinator.end(coordinator.agents[0])
    coordinator.end_host()
    env.run()
    assert (env.now, group.mask) == (30.0, [1, 1, 1])
