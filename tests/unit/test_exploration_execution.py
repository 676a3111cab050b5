"""Trials run in this process, in others, or on a Dask cluster: the result is the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from simulator import Exploration, explore
from simulator.exploration.execution import CHUNK, SCHEDULES_PER_WORKER
from tests.unit.exploration_programs import a_flag_is_looked_at_once, a_sleep_is_to_order_two_ranks

SCHEDULES = 3 * CHUNK + 5


def explored(**options: Any) -> Exploration:
    return explore(a_sleep_is_to_order_two_ranks, 2, schedules=SCHEDULES, **options)


@pytest.fixture(scope="module")
def alone() -> Exploration:
    """All trials in this process."""
    return explored(workers=1)


class Backwards(Executor):
    """Runs the last task first: in what order tasks end must make no difference."""

    def __init__(self) -> None:
        self._tasks: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Waiting(self)
        self._tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        while self._tasks:
            future, task = self._tasks.pop()
            future.set_result(task())


class Waiting(Future[Any]):
    """A future that makes its executor run."""

    def __init__(self, executor: Backwards) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        self._executor.run()
        return super().result(timeout)


def test_the_order_in_which_workers_finish_makes_no_difference(alone: Exploration) -> None:
    assert explored(executor=Backwards()).trials == alone.trials


def test_threads_of_one_process_take_turns(alone: Exploration) -> None:
    """A simulation replaces what belongs to the process, so two of them cannot run at once."""
    with ThreadPoolExecutor(3) as pool:
        assert explored(executor=pool).trials == alone.trials


@pytest.mark.slow
def test_processes_give_the_same(alone: Exploration) -> None:
    """Two workers, each with a part of the schedules."""
    apart = explored(workers=2)
    assert apart.trials == alone.trials
    assert apart.report() == alone.report()
    assert apart.notes == ()


def test_few_schedules_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started."""
    monkeypatch.setattr("simulator.exploration.execution.ProcessPoolExecutor", None)
    assert SCHEDULES < SCHEDULES_PER_WORKER
    assert explored().trials


def test_a_function_that_cannot_be_imported_stays_here_and_a_note_says_so() -> None:
    """It is not an error: the result is the same, only later."""

    def local(rank: int) -> None:
        a_flag_is_looked_at_once(rank)

    exploration = explore(local, 2, schedules=6, workers=2)
    assert exploration.notes[0].startswith("all schedules run in one process: it cannot be pickled")
    assert exploration.notes[0] in exploration.report()


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    """A Dask cluster on this machine: two processes of two threads each."""
    distributed = pytest.importorskip("distributed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"n_workers": 2, "threads_per_worker": 2, "processes": True, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            client.run(sys.path.insert, 0, str(Path(__file__).parents[2]))
            yield client.get_executor()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same(alone: Exploration, dask: Executor) -> None:
    """Its executor is one like any other."""
    begin = time.monotonic()
    apart = explored(executor=dask)
    assert apart.trials == alone.trials
    assert apart.report() == alone.report()
    assert time.monotonic() - begin < 300
