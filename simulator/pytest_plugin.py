"""pytest fixtures that run simulated ranks; a bad outcome fails the test with the report as its text.

    def test_all_ranks_agree(simulate):
        outcome = simulate(work, 4)                      # work(rank) on four ranks
        assert outcome.results == {0: 6, 1: 6, 2: 6, 3: 6}

    def test_the_bug_is_found(simulate):
        outcome = simulate(buggy, 4, check=False)        # the outcome, whatever it is
        assert outcome.verdict == "deadlock"

    def test_joiners_come_in(hangcheck_cluster):
        cluster = hangcheck_cluster(nodes=2)
        cluster.launch(serve, ranks=4)
        cluster.join(grow, ranks=2, rank_offset=4, at_s=1.0)
        cluster.run()                                    # or cluster.run(check=False)

    @pytest.mark.hangcheck_explore(schedules=50)
    def test_no_order_of_the_ranks_matters(simulate):
        simulate(work, 4)                                # under 50 schedules; fails with the shortest bad one

    @pytest.mark.hangcheck_faults("kill rank=2 at=all_reduce#3", stop_at="30s")
    def test_three_go_on_without_the_fourth(simulate):
        simulate(serve, 4)                               # with the fault injected; so does simulate(..., faults=[...])

pytest loads this file in every session of every project that has hangcheck installed, so it imports torch, and the
simulator with it, only once a fixture is used.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simulator.checked_cluster import CheckedCluster
    from simulator.exploration.exploration import Exploration
    from simulator.outcome import Outcome

    ClusterFactory = Callable[..., CheckedCluster]
    Simulate = Callable[..., Outcome]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed: --hangcheck-seed, else the setting hangcheck_seed, else 0."""
    group = parser.getgroup("hangcheck", "simulated ranks")
    group.addoption("--hangcheck-seed", type=_seed, metavar="N", help="seed of simulations (default: the ini setting)")
    group.addoption(
        "--hangcheck-schedule", metavar="FILE", help="run the one simulation that this schedule is for under it"
    )
    parser.addini("hangcheck_seed", "seed of simulations, a whole number from 0 on (default 0)", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a setting that is no seed, before any test runs."""
    seed_of(config)
    config.addinivalue_line(
        "markers",
        "hangcheck_explore(schedules=100, policy='pct', depth=3, seed=None, workers=1): "
        "simulate under many schedules, and fail if one of them ends badly",
    )
    config.addinivalue_line(
        "markers",
        "hangcheck_faults('kill rank=2 at=2.5s', ..., stop_at=None, must_strike=False): simulate with these faults "
        "injected; no fault strikes from stop_at on, and progress must follow; a fault that never struck is said in "
        "the test's report, and fails the test with must_strike",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 0 or more")
    return int(text)


def seed_of(config: pytest.Config) -> int:
    """The seed that simulations of this session get.

    Raises:
        pytest.UsageError: the setting is not a whole number from 0 on.
    """
    given: int | None = config.getoption("--hangcheck-seed")
    if given is not None:
        return given
    try:
        return _seed(str(config.getini("hangcheck_seed")))
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"setting hangcheck_seed is {error}") from None


def pytest_report_header(config: pytest.Config) -> str | None:
    """Names the seed, unless it is the usual one."""
    seed = seed_of(config)
    return f"hangcheck: seed {seed}" if seed else None


@pytest.fixture
def hangcheck_cluster(request: pytest.FixtureRequest) -> ClusterFactory:
    """Makes clusters: `hangcheck_cluster(nodes=2)`. Options: see `simulator.cluster.ClusterOptions`."""
    marked, runs = _MarkedTest(request), count(1)

    def make(**options: Any) -> CheckedCluster:
        from simulator.checked_cluster import CheckedCluster

        return marked.prepared(CheckedCluster(**{"seed": marked.seed, **marked.faults(), **options}), next(runs))

    return make


class _MarkedTest:
    """What the command line and the mark `hangcheck_explore` ask of the clusters of one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.seed = seed_of(request.config)
        self._item = request.node
        self._command = shlex.join(["pytest", request.node.nodeid, "--hangcheck-seed", str(self.seed)])
        self._mark = request.node.get_closest_marker("hangcheck_explore")
        self._faults = request.node.get_closest_marker("hangcheck_faults")
        self._schedule: str | None = request.config.getoption("--hangcheck-schedule")
        self._file = _schedule_file(request)

    def faults(self) -> dict[str, Any]:
        """What the mark `hangcheck_faults` asks for, as options of the cluster."""
        if self._faults is None:
            return {}
        from simulator.engine.errors import require
        from simulator.faults.values import read_seconds

        given = {**self._faults.kwargs}
        stop_at = given.pop("stop_at", None)
        given.pop("must_strike", None)
        known = "give faults as texts, and stop_at and must_strike by name"
        require(not given, f"hangcheck_faults({', '.join(given)}): {known}")
        return {
            "faults": self._faults.args,
            "faults_stop_at_s": read_seconds(stop_at) if isinstance(stop_at, str) else stop_at,
        }

    def prepared(self, cluster: CheckedCluster, number: int) -> CheckedCluster:
        """The cluster that is the test's `number`th."""
        cluster.replay = self._command
        cluster.never_struck = self._never_struck
        if self._schedule is not None:
            self._follow(cluster, number, self._schedule)
        elif self._mark is not None:
            from simulator.checked_cluster import marked

            replay = f"{self._command} --hangcheck-schedule {shlex.quote(str(self._file))}"
            command = f"{self._command} # run {number}"
            how = marked(self._mark.kwargs, self.seed)
            cluster.exploring = {**how, "command": command, "replay": replay}
            cluster.save = self._save
        return cluster

    def _never_struck(self, text: str) -> None:
        """A fault had no effect, in any schedule: say so in the report of the test, and fail it if that was asked."""
        if self._faults is not None and self._faults.kwargs.get("must_strike"):
            pytest.fail(f"hangcheck: {text}", pytrace=False)
        self._item.add_report_section("call", "hangcheck", text)

    def _save(self, exploration: Exploration) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(exploration.schedule.to_text())

    def _follow(self, cluster: CheckedCluster, number: int, path: str) -> None:
        from simulator.exploration.schedule import Schedule

        schedule = Schedule.from_text(Path(path).read_text())
        if schedule.program.endswith(f"# run {number}"):
            cluster.options = replace(cluster.options, delays=schedule)
            cluster.replay = f"{self._command} --hangcheck-schedule {shlex.quote(path)}"


def _schedule_file(request: pytest.FixtureRequest) -> Path:
    """Where the schedule of a failing test goes: into pytest's cache."""
    cache = getattr(request.config, "cache", None)
    folder = Path(".pytest_cache") / "d" / "hangcheck" if cache is None else cache.mkdir("hangcheck")
    name = re.sub(r"[^\w.-]+", "-", request.node.nodeid)
    return Path(os.path.relpath(folder / f"{name}.schedule"))


@pytest.fixture
def simulate(hangcheck_cluster: ClusterFactory) -> Simulate:
    """Runs one function on some ranks: `simulate(fn, 4, args=(...), check=True, **options)`."""

    def run(
        fn: Callable[..., Any], ranks: int, *, args: Sequence[Any] = (), check: bool = True, **options: Any
    ) -> Outcome:
        cluster = hangcheck_cluster(**options)
        cluster.launch(fn, ranks=ranks, args=args)
        return cluster.run(check=check)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows the report of a failed simulation instead of the traceback that carried it here (unless --full-trace)."""
    report = yield
    full = item.config.getoption("fulltrace", False)
    if call.excinfo is not None and report.failed and not full and _is_simulation_failure(call.excinfo.value):
        report.longrepr = call.excinfo.getrepr(style="value")
    return report


def _is_simulation_failure(error: BaseException) -> bool:
    outcome = sys.modules.get("simulator.outcome")
    return outcome is not None and isinstance(error, outcome.SimulationFailed)
