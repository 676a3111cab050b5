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

pytest loads this file in every session of every project that has hangcheck installed, so it imports torch, and the
simulator with it, only once a fixture is used.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simulator.checked_cluster import CheckedCluster
    from simulator.outcome import Outcome

    ClusterFactory = Callable[..., CheckedCluster]
    Simulate = Callable[..., Outcome]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed: --hangcheck-seed, else the setting hangcheck_seed, else 0."""
    group = parser.getgroup("hangcheck", "simulated ranks")
    group.addoption("--hangcheck-seed", type=_seed, metavar="N", help="seed of simulations (default: the ini setting)")
    parser.addini("hangcheck_seed", "seed of simulations, a whole number from 0 on (default 0)", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses a setting that is no seed, before any test runs."""
    seed_of(config)


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
    seed = seed_of(request.config)
    replay = shlex.join(["pytest", request.node.nodeid, "--hangcheck-seed", str(seed)])

    def make(**options: Any) -> CheckedCluster:
        from simulator.checked_cluster import CheckedCluster

        cluster = CheckedCluster(**{"seed": seed, **options})
        cluster.replay = replay
        return cluster

    return make


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
