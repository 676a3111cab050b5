"""The simpy model of barriers, on its own clock."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simulator.barrier_model import (
    CohortBarrier,
    Membership,
    StoreBarrier,
    WorldBarrier,
    predict_store_barrier,
)


def arrive_at(env: simpy.Environment, barrier: WorldBarrier | CohortBarrier, who: int, at_s: float, seen: list[str]):  # type: ignore[no-untyped-def]
    yield env.timeout(at_s)
    yield barrier.arrive(who)
    seen.append(f"{who} at {env.now:g}")


def test_a_world_barrier_releases_everybody_when_the_last_rank_comes() -> None:
    """All go on at the time of the last arrival."""
    env, seen = simpy.Environment(), []
    barrier = WorldBarrier(env, 3)
    for who, at_s in ((2, 1.0), (0, 5.0), (1, 3.0)):
        env.process(arrive_at(env, barrier, who, at_s, seen))
    env.run(until=4)
    assert (barrier.arrived, barrier.missing, seen) == ((2, 1), (0,), [])
    env.run()
    assert sorted(seen) == ["0 at 5", "1 at 5", "2 at 5"]


def test_joiners_wait_for_ever_in_a_world_barrier_that_the_serving_ranks_do_not_enter() -> None:
    """EP4 -> EP6: ranks 4 and 5 come, ranks 0 to 3 serve."""
    env, seen = simpy.Environment(), []
    world = WorldBarrier(env, 6)
    for who in (4, 5):
        env.process(arrive_at(env, world, who, 0.0, seen))
    env.run()
    assert (world.missing, seen, env.peek()) == ((0, 1, 2, 3), [], float("inf"))


def test_joiners_pass_a_cohort_barrier_alone() -> None:
    """The repair: local synchronisation asks the members only."""
    env, seen = simpy.Environment(), []
    cohort = CohortBarrier(env, (4, 5))
    for who in (4, 5):
        env.process(arrive_at(env, cohort, who, 0.0, seen))
    env.run()
    assert seen == ["4 at 0", "5 at 0"]


@pytest.mark.parametrize(("who", "message"), [(7, "arrives at a barrier of"), (1, "arrives twice")])
def test_a_stranger_and_a_second_arrival_are_refused(who: int, message: str) -> None:
    """A barrier knows whom it waits for."""
    barrier = CohortBarrier(simpy.Environment(), (0, 1))
    barrier.arrive(1)
    with pytest.raises(ValueError, match=message):
        barrier.arrive(who)


def test_a_store_barrier_counts_arrivals_and_knows_no_identities() -> None:
    """A stale key lets a later group of the same name pass although nobody else came."""
    env = simpy.Environment()
    barrier = StoreBarrier(env, 2)
    first = [barrier.arrive(), barrier.arrive()]
    late = barrier.arrive(6)
    env.run()
    assert [event.triggered for event in (*first, late)] == [True, True, True]


def test_the_store_barrier_of_joiners_alone_holds_them() -> None:
    """Two arrivals of six."""
    assert predict_store_barrier({4: 6, 5: 6}) == {4: False, 5: False}


@given(st.integers(1, 64))
def test_a_full_world_passes_its_store_barrier(size: int) -> None:
    """Everybody comes, everybody passes."""
    assert all(predict_store_barrier(dict.fromkeys(range(size), size)).values())


@given(st.integers(2, 64), st.data())
def test_a_world_with_a_hole_passes_nobody(size: int, data: st.DataObject) -> None:
    """One rank skips the call."""
    absent = data.draw(st.integers(0, size - 1))
    passed = predict_store_barrier({rank: size for rank in range(size) if rank != absent})
    assert not any(passed.values())


def test_membership_admits_joiners_all_or_none() -> None:
    """Only who has joined can be admitted; the mask and the world size follow."""
    env = simpy.Environment()
    group = Membership(env, 8, dict.fromkeys(range(4)))
    group.register(4)
    group.register(5)
    admitted = group.join(4)
    assert not group.admit([4, 5])
    group.join(5)
    assert group.admit([4, 5])
    env.run()
    assert admitted.triggered
    assert (group.world_size, group.mask) == (6, [1, 1, 1, 1, 1, 1, 0, 0])


def test_membership_refuses_a_slot_beyond_its_capacity() -> None:
    """The capacity was reserved at the launch."""
    with pytest.raises(ValueError, match="slot 8 is out of range: the group has capacity 8"):
        Membership(simpy.Environment(), 8).register(8)


def test_a_hole_counts_into_the_world_size() -> None:
    """As Mooncake counts: the highest active slot plus one."""
    assert Membership(simpy.Environment(), 4, {0: None, 2: None}).world_size == 3
