"""Races are found, shrunk and explained; programs whose order makes no difference are left alone."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from simulator import Cluster, ExplorationFailed, Schedule, UsageError, explore
from simulator.engine.operations import Operation
from simulator.exploration.plans import POLICIES
from tests.unit.exploration_programs import (
    CORRECT,
    RACES,
    Function,
    a_flag_is_looked_at_once,
    a_prefix_is_shared_by_two_groups,
    a_sleep_is_to_order_two_ranks,
    a_time_limit_is_tested_on_local_clocks,
    counts_under_a_lock,
    store_of,
    the_first_message_is_taken_for_rank_1s,
    two_flags_must_be_late,
    waits_for_a_key,
)

FOUND_WITHIN = {"dfs": 10, "pct": 20, "random": 80}
"""Policy to the number of schedules within which each of the races is found, with seed 0."""


def name_of(program: Function) -> str:
    return program.__name__


@pytest.mark.parametrize("policy", FOUND_WITHIN)
@pytest.mark.parametrize("program", RACES, ids=name_of)
def test_a_race_is_found_and_shrunk(program: Function, policy: str) -> None:
    """Within a few schedules; the shortest one has one delay, or two where two are needed."""
    ranks, bad = RACES[program]
    exploration = explore(program, ranks, schedules=FOUND_WITHIN[policy], policy=policy)
    assert exploration.verdict == "race", exploration.report()
    assert bad in exploration.counts
    assert len(exploration.schedule.delays) <= (2 if program is two_flags_must_be_late else 1)
    assert exploration.outcome.verdict == bad


@pytest.mark.parametrize("policy", FOUND_WITHIN)
@pytest.mark.parametrize("program", CORRECT, ids=name_of)
def test_a_program_that_does_not_depend_on_the_order_is_left_alone(program: Function, policy: str) -> None:
    """No false alarm, whoever is slow."""
    exploration = explore(program, CORRECT[program], schedules=40, policy=policy)
    assert exploration.ok, exploration.report()
    assert exploration.findings == ()


def test_a_race_of_messages_names_the_receive_that_takes_either() -> None:
    """The receive from any source has to change, not the two sends; it stands first."""
    finding = explore(the_first_message_is_taken_for_rank_1s, 3, schedules=20).findings[0]
    assert [side.role for side in finding.sides] == ["takes", "first", "then", "delayed"]
    assert (finding.ranks("takes"), finding.sides[0].doing) == ((0,), "recv from any rank")
    assert finding.title.startswith("the outcome depends on which message rank 0's recv from any rank (")
    assert finding.remedy.startswith("receive from each rank by its number (src=)")


def test_two_delays_are_found_where_one_is_not_enough() -> None:
    """The search in depth tries one delay first, and says so when it has tried everything."""
    alone = explore(two_flags_must_be_late, 3, policy="dfs", depth=1)
    assert (alone.verdict, alone.exhausted) == ("ok", True)
    both = explore(two_flags_must_be_late, 3, policy="dfs", depth=2)
    assert {delay.task for delay in both.schedule.delays} == {"r1", "r2"}
    assert both.outcome.verdict == "deadlock"


REPORT = """\
hangcheck: race in 3 schedules (dfs, seed 0): 2 ok, 1 deadlock; no other order within 3 delays

race: the outcome depends on whether rank 0's check of key 'plan' (tests/unit/exploration_programs.py:54) comes before
  rank 1's set of key 'plan' (tests/unit/exploration_programs.py:51)
  first:   rank 0  check of key 'plan'           tests/unit/exploration_programs.py:54
  then:    rank 1  set of key 'plan'             tests/unit/exploration_programs.py:51
  delayed: rank 1  before its set of key 'plan'  tests/unit/exploration_programs.py:51
  cause:   in order the run ends with ok; with the delay, with deadlock (all_reduce seq 0 of group 'WORLD' [0, 1]
           cannot complete) (1 of 3 schedules)
  remedy:  let rank 0 wait for rank 1: a barrier, a receive, or a wait for a key that is set after it; a sleep orders
           nothing
  level:   torch    certainty: cause

