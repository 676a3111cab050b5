"""The clock of the ranks: virtual, the same on all of them, and the real one everywhere else."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable
from time import monotonic as monotonic_by_name
from time import sleep as sleep_by_name
from typing import Any

import pytest

from simulator import Cluster, Verdict, simulate
from simulator.engine.scheduler import Limits

EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z, where virtual time begins


def results(body: Callable[[int], Any], ranks: int = 2, **options: Any) -> dict[int, Any]:
    """What the ranks return; each of them must do well."""
    return simulate(body, ranks, **options).raise_if_bad().results


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    """Whoever sleeps shorter wakes earlier; equal times go by who slept first. An hour costs no real time."""
    order: list[tuple[int, float]] = []

    def body(rank: int) -> None:
        for seconds in ([3600, 1], [1, 3600], [1800, 2], [1, 0])[rank]:
            time.sleep(seconds)
            order.append((rank, time.monotonic()))

    began = time.monotonic()
    results(body, 4)
    assert order == [(1, 1), (3, 1), (3, 1), (2, 1800), (2, 1802), (0, 3600), (1, 3601), (0, 3601)]
    assert time.monotonic() - began < 5


def test_all_clocks_show_the_same_time() -> None:
    """Seconds and nanoseconds, the calendar included."""

    def body(rank: int) -> list[Any]:
        time.sleep(86_400.5)
        return [
            time.time() - EPOCH,
            time.time_ns() - EPOCH * 10**9,
            time.monotonic(),
            time.monotonic_ns(),
            time.perf_counter(),
            time.perf_counter_ns(),
            time.clock_gettime(time.CLOCK_REALTIME) - EPOCH,
            time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            time.gmtime()[:6],
            time.strftime("%Y", time.gmtime(0)),
            time.strftime("%Y"),
            time.ctime() == time.asctime() == time.ctime(time.time()),
            time.localtime() == time.localtime(time.time()),
        ]

    seconds, nanoseconds = 86_400.5, 86_400_500_000_000
    expected = [seconds, nanoseconds] * 4 + [(2026, 1, 2, 0, 0, 0), "1970", "2026", True, True]
    assert results(body) == {0: expected, 1: expected}


def test_a_loop_on_the_clock_ends() -> None:
    """Reading is not blocking, yet time passes for a rank that only reads."""

    def body(rank: int) -> bool:
        ends_at = time.monotonic() + 0.05
        while time.monotonic() < ends_at:
            pass
        return time.monotonic() - ends_at < 0.001

    assert results(body) == {0: True, 1: True}


def test_a_loop_on_the_clock_lets_others_run() -> None:
    """What it waits for can happen meanwhile."""
    flag: list[int] = []

    def body(rank: int) -> bool:
        if rank == 1:
            time.sleep(0.01)
            flag.append(rank)
        while not flag and time.time() < EPOCH + 10:
            pass
        return bool(flag)

    assert results(body) == {0: True, 1: True}


def test_sleeping_no_time_lets_others_run() -> None:
    """`sleep(0)` is a turn for everybody who is ready."""
    order: list[int] = []

    def body(rank: int) -> None:
        for _ in range(2):
            order.append(rank)
            time.sleep(0)

    results(body, 3)
    assert order == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("seconds", [-1, -0.5, float("nan"), float("inf"), "1", None, 1j])
def test_bad_sleeps_raise_what_the_real_one_raises(seconds: Any) -> None:
    """The same class; the texts differ between versions of Python."""
    with pytest.raises((ValueError, TypeError, OverflowError)) as real:
        time.sleep(seconds)

    def body(rank: int) -> str:
        with pytest.raises((ValueError, TypeError, OverflowError)) as simulated:
            time.sleep(seconds)
        return simulated.type.__name__

    assert results(body) == {0: real.type.__name__, 1: real.type.__name__}


def test_functions_imported_by_name_are_followed() -> None:
    """`from time import sleep` at the top of a module means virtual time too, and the real one again afterwards."""
    real = sleep_by_name

    def body(rank: int) -> float:
        sleep_by_name(1000)
        return monotonic_by_name()

    assert results(body) == {0: 1000.0, 1: 1000.0}
    assert sleep_by_name is real is time.sleep


def test_log_records_carry_virtual_time(caplog: pytest.LogCaptureFixture) -> None:
    """The logging module asks the clock, like everybody else."""

    def body(rank: int) -> None:
        time.sleep(60)
        logging.getLogger("ranks").warning("hello")

    results(body)
    assert [round(record.created - EPOCH, 6) for record in caplog.records] == [60.0, 60.0]


def test_datetime_shows_the_real_time() -> None:
    """A limit: it reads the system clock in C."""

    def body(rank: int) -> float:
        time.sleep(1e6)
        return datetime.datetime.now(datetime.UTC).timestamp()

    before = time.time()
    assert before <= results(body)[0] <= time.time()


def test_a_later_cohort_starts_on_the_same_clock() -> None:
    """Joiners that come after 90 seconds read 90 seconds."""
    cluster = Cluster().launch(lambda rank: time.monotonic(), ranks=2)
    cluster.join(lambda rank: time.monotonic(), ranks=2, rank_offset=2, at_s=90)
    assert cluster.run().raise_if_bad().results == {0: 0.0, 1: 0.0, 2: 90.0, 3: 90.0}


def test_an_endless_loop_on_the_clock_is_a_livelock() -> None:
    """It polls for ever, and the run ends all the same."""

    def body(rank: int) -> None:
        while time.monotonic() >= 0:
            pass

    outcome = simulate(body, 2, limits=Limits(idle_steps_max=1000))
    assert outcome.verdict is Verdict.LIVELOCK
    assert "the clock, in a loop" in outcome.report()
