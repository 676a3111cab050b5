"""The engine alone, without torch: order, virtual time, time-outs, ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from simulator.engine.carrier import CARRIERS
from simulator.engine.errors import RankEnded, UsageError
from simulator.engine.scheduler import End, Limits, Scheduler, Wait

Body = Callable[[Scheduler], None]


def run(*bodies: Body, starts: tuple[float, ...] = (), **options: object) -> Scheduler:
    """Run each body as a task and unwind what is left."""
    scheduler = Scheduler(**options)  # type: ignore[arg-type]
    for number, body in enumerate(bodies):
        at_s = starts[number] if starts else 0.0
        scheduler.spawn(f"t{number}", number, lambda body=body: body(scheduler), at_s=at_s)  # type: ignore[misc]
    scheduler.run()
    scheduler.drain()
    if scheduler.fault is not None:
        raise scheduler.fault
    return scheduler


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_tasks_start_in_order_and_wake_in_the_order_of_virtual_time(carrier: str) -> None:
    """Among equal times the first to ask is the first to go on."""
    seen: list[tuple[float, str]] = []

    def sleeper(name: str, *naps: float) -> Body:
        def body(scheduler: Scheduler) -> None:
            for nap in naps:
                scheduler.sleep(nap)
                seen.append((round(scheduler.env.now, 3), name))

        return body

    end = run(sleeper("a", 0.3, 0.1), sleeper("b", 0.1, 0.2), sleeper("c", 0.1), carrier=carrier).end
    assert seen == [(0.1, "b"), (0.1, "c"), (0.3, "a"), (0.3, "b"), (0.4, "a")]
    assert end is End.FINISHED


def test_a_task_starts_at_its_start_time(carrier: str) -> None:
    """A later cohort begins when it is said to."""
    seen: list[float] = []
    run(*[lambda s: seen.append(s.env.now)] * 2, starts=(2.5, 0.0), carrier=carrier)
    assert seen == [0.0, 2.5]


def test_an_event_wakes_a_waiting_task_before_its_time_out(carrier: str) -> None:
    """True: the event came. False: the time-out struck, at its virtual time."""
    outcomes: list[tuple[bool, float]] = []

    def waiter(scheduler: Scheduler) -> None:
        outcomes.append((scheduler.wait(shared[0], Wait("x", "x"), 5.0), scheduler.env.now))
        outcomes.append((scheduler.wait(scheduler.event(), Wait("x", "x"), 5.0), scheduler.env.now))

    def setter(scheduler: Scheduler) -> None:
        scheduler.sleep(1.0)
        shared[0].succeed()

    shared: list[object] = []

    def maker(scheduler: Scheduler) -> None:
        shared.append(scheduler.event())

    run(maker, waiter, setter, on_quiescent=lambda: True, carrier=carrier)  # type: ignore[arg-type]
    assert outcomes == [(True, 1.0), (False, 6.0)]


def test_nothing_can_move_is_seen_at_once_and_not_by_a_time_out(carrier: str) -> None:
    """The run ends at virtual time 0 although a time-out of an hour is pending."""

    def stuck(scheduler: Scheduler) -> None:
        scheduler.wait(scheduler.event(), Wait("x", "never"), 3600.0)

    scheduler = run(stuck, carrier=carrier)
    assert (scheduler.end, scheduler.env.now) == (End.QUIESCENT, 0.0)


def test_stuck_tasks_are_unwound_and_their_finally_blocks_run(carrier: str) -> None:
    """A wait in a finally block raises again, so unwinding ends."""
    seen: list[str] = []

    def stuck(scheduler: Scheduler) -> None:
        try:
            scheduler.wait(scheduler.event(), Wait("x", "never"))
        finally:
            seen.append("finally")
            scheduler.sleep(1.0)
            seen.append("not reached")

    run(stuck, stuck, carrier=carrier)
    assert seen == ["finally", "finally"]


def test_an_ended_task_raises_where_it_waits(carrier: str) -> None:
    """Whoever kills a task names the way and the exit code."""
    seen: list[RankEnded] = []

    def victim(scheduler: Scheduler) -> None:
        try:
            scheduler.sleep(100.0)
        except RankEnded as ended:
            seen.append(ended)

    def killer(scheduler: Scheduler) -> None:
        scheduler.sleep(1.0)
        scheduler.end_task(scheduler.tasks[0], RankEnded("crash", -11))

    scheduler = run(victim, killer, carrier=carrier)
    assert [(e.how, e.code) for e in seen] == [("crash", -11)]
    assert scheduler.end is End.FINISHED


def test_polling_without_progress_is_a_livelock(carrier: str) -> None:
    """The bound on steps without progress is reached, and named."""

    def poller(scheduler: Scheduler) -> None:
        while True:
            scheduler.poll("a flag")

    limits = Limits(idle_steps_max=500)
    assert run(poller, poller, limits=limits, carrier=carrier).end is End.LIVELOCK


def test_progress_resets_the_bound_on_idle_steps(carrier: str) -> None:
    """A long run that gets things done is no livelock."""

    def worker(scheduler: Scheduler) -> None:
        for _ in range(300):
            scheduler.poll("a flag")
            scheduler.progress()

    assert run(worker, worker, limits=Limits(idle_steps_max=100), carrier=carrier).end is End.FINISHED


def test_a_task_that_never_blocks_is_stopped_with_its_frame(carrier: str) -> None:
    """The watchdog looks at the wall clock, and only it does."""

    def spinner(scheduler: Scheduler) -> None:
        while True:
            pass

    before = threading.active_count()
    scheduler = run(spinner, lambda s: s.sleep(1.0), limits=Limits(spin_wall_s=0.3), carrier=carrier)
    assert scheduler.end is End.SPIN
    assert scheduler.spinner is not None
    task, frame = scheduler.spinner
    assert (task.name, frame.f_code.co_name) == ("t0", "spinner")
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_an_error_of_the_engine_itself_comes_out_of_run() -> None:
    """A quiescence handler that fails is a fault of the simulator, not of a rank."""

    def broken() -> bool:
        raise ZeroDivisionError("handler")

    with pytest.raises(ZeroDivisionError, match="handler"):
        run(lambda s: s.wait(s.event(), Wait("x", "never")), on_quiescent=broken)


@pytest.mark.parametrize("answer", [None, 999, -1, True, "x", 0.5])
def test_a_policy_that_names_no_ready_task_is_refused(answer: object) -> None:
    """The message says what was returned and what would do."""
    with pytest.raises(UsageError, match=r"the policy returned .*: give an index below 2"):
        run(*[lambda s: s.sleep(1.0)] * 2, policy=lambda ready: answer)


def test_a_policy_that_raises_is_refused() -> None:
    """Its own error is named."""
    with pytest.raises(UsageError, match="the policy raised ZeroDivisionError"):
        run(*[lambda s: s.sleep(1.0)] * 2, policy=lambda ready: 1 // 0)


def test_a_policy_chooses_among_the_ready_tasks(carrier: str) -> None:
    """The scheduler runs, the policy chooses: here always the last."""
    seen: list[int] = []

    def body(number: int) -> Body:
        return lambda scheduler: seen.append(number)

    run(*[body(n) for n in range(4)], policy=lambda ready: len(ready) - 1, carrier=carrier)
    assert seen == [3, 2, 1, 0]


def test_greenlets_refuse_threads_with_the_remedy() -> None:
    """The error names what to use instead."""
    scheduler = Scheduler(carrier="greenlet")
    with pytest.raises(UsageError, match="carrier='thread'"):
        scheduler.adopt("x", None, lambda: None)


def test_a_thousand_tasks_hand_over_quickly(carrier: str) -> None:
    """Each of 1,024 tasks waits three times; nothing is lost."""
    done: list[int] = []

    def body(number: int) -> Body:
        def work(scheduler: Scheduler) -> None:
            for _ in range(3):
                scheduler.sleep(0.001)
            done.append(number)

        return work

    run(*[body(n) for n in range(1024)], carrier=carrier)
    assert done == list(range(1024))


@pytest.mark.parametrize(
    "module",
    [
        "simulator",
        "simulator.engine.scheduler",
        "simulator.analysis.diagnose",
        "simulator.report.text",
        "simulator.barrier_model",
        "simulator.records",
        "simulator.pytest_plugin",
        "simulator.cli",
        "refimpl.distributed.layout",
    ],
)
def test_modules_that_promise_it_import_without_torch(module: str) -> None:
    """The engine, the analysis, the plug-in and the layout stay light."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