schedule: r1 is delayed at tests/unit/exploration_programs.py:51
  before its operation 2, set key 'plan' of TCPStore at node0:29500
hangcheck: deadlock (1 finding, 2 ranks, seed 0, 1.0001 s of virtual time)

deadlock: all_reduce seq 0 of group 'WORLD' [0, 1] cannot complete
  waiting: rank 1  all_reduce seq 0      tests/unit/exploration_programs.py:56
  missing: rank 0  finished at 1.0001 s
  cause:   rank 0 has ended without entering this all_reduce
"""


def test_the_report_names_both_events_the_delay_and_both_outcomes() -> None:
    """What comes first, what then, who is slow where; and then the report of the failing schedule."""
    text = explore(a_sleep_is_to_order_two_ranks, 2, policy="dfs").report()
    assert text.startswith(REPORT), text


def test_the_run_in_order_may_be_the_bad_one() -> None:
    """Then the schedule has no delays, and the delay that helps stands in the finding."""
    exploration = explore(a_flag_is_looked_at_once, 2, policy="dfs")
    assert exploration.schedule.delays == ()
    assert exploration.trials[0].verdict == "deadlock"
    assert exploration.findings[0].title.startswith("the outcome depends on whether rank 0's set of key 'ready'")
    assert "let rank 1 wait for rank 0" in exploration.findings[0].remedy


def test_a_local_clock_is_named_where_no_two_events_swap() -> None:
    finding = explore(a_time_limit_is_tested_on_local_clocks, 2, policy="dfs").findings[0]
    assert finding.title == "the outcome depends on whether rank 1 is slow before its look at the clock"
    assert finding.ranks("delayed") == (1,)


def test_other_results_are_a_suspicion() -> None:
    """That ranks return other values may be meant."""
    finding = explore(a_prefix_is_shared_by_two_groups, 5, policy="dfs", schedules=20).findings[0]
    assert str(finding.certainty) == "suspect"
    assert "in order the run ends with the results" in finding.cause


def late_to_its_second_life(rank: int) -> float:
    """In order already, rank 1 comes after rank 0 has read the keys of the first life."""
    store = store_of(rank, 2)
    dist.destroy_process_group()
    time.sleep(rank * 1.5)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return 0.0


def test_a_race_that_one_run_shows_is_reported_as_that_run_reports_it() -> None:
    """No second finding on top of it."""
    exploration = explore(late_to_its_second_life, 2, schedules=20)
    title = "group 'WORLD' is made a second time under the keys of its first life"
    assert [finding.title for finding in exploration.findings] == [title]
    assert exploration.report().count(title) == 1


def bad_in_any_order(rank: int) -> None:
    """A rank is missing."""
    dist.init_process_group("gloo")
    if rank:
        dist.barrier()


def test_a_program_that_is_bad_in_any_order_is_no_race() -> None:
    """The verdict is that of the run in order, and so are the findings."""
    exploration = explore(bad_in_any_order, 2, schedules=10)
    assert (exploration.verdict, exploration.counts) == ("deadlock", {"deadlock": 10})
    assert exploration.findings == exploration.outcome.findings
    assert exploration.report().count("deadlock: all_reduce") + exploration.report().count("deadlock: barrier") == 1
    with pytest.raises(ExplorationFailed, match="hangcheck: deadlock in 10 schedules") as caught:
        exploration.raise_if_bad()
    assert caught.value.exploration is exploration


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_exploration(policy: str) -> None:
    """Trials, report and schedule, to the byte."""
    first, again = (explore(a_flag_is_looked_at_once, 2, policy=policy, schedules=30, seed=7) for _ in range(2))
    assert first.trials == again.trials
    assert first.report() == again.report()
    assert first.schedule.to_text() == again.schedule.to_text()


def test_another_seed_gives_other_schedules() -> None:
    one, other = (explore(counts_under_a_lock, 1, policy="pct", schedules=20, seed=seed) for seed in (1, 2))
    assert [trial.delays for trial in one.trials] != [trial.delays for trial in other.trials]


def test_both_carriers_find_the_same() -> None:
    """A schedule belongs to the scheduler, not to threads."""
    thread, greenlet = (
        explore(a_sleep_is_to_order_two_ranks, 2, schedules=20, carrier=carrier) for carrier in ("thread", "greenlet")
    )
    assert thread.report() == greenlet.report()


def test_the_failing_schedule_runs_again_from_its_text() -> None:
    """In a cluster of its own, with the same report."""
    exploration = explore(a_sleep_is_to_order_two_ranks, 2, policy="dfs")
    schedule = Schedule.from_text(exploration.schedule.to_text())
    outcome = Cluster(delays=schedule).launch(a_sleep_is_to_order_two_ranks, ranks=2).run()
    assert outcome.report() == exploration.outcome.report()


def test_a_schedule_that_no_longer_fits_is_refused() -> None:
    """The message says what stands there now."""
    schedule = explore(a_sleep_is_to_order_two_ranks, 2, policy="dfs").schedule
    with pytest.raises(UsageError, match=r"no longer fits the program: operation 2 of r1 is 'wait key 'key' of"):
        Cluster(delays=schedule).launch(waits_for_a_key, ranks=2).run()
    with pytest.raises(UsageError, match="r1 does not come to its operation 2"):
        Cluster(delays=schedule).launch(bad_in_any_order, ranks=2).run()


def test_a_cluster_can_be_explored() -> None:
    """With all that it has: cohorts, nodes, options."""

    def make() -> Cluster:
        return Cluster(nodes=2, seed=3).launch(a_flag_is_looked_at_once, ranks=2)

    exploration = explore(make, policy="dfs")
    assert exploration.verdict == "race"
    assert exploration.outcome.seed == 3


def test_any_function_can_say_who_falls_behind() -> None:
    """The option `delays` takes functions too."""

    def late_setter(operation: Operation) -> int:
        return int(operation.task == "r1" and operation.verb == "set")

    outcome = Cluster(delays=late_setter).launch(a_sleep_is_to_order_two_ranks, ranks=2).run()
    assert outcome.verdict == "deadlock"


class Kept:
    """State that outlives a run."""

    runs = 0


def counts_its_runs(rank: int) -> None:
    Kept.runs += 1
    dist.TCPStore("node0", 29500, 1, True).set(f"run {Kept.runs}", "")


def test_a_program_that_does_not_repeat_is_refused() -> None:
    """An order means nothing to it."""
    with pytest.raises(UsageError, match=r"the program does not repeat: .*does it keep state in modules"):
        explore(counts_its_runs, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedules": 0}, "schedules=0: give a whole number, 1 or more"),
        ({"policy": "best"}, "policy='best': give one of random, pct, dfs, in-order"),
        ({"depth": 0}, "depth=0: give a whole number, 1 or more"),
        ({"workers": 0}, "workers=0: give 1 or more"),
        ({"delays": None}, "an exploration chooses the delays itself: leave delays out"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        explore(waits_for_a_key, 2, **given)  # type: ignore[arg-type]


def test_a_function_without_ranks_must_make_a_cluster() -> None:
    with pytest.raises(UsageError, match="give a number of ranks, or return a Cluster"):
        explore(lambda: 5)


def test_exploring_leaves_the_process_as_it_was() -> None:
    """A plain run afterwards gives what it gives without."""
    before = Cluster().launch(waits_for_a_key, ranks=2).run()
    explore(a_flag_is_looked_at_once, 2, schedules=10)
    after = Cluster().launch(waits_for_a_key, ranks=2).run()
    assert before.trace.to_text() == after.trace.to_text()
