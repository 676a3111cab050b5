"""The table of states of an elastic rank."""

from __future__ import annotations

import pytest

from refimpl.distributed import Life, State
from refimpl.distributed.life import NEXT


def test_a_state_that_does_not_follow_is_refused() -> None:
    """The message names what would follow."""
    life = Life(State.SERVING)
    with pytest.raises(RuntimeError, match=r"^admitting does not follow serving; waiting for peers, serving does$"):
        life.enter(State.ADMITTING, "")
    assert life.state is State.SERVING


def test_every_state_stands_in_the_table() -> None:
    """Nothing is left out, and what follows is a state."""
    assert set(NEXT) == set(State)
    assert all(after in NEXT for states in NEXT.values() for after in states)


def test_serving_is_reached_from_every_state_but_the_end() -> None:
    """No rank gets stuck in a change: each state leads back to serving, or out."""
    for start in State:
        reached, frontier = set(), [start]
        while frontier:
            state = frontier.pop()
            if state not in reached:
                reached.add(state)
                frontier += NEXT[state]
        assert State.SERVING in reached or start is State.TURNED_AWAY


def test_every_change_can_fail_before_it_is_committed() -> None:
    """From each step of a change a serving rank can roll back."""
    changing = {State.WAITING_FOR_PEERS, State.ADMITTING, State.CONFIGURING, State.SYNCING}
    assert all(State.ROLLING_BACK in NEXT[state] for state in changing)
    assert NEXT[State.COMMITTING] == (State.SERVING,)


def test_the_diary_has_each_state_with_its_reason() -> None:
    """The first one too."""
    life = Life(State.SERVING, "4 ranks")
    life.enter(State.WAITING_FOR_PEERS, "rank 4 to join")
    assert [(step.state, step.why) for step in life.steps] == [
        (State.SERVING, "4 ranks"),
        (State.WAITING_FOR_PEERS, "rank 4 to join"),
    ]
    assert life.steps[0].at_s <= life.steps[1].at_s
