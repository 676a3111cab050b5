"""Tasks that fall behind, in the engine alone: who goes first, how long it lasts, and what it must not cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.engine.carrier import CARRIERS
from simulator.engine.lag import LAG_MAX_S, LAG_S
from simulator.engine.operations import After, Operation
from simulator.engine.scheduler import End, Scheduler, Wait

Body = Callable[[Scheduler], None]


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(*bodies: Body, delays: Callable[[Operation], int], carrier: str = "thread") -> Scheduler:
    """Run each body as a task, `t0`, `t1`, ..."""
    scheduler = Scheduler(delays=delays, carrier=carrier, on_quiescent=lambda: True)
    for number, body in enumerate(bodies):
        scheduler.spawn(f"t{number}", number, lambda body=body: body(scheduler))  # type: ignore[misc]
    scheduler.run()
    scheduler.drain()
    if scheduler.fault is not None:
        raise scheduler.fault
    return scheduler


def before(*keys: tuple[str, int]) -> Callable[[Operation], int]:
    """Fall behind before these operations."""
    return lambda operation: int(operation[:2] in keys)


def step(scheduler: Scheduler, name: str, seen: list[str]) -> None:
    """An operation that others can see."""
    scheduler.announce("set", ("key", "store", "x"), writes=True)
    seen.append(name)


def stepper(name: str, seen: list[str], steps: int = 2) -> Body:
    def body(scheduler: Scheduler) -> None:
        for number in range(steps):
            step(scheduler, f"{name}{number}", seen)

    return body


def test_without_delays_operations_need_no_announcing() -> None:
    """There is no log, and nobody asks."""
    scheduler = Scheduler()
    assert scheduler.lag is None


def test_a_task_runs_on_at_its_operations_unless_it_falls_behind(carrier: str) -> None:
    """In order, the first task does all it has to do before the second one begins."""
    seen: list[str] = []
    run(stepper("a", seen), stepper("b", seen), delays=before(), carrier=carrier)
    assert seen == ["a0", "a1", "b0", "b1"]


def test_a_task_that_falls_behind_goes_on_when_no_other_can(carrier: str) -> None:
    """The operation before which it fell comes after all that the others do."""
    seen: list[str] = []
    scheduler = run(stepper("a", seen), stepper("b", seen), delays=before(("t0", 2)), carrier=carrier)
    assert seen == ["a0", "b0", "b1", "a1"]
    assert scheduler.lag is not None
    assert [operation[:3] for operation in scheduler.lag.fallen] == [("t0", 2, "set")]
    assert scheduler.env.now == LAG_S


def test_who_falls_later_is_behind_who_fell_earlier() -> None:
    seen: list[str] = []
    run(*[stepper(name, seen, 1) for name in "abc"], delays=before(("t0", 1), ("t1", 1)))
    assert seen == ["c0", "a0", "b0"]


@pytest.mark.parametrize(("depths", "order"), [((0, 1, 2), "abc"), ((2, 1, 0), "cba"), ((1, 2, 0), "cab")])
def test_among_those_who_fall_at_their_start_the_number_decides(depths: tuple[int, ...], order: str) -> None:
    seen: list[str] = []
    chosen = {f"t{number}": depth for number, depth in enumerate(depths)}
    run(*[stepper(name, seen, 1) for name in "abc"], delays=lambda o: chosen[o.task] if o.number == 0 else 0)
    assert seen == [f"{name}0" for name in order]


def test_a_sleep_may_end_before_a_late_task_goes_on() -> None:
    """So a sleep orders nothing."""
    seen: list[str] = []

    def sleeper(scheduler: Scheduler) -> None:
        scheduler.sleep(1.0)
        step(scheduler, "slept", seen)

    scheduler = run(stepper("a", seen, 1), sleeper, delays=before(("t0", 1)))
    assert seen == ["slept", "a0"]
    assert scheduler.env.now == 1.0


def test_a_lag_lasts_ten_seconds_at_most() -> None:
    """Slow, not dead: a watchdog of a minute does not strike."""
    seen: list[str] = []

    def watchdog(scheduler: Scheduler) -> None:
        scheduler.sleep(LAG_MAX_S + 50.0)
        seen.append("alarm")

    run(stepper("a", seen, 1), watchdog, delays=before(("t0", 1)))
    assert seen == ["a0", "alarm"]


def test_who_polls_waits_for_the_late_task() -> None:
    """The same sleep a second time, with no progress in between, is a poll."""
    seen: list[str] = []

    def poller(scheduler: Scheduler) -> None:
        while "a0" not in seen:
            seen.append("look")
            scheduler.sleep(0.2, Wait("sleep", "a pause"))

    run(stepper("a", seen, 1), poller, delays=before(("t0", 1)))
    assert seen == ["look", "look", "a0"]


def test_no_time_out_strikes_because_of_a_lag() -> None:
    """The late task comes before the time-out of a wait, even if a sleep that lasts longer is under way."""
    seen: list[str] = []

    def setter(scheduler: Scheduler) -> None:
        step(scheduler, "set", seen)
        events[0].succeed()  # type: ignore[attr-defined]

    def waiter(scheduler: Scheduler) -> None:
        events.append(scheduler.event())
        seen.append(f"came: {scheduler.wait(events[0], Wait('x', 'x'), 2.0)}")

    def sleeper(scheduler: Scheduler) -> None:
        scheduler.sleep(5.0)
        seen.append("slept")

    events: list[object] = []
    run(setter, waiter, sleeper, delays=before(("t0", 1)))
    assert seen == ["set", "came: True", "slept"]


def test_the_log_says_what_woke_a_task() -> None:
    """Who is woken comes after what its waker had done by then, not after what it did later."""
    events: list[object] = []

    def waiter(scheduler: Scheduler) -> None:
        events.append(scheduler.event())
        scheduler.announce("wait", ("key", "store", "x"), writes=False)
        scheduler.wait(events[0], Wait("x", "x"))
        scheduler.announce("get", ("key", "store", "y"), writes=False)

    def setter(scheduler: Scheduler) -> None:
        scheduler.announce("set", ("key", "store", "x"), writes=True)
        events[0].succeed()  # type: ignore[attr-defined]
        scheduler.announce("set", ("key", "store", "y"), writes=True)

    lag = run(waiter, setter, delays=before()).lag
    assert lag is not None
    told = [e if isinstance(e, After) else (e.task, e.verb) for e in lag.log.entries]
    assert told == [("t0", "wait"), ("t1", "set"), ("t1", "set"), After("t0", 1), ("t0", "get")]


def test_a_late_task_does_not_keep_a_run_from_ending() -> None:
    """All others wait for it, and then nothing can move."""
    scheduler = run(
        stepper("a", [], 1),
        lambda s: s.wait(s.event(), Wait("x", "never")),  # type: ignore[arg-type, return-value]
        delays=before(("t0", 1)),
    )
    assert scheduler.end is End.QUIESCENT


def test_two_tasks_of_one_name_are_told_apart() -> None:
    """A new process in a lost slot has the name of the first one."""
    scheduler = Scheduler(delays=before())
    labels = [scheduler.spawn("r3", None, lambda: None).label for _ in range(2)]
    scheduler.run()
    assert labels == ["r3", "r3~2"]
