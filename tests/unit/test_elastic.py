"""The elastic life cycle of the reference implementation, on simulated ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from refimpl.distributed import (
    BootstrapArgs,
    ElasticError,
    ElasticMember,
    Life,
    ParallelLayout,
    Patience,
    Role,
    State,
    bring_up,
    get_world_group,
    join_deployment,
    reserved_masks,
)
from refimpl.distributed.membership import add_up, world_targets
from simulator import Cluster, Outcome, Verdict, explore

LAUNCHED, CAPACITY = 4, 8
PATIENCE = Patience(answer_s=60.0, peers_s=5.0, early_s=2.0, admit_s=5.0, step_s=5.0)
Hook = Callable[[int, tuple[int, ...]], None]


def nothing(_rank: int, _ranks: tuple[int, ...]) -> None:
    """A data plane that needs no connecting."""


@dataclass
class Told:
    """What a rank came back with."""

    changes: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    world: tuple[int, ...] = ()
    generation: int = 0
    error: str = ""


def launch_args(rank: int, **given: Any) -> BootstrapArgs:
    layout = ParallelLayout(tp=LAUNCHED, attn_dp=LAUNCHED, moe_ep=LAUNCHED)
    return BootstrapArgs(layout=layout, cohort_rank=rank, backend="mooncake-cpu", max_world_size=CAPACITY, **given)


def join_args(rank: int, first: int, ranks: int) -> BootstrapArgs:
    return BootstrapArgs(
        layout=ParallelLayout(tp=ranks, attn_dp=ranks, moe_ep=ranks),
        cohort_rank=rank - first,
        backend="mooncake-cpu",
        max_world_size=CAPACITY,
        role=Role.SCALE_JOINER,
        rank_offset=first,
    )


def serve(rank: int, changes: int, hook: Hook = nothing, more: int = 3) -> Told:
    args = launch_args(rank)
    member = ElasticMember(bring_up(args), args, patience=PATIENCE, data_plane=lambda ranks: hook(rank, ranks))
    return go_on(member, changes, more)


def join(rank: int, first: int, ranks: int, hook: Hook = nothing) -> Told:
    life = Life(State.REGISTERING)
    try:
        member = join_deployment(
            join_args(rank, first, ranks),
            launch_id="one",
            patience=PATIENCE,
            data_plane=lambda after: hook(rank, after),
            life=life,
        )
    except ElasticError as error:
        return Told(states=[step.state for step in life.steps], error=str(error))
    return go_on(member, 0)


def go_on(member: ElasticMember, changes: int, more: int = 3) -> Told:
    """Serve until rank 0 has seen as many changes, and then some steps more."""
    told, left = Told(), more
    for _ in range(500):
        told.met.append(add_up(world_targets(member.groups)[0], [1]).numbers[0])
        time.sleep(0.1)
        change = member.poll()
        if change is not None:
            told.changes.append((change.kind, change.ranks, change.why))
            if change.kind == "stop":
                break
        left -= len(told.changes) >= changes
        if member.rank == 0 and left == 0:
            member.stop()
    told.states = [step.state for step in member.life.steps]
    told.world, told.generation = get_world_group().ranks, member.deployment.generation
    return told


def grow(*cohorts: tuple[int, int, float], hook: Hook = nothing, **options: Any) -> Outcome:
    """Cohorts as (first rank, ranks, start in seconds)."""
    cluster = Cluster(**options).launch(serve, ranks=LAUNCHED, args=(len(cohorts), hook))
    for first, ranks, at_s in cohorts:
        cluster.join(join, ranks=ranks, rank_offset=first, args=(first, ranks, hook), at_s=at_s)
    return cluster.run()


GROWING = [
    State.SERVING,
    State.WAITING_FOR_PEERS,
    State.ADMITTING,
    State.CONFIGURING,
    State.SYNCING,
    State.COMMITTING,
    State.SERVING,
]
JOINING = [
    State.REGISTERING,
    State.CREATING_GROUPS,
    State.WAITING_TO_JOIN,
    State.JOINING,
    State.CONFIGURING,
    State.SYNCING,
    State.COMMITTING,
    State.SERVING,
]


def test_two_ranks_join_four() -> None:
    """All go through the states of the table, meet, and hold the same tables."""
    outcome = grow((4, 2, 1.0)).raise_if_bad()
    assert outcome.findings == ()
    told = outcome.results
    assert [told[rank].states for rank in range(6)] == [GROWING] * 4 + [JOINING] * 2
    assert {told[rank].world for rank in range(6)} == {(0, 1, 2, 3, 4, 5)}
    assert {told[rank].generation for rank in range(6)} == {1}
    assert told[0].changes == [("grown", (4, 5), ""), ("stop", (), "")]
    assert set(told[0].met) == {4, 6} and set(told[5].met) == {6}


def test_all_ranks_change_at_the_same_step() -> None:
    """What an agreed decision is for: the launched ranks have served the same steps with the same peers."""
    told = grow((4, 2, 1.0)).raise_if_bad().results
    assert all(told[rank].met == told[0].met for rank in range(4))
    assert told[4].met == told[5].met == [met for met in told[0].met if met == 6]


def test_a_cohort_that_has_joined_admits_the_next_one() -> None:
    """4 -> 6 -> 8."""
    told = grow((4, 2, 1.0), (6, 2, 3.0)).raise_if_bad().results
    assert told[4].states == JOINING + GROWING[1:]
    assert {told[rank].generation for rank in range(8)} == {2}
    assert {tuple(told[rank].met[-3:]) for rank in range(8)} == {(8, 8, 8)}


def test_cohorts_that_come_in_the_wrong_order_are_let_in_in_the_right_one() -> None:
    """The one that leaves a gap waits."""
    told = grow((6, 2, 1.0), (4, 2, 2.0)).raise_if_bad().results
    assert [change[:2] for change in told[0].changes[:2]] == [("grown", (4, 5)), ("grown", (6, 7))]


def test_the_same_seed_gives_the_same_trace() -> None:
    """Nothing in it looks at a clock of its own."""
    assert grow((4, 2, 1.0)).trace.to_text() == grow((4, 2, 1.0)).trace.to_text()


@pytest.mark.parametrize("culprit", [0, 2, 4, 5])
def test_a_data_plane_that_fails_on_one_rank_rolls_all_of_them_back(culprit: int) -> None:
    """Old ranks serve on without the cohort, new ones are told why."""

    def hook(rank: int, _ranks: tuple[int, ...]) -> None:
        if rank == culprit:
            raise OSError("no route to the experts")

    outcome = grow((4, 2, 1.0), hook=hook).raise_if_bad()
    why = f"rank {culprit}: no route to the experts"
    told = outcome.results
    for rank in range(4):
        assert told[rank].changes[0] == ("rolled back", (4, 5), why)
        assert told[rank].states[-2:] == [State.ROLLING_BACK, State.SERVING]
        assert (set(told[rank].met), told[rank].world, told[rank].generation) == ({4}, (0, 1, 2, 3), 0)
    for rank in (4, 5):
        assert told[rank].error == f"ranks 4, 5 cannot come in: {why}"
        assert told[rank].states[-1] is State.TURNED_AWAY


def test_a_data_plane_that_never_ends_on_one_rank_is_not_waited_for() -> None:
    """After `step_s` the others go on; the message names the rank."""

    def hook(rank: int, _ranks: tuple[int, ...]) -> None:
        if rank == 5:
            time.sleep(1000.0)

    outcome = grow((4, 2, 1.0), hook=hook)
    assert outcome.results[0].changes[0] == ("rolled back", (4, 5), "rank 5 did not finish 'configured' in 5 s")
    assert outcome.results[0].met[-1] == 4


def test_the_data_plane_is_told_who_serves_from_now_on() -> None:
    """Each rank once for each change."""
    calls: list[tuple[int, tuple[int, ...]]] = []
    grow((4, 2, 1.0), hook=lambda rank, ranks: calls.append((rank, ranks))).raise_if_bad()
    assert sorted(calls) == [(rank, (0, 1, 2, 3, 4, 5)) for rank in range(6)]


def test_a_cohort_that_is_not_complete_is_turned_away_and_nobody_else_notices() -> None:
    """It has created no group yet, in whose creation it would hang."""
    cluster = Cluster().launch(serve, ranks=LAUNCHED, args=(0, nothing, 120))
    cluster.join(join, ranks=1, rank_offset=4, world_size=6, args=(4, 2), at_s=1.0)
    cluster.join(join, ranks=1, rank_offset=5, world_size=6, args=(5, 1), at_s=2.0)
    outcome = cluster.run()
    assert outcome.results[4].error == (
        "ranks 4, 5 cannot come in: rank 5 did not start in 5 s; launch the whole cohort again"
    )
    assert outcome.results[5].error.startswith(
        "rank 5 cannot come in: rank_offset is 5 but the deployment ends at rank 3"
    )


def test_a_launch_id_is_used_once() -> None:
    """The store still has what was decided about the first launch of that name."""

    def join_twice(rank: int) -> str:
        join_args_wrong = join_args(rank, 5, 1)
        errors = []
        for _ in range(2):
            with pytest.raises(ElasticError) as caught:
                join_deployment(join_args_wrong, launch_id="one", patience=PATIENCE)
            errors.append(str(caught.value))
        return errors[1]

    cluster = Cluster().launch(serve_a_while, ranks=LAUNCHED)
    outcome = cluster.join(join_twice, ranks=1, rank_offset=5, at_s=1.0).run()
    assert outcome.results[5] == "launch_id 'one' of rank 5 was used before; give each launch its own"


def serve_a_while(rank: int) -> None:
    args = launch_args(rank)
    member = ElasticMember(bring_up(args), args, patience=PATIENCE)
    for _ in range(60):
        time.sleep(0.1)
        member.poll()


def test_a_deployment_that_never_polls_is_named_as_the_reason() -> None:
    """The joiner does not wait for ever."""

    def sleep(rank: int) -> None:
        args = launch_args(rank)
        ElasticMember(bring_up(args), args, patience=PATIENCE)
        time.sleep(100.0)

    cluster = Cluster().launch(sleep, ranks=LAUNCHED)
    outcome = cluster.join(join, ranks=2, rank_offset=4, args=(4, 2), at_s=1.0).run()
    assert outcome.results[4].error == (
        "waited 60 s for 'cohort/one/4/answer': the serving ranks did not answer; they must call poll between their "
        "steps"
    )


def test_a_rank_that_polls_a_step_later_than_its_peers_is_found() -> None:
    """`poll` is collective: one rank that skips it does not meet the others."""

    def serve_unevenly(rank: int) -> None:
        args = launch_args(rank)
        member = ElasticMember(bring_up(args), args, patience=PATIENCE)
        for step in range(3):
            add_up(world_targets(member.groups)[0], [1])
            if not (rank == 2 and step == 1):
                member.poll()

    outcome = Cluster().launch(serve_unevenly, ranks=LAUNCHED).run()
    assert outcome.verdict is Verdict.DEADLOCK


def test_other_backends_have_fixed_groups() -> None:
    """Said at once, not at the first change."""

    def start(rank: int) -> str:
        args = BootstrapArgs(layout=ParallelLayout(tp=2), cohort_rank=rank, backend="gloo")
        with pytest.raises(ElasticError) as caught:
            ElasticMember(bring_up(args), args)
        return str(caught.value)

    outcome = Cluster().launch(start, ranks=2).run().raise_if_bad()
    assert outcome.results[0] == "backend 'gloo' has fixed groups; give 'mooncake' or 'mooncake-cpu'"


def test_no_schedule_breaks_the_scale_up() -> None:
    """Who is slow, and where, makes no difference to who meets whom."""
    found = explore(small_grow, schedules=40, workers=1)
    assert found.ok, found


def small_grow() -> Cluster:
    """2 -> 3."""
    return Cluster().launch(serve_small, ranks=2).join(join_small, ranks=1, rank_offset=2, at_s=0.5)


def serve_small(rank: int) -> None:
    args = BootstrapArgs(
        layout=ParallelLayout(tp=2, attn_dp=2), cohort_rank=rank, backend="mooncake-cpu", max_world_size=4
    )
    go_on(ElasticMember(bring_up(args), args), 1)


def join_small(rank: int) -> None:
    args = BootstrapArgs(
        layout=ParallelLayout(tp=1),
        cohort_rank=0,
        backend="mooncake-cpu",
        max_world_size=4,
        role=Role.SCALE_JOINER,
        rank_offset=2,
    )
    go_on(join_deployment(args, launch_id="one"), 0)


@pytest.mark.parametrize("name", list(Patience.__slots__))
def test_patience_is_positive(name: str) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=f"^{name} is 0; give seconds above 0$"):
        Patience(**{name: 0})


def test_the_memory_of_masks_is_counted() -> None:
    """Four bytes a slot: one mask for the default group, two for each other one."""
    args = launch_args(0)
    rows = {row.name: row for row in reserved_masks(args.layout, args.plan())}
    assert (rows["default"].reserved_bytes, rows["default"].idle_bytes) == (CAPACITY * 4, (CAPACITY - LAUNCHED) * 4)
    assert (rows["world"].reserved_bytes, rows["self_pp"].idle_bytes) == (CAPACITY * 8, (CAPACITY - 1) * 8)
    joiner = join_args(4, 4, 2)
    assert all(row.idle_bytes == 0 for row in reserved_masks(joiner.layout, joiner.plan()) if row.name == "tp")
