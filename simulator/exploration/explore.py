"""Runs a program under many schedules, and says what came of them.

    def work(rank: int) -> bool:
        store = dist.TCPStore("node0", 29500, 2, rank == 0, wait_for_workers=False)
        if rank == 0:
            store.set("ready", "yes")
            return True
        return store.check(["ready"])

    exploration = explore(work, 2, schedules=20)
    assert exploration.verdict == "race"

The verdict is that of the run in order, unless the outcome depends on the schedule: then it is `race`. That some
schedules end well and others badly is certain; that ranks return other values is a suspicion, since it may be meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from simulator.cluster import Cluster
from simulator.engine.errors import UsageError, require
from simulator.exploration.execution import OnDone, run_trials, workers_for
from simulator.exploration.exploration import Exploration
from simulator.exploration.judgement import Judge
from simulator.exploration.plans import Plan, plan_of
from simulator.exploration.program import OfCluster, OnRanks, Program
from simulator.exploration.recipes import Given
from simulator.exploration.trial import Numbered, Trial, on_stage
from simulator.exploration.values import differing

WAVE = 512
"""Schedules that are asked of a plan at once."""


def explore(
    program: Callable[..., Any],
    ranks: int | None = None,
    *,
    args: Sequence[Any] = (),
    schedules: int = 100,
    seed: int = 0,
    policy: str = "pct",
    depth: int = 3,
    workers: int | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Exploration:
    """Run `program(rank, *args)` on `ranks` ranks, or the cluster that `program()` returns, under many schedules.

    Args:
        schedules: how many at most, the run in order included.
        seed: of the schedules, and of the ranks' random numbers.
        policy: `random`, `pct`, `dfs` or `in-order` (see `simulator.exploration.plans`).
        depth: how many delays a schedule of `dfs` has at most; for `pct`, how many orderings a bug may need.
        workers: processes; None: what is worth while. 1: all in this process.
        executor: where to run instead.
        options: of the cluster (see `ClusterOptions`), if `ranks` is given.

    Raises:
        UsageError: arguments that make no sense, or a program that does not repeat.
    """
    if ranks is None:
        require(not options and not args, "options and arguments belong to the cluster that the function makes")
        return explore_program(
            OfCluster(program, _made(program).ranks), schedules=schedules, seed=seed, policy=policy, depth=depth,
            workers=workers, executor=executor,
        )  # fmt: skip
    require("delays" not in options, "an exploration chooses the delays itself: leave delays out")
    what = OnRanks(program, ranks, tuple(args), {"seed": seed, **options})
    return explore_program(
        what, schedules=schedules, seed=seed, policy=policy, depth=depth, workers=workers, executor=executor
    )


def _made(make: Callable[[], Any]) -> Cluster:
    cluster = make()
    if not isinstance(cluster, Cluster):
        raise UsageError(f"the function returned {cluster!r:.80}: give a number of ranks, or return a Cluster")
    return cluster


def explore_program(
    program: Program,
    *,
    schedules: int,
    seed: int,
    policy: str,
    depth: int,
    command: str = "",
    replay: str = "",
    workers: int | None = None,
    executor: Executor | None = None,
    on_done: OnDone = lambda trials: None,
) -> Exploration:
    """As `explore`, for anything that can be run under a schedule.

    Args:
        command: runs the program in order; it goes into the schedule.
        replay: runs the failing schedule again; it goes into the report.
        on_done: gets the trials as they come in.
    """
    whole = isinstance(schedules, int) and not isinstance(schedules, bool)
    require(whole and schedules >= 1, f"schedules={schedules!r}: give a whole number, 1 or more")
    require(workers is None or (isinstance(workers, int) and workers >= 1), f"workers={workers!r}: give 1 or more")
    plan = plan_of(policy, seed=seed, depth=depth)
    with on_stage(program) as runner:
        first, volatile = _in_order(runner.trial)
    on_done([first])
    trials, note = [first], ""
    if executor is None:
        with workers_for(program, schedules, workers) as (pool, note):
            exhausted = _try_all(program, plan, trials, schedules, pool, on_done)
    else:
        exhausted = _try_all(program, plan, trials, schedules, executor, on_done)
    with on_stage(program) as runner:
        judgement = Judge(runner, trials, volatile, command=command, replay=replay).judgement()
    return Exploration(
        **judgement._asdict(), policy=policy, depth=depth, seed=seed, trials=tuple(trials), exhausted=exhausted,
        notes=(note,) if note else (),
    )  # fmt: skip


def _in_order(run: Callable[..., Trial]) -> tuple[Trial, frozenset[str]]:
    """The run in order, and which results are other ones in a second run of it, or with another clock and other pids.

    Raises:
        UsageError: the two runs are not the same run.
    """
    first, again = (run(0, Given(), look=True) for _ in range(2))
    if (first.verdict, first.fingerprint) != (again.verdict, again.fingerprint):
        raise UsageError(
            f"the program does not repeat: in one and the same order it ended with {first.verdict} and then with "
            f"{again.verdict}, or did other things; does it keep state in modules (isolate=...), or in files?"
        )
    shifted = run(0, Given(), shifted=True)
    volatile = [path for other in (again, shifted) for path in differing(first.results, other.results, tolerance=0.0)]
    return first, frozenset(volatile)


def _try_all(
    program: Program, plan: Plan, trials: list[Trial], schedules: int, executor: Executor | None, on_done: OnDone
) -> bool:
    """Run what the plan asks for; True if it has nothing left to try."""
    while len(trials) < schedules:
        recipes = plan.next(trials, min(WAVE, schedules - len(trials)))
        if not recipes:
            return True
        numbered: list[Numbered] = list(enumerate(recipes, len(trials)))
        trials += run_trials(program, numbered, look=plan.looks, executor=executor, on_done=on_done)
    return False
