"""Which operations could have come in another order: logs by hand, and what is read from them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.operations import After, Operation, Target
from simulator.exploration.order import Order, order_of
from simulator.exploration.schedule import Delay
from simulator.exploration.swap import swapped

Entry = Operation | After


class Log:
    """Builds a log: `log.does("a", "set", "x")`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._counts: dict[str, int] = {}

    def does(self, task: str, verb: str, what: str | Target) -> int:
        """Position of the new operation."""
        self._counts[task] = self._counts.get(task, 0) + 1
        target = ("key", "store", what) if isinstance(what, str) else what
        writes = verb not in ("get", "check", "wait", "list_keys", "clock", "attach")
        self.entries.append(Operation(task, self._counts[task], verb, target, writes))
        return len(self.entries) - 1

    def after(self, task: str, position: int) -> None:
        self.entries.append(After(task, position))

    @property
    def order(self) -> Order:
        return order_of(self.entries)

    @property
    def races(self) -> list[str]:
        return [f"{r.earlier.task}{r.earlier.number} {r.later.task}{r.later.number}" for r in self.order.races]


def test_a_write_and_a_read_of_one_key_race_if_nothing_orders_them() -> None:
    log = Log()
    log.does("a", "set", "x")
    log.does("b", "check", "x")
    log.does("b", "check", "y")
    assert log.races == ["a1 b1"]


def test_reads_do_not_race() -> None:
    log = Log()
    for task in "abc":
        log.does(task, "check", "x")
    assert log.races == []


def test_what_a_wake_up_orders_is_no_race() -> None:
    """A wait takes effect when it is woken, and what was done before the waker's call comes before it."""
    log = Log()
    log.does("b", "wait", "x")
    log.does("a", "set", "y")
    position = log.does("a", "set", "x")
    log.after("b", position)
    log.does("b", "check", "y")
    assert log.races == []


def test_what_the_waker_does_later_races() -> None:
    log = Log()
    log.does("b", "wait", "x")
    position = log.does("a", "set", "x")
    log.does("a", "set", "y")
    log.after("b", position)
    log.does("b", "check", "y")
    assert log.races == ["a2 b2"]


def test_a_chain_of_conflicts_races_link_by_link() -> None:
    """To swap the first and the last, swap the last two first."""
    log = Log()
    for task in "abc":
        log.does(task, "add", "n")
    assert log.races == ["a1 b1", "b1 c1"]


def message(sender: int, receiver: int, tag: int = 0) -> Target:
    return ("message", "group", receiver, sender, tag)


def receive(receiver: int, sender: int) -> Target:
    return ("receive", "group", receiver, sender, 0)


@pytest.mark.parametrize(("sender", "races"), [(-1, ["a1 b1"]), (1, [])])
def test_messages_race_where_their_receiver_takes_any_source(sender: int, races: list[str]) -> None:
    log = Log()
    log.does("a", "send", message(1, 0))
    log.does("b", "send", message(2, 0))
    log.does("c", "recv", receive(0, sender))
    assert log.races == races


def test_creations_of_a_group_race_if_lists_differ_or_it_is_made_twice() -> None:
    lists, twice = Log(), Log()
    lists.does("a", "create", ("group", "1", (0, 1)))
    lists.does("b", "create", ("group", "1", (0, 1)))
    assert lists.races == []
    lists.does("c", "create", ("group", "1", (2, 3)))
    assert lists.races != []
    for task in "abab":
        twice.does(task, "create", ("group", "1", (0, 1)))
    assert twice.races != []


def test_writes_of_keys_race_with_a_reader_of_all_keys_only() -> None:
    log = Log()
    log.does("a", "set", "x")
    log.does("b", "set", "y")
    assert log.races == []
    log.does("c", "list_keys", ("keys", "store"))
    assert log.races == ["a1 c1", "b1 c1"]


def test_equal_orders_of_conflicts_have_equal_fingerprints() -> None:
    """Operations that do not conflict may swap."""

    def fingerprint(*steps: tuple[str, str, str]) -> str:
        log = Log()
        for step in steps:
            log.does(*step)
        return log.order.fingerprint

    a, b, c = ("a", "set", "x"), ("b", "set", "y"), ("c", "check", "x")
    assert fingerprint(a, b, c) == fingerprint(b, a, c) == fingerprint(a, c, b)
    assert fingerprint(a, b, c) != fingerprint(c, b, a)


def test_the_next_delays_are_those_of_the_earlier_operations() -> None:
    """Each once, none that is taken."""
    log = Log()
    log.does("a", "set", "x")
    log.does("a", "set", "y")
    log.does("b", "check", "x")
    log.does("c", "check", "x")
    log.does("b", "check", "y")
    assert [delay.key for delay in log.order.next_delays(())] == [("a", 1), ("a", 2)]
    assert [delay.key for delay in log.order.next_delays([Delay("a", 1, "set")])] == [("a", 2)]


def test_a_measured_time_is_a_reason_for_a_delay() -> None:
    """Not the first reading of the clock, from which nothing is measured yet."""
    log = Log()
    for _ in range(3):
        log.does("a", "clock", ("clock", 0))
    assert [delay.key for delay in log.order.next_delays(())] == [("a", 2)]


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "check", "add"]), st.sampled_from("xy")), max_size=12
)


@given(STEPS, st.data())
def test_swapping_neighbours_that_do_not_conflict_changes_no_fingerprint(
    steps: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    """The definition of an equivalent run (Mazurkiewicz)."""
    log, other = Log(), Log()
    for step in steps:
        log.does(*step)
    free = [
        index
        for index, (one, two) in enumerate(pairwise(steps))
        if one[0] != two[0] and (one[2] != two[2] or {one[1], two[1]} == {"check"})
    ]
    if free:
        at = data.draw(st.sampled_from(free))
        steps = [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]]
    for step in steps:
        other.does(*step)
    assert log.order.fingerprint == other.order.fingerprint


@given(STEPS)
def test_races_are_pairs_of_different_tasks_that_conflict(steps: list[tuple[str, str, str]]) -> None:
    log = Log()
    for step in steps:
        log.does(*step)
    for race in log.order.races:
        assert race.earlier.task != race.later.task
        assert race.earlier.target == race.later.target
        assert race.earlier.writes or race.later.writes


def test_the_two_events_that_swap_are_found() -> None:
    """The pair with the delayed operation is preferred."""
    usual, other = Log(), Log()
    for log, steps in ((usual, "a b"), (other, "b a")):
        for task in steps.split():
            log.does(task, "set" if task == "a" else "check", "x")
    swap = swapped(usual.entries, other.entries, ("a", 1))
    assert swap is not None
    assert (swap.first.task, swap.then.task) == ("b", "a")
    assert swapped(usual.entries, usual.entries, ("a", 1)) is None
