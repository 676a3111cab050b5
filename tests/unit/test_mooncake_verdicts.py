"""What a report says of Mooncake programs that go wrong: no success without a member's data, the explanation first."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Cluster
from simulator.analysis.findings import Finding
from simulator.run import Outcome

CAPACITY = 4
Row = tuple[float, bool, list[int], float]


def world(*, is_extension: bool = False, capacity: int = CAPACITY) -> Any:
    """WORLD over Mooncake; returns the stand-in module."""
    from mooncake import pg

    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(capacity, is_extension))
    return pg


def add(value: float) -> float:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return tensor.item()


def asked(rank: int) -> Row:
    """Sum of 10 to the rank, whether it is a success, the hint, and how long it took."""
    from mooncake import pg

    began_s = time.monotonic()
    tensor = torch.tensor([10.0**rank])
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    hint = pg.get_failed_ranks_hint(work).tolist()
    return tensor.item(), pg.get_local_success(work), hint, round(time.monotonic() - began_s, 3)


def joins(rank: int) -> None:
    world(is_extension=True).join_group(dist.group.WORLD)


def serves(rank: int, steps: int = 5) -> None:
    world()
    for _ in range(steps):
        add(1)
        time.sleep(1)


def first(outcome: Outcome) -> Finding:
    return outcome.findings[0]


# -- deaths at the moment at which a peer comes ---------------------------------------------------------------------


def two_asked(rank: int) -> list[Row]:
    dist.init_process_group("mooncake-cpu")
    return [asked(rank) for _ in range(2)]


@pytest.mark.parametrize(("call", "results"), [(1, [11.0, 11.0]), (2, [111.0, 11.0])])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_death_at_the_moment_of_a_peers_call_is_no_success(call: int, results: list[float], lost: int) -> None:
    """The one collective without the dead rank's data takes 30 or 40 s, and says so."""
    outcome = Cluster(faults=[f"kill rank={lost} at=all_reduce#{call}"]).launch(two_asked, ranks=3).run()
    for rank in {0, 1, 2} - {lost}:
        rows = outcome.results[rank]
        assert [value for value, *_ in rows] == ([value if value == 111 else 111 - 10.0**lost for value in results])
        _, success, hint, took_s = rows[call - 1]
        assert not success and hint == [int(slot == lost) for slot in range(3)] and took_s in (30.0, 40.0)
        assert all(row[1] for index, row in enumerate(rows) if index != call - 1)


def silent(rank: int) -> float:
    dist.init_process_group("mooncake-cpu")
    return add(10.0**rank)


def test_a_partial_result_that_nobody_asks_about_is_found() -> None:
    """The same death in a program that does not ask."""
    outcome = Cluster(faults=["kill rank=2 at=all_reduce#1"]).launch(silent, ranks=3).run()
    assert outcome.verdict == "wrong_ranks" and first(outcome).ranks("missing") == (2,)


def outlives_rank_0(rank: int) -> Row:
    dist.init_process_group("mooncake-cpu")
    add(1)
    if rank == 0:
        os._exit(1)
    return asked(rank)


def test_nobody_outlives_rank_0() -> None:
    """Also a rank that had entered its collective at the very moment of the death aborts."""
    outcome = Cluster().launch(outlives_rank_0, ranks=3).run()
    assert [(outcome.ranks[rank].status, outcome.ranks[rank].exit_code) for rank in (1, 2)] == [("crash", -6)] * 2


def comes_late(rank: int) -> Row | None:
    dist.init_process_group("mooncake-cpu")
    if rank == 1:
        time.sleep(1)
        os._exit(1)
    time.sleep(100 if rank == 2 else 0)
    return asked(rank)


def test_a_member_that_is_expelled_while_a_rank_waits_is_missing_for_that_rank() -> None:
    """Rank 0 counted on rank 1; rank 2 comes when nobody does any more."""
    outcome = Cluster().launch(comes_late, ranks=3).run()
    assert outcome.results[0][:3] == (101.0, False, [0, 1, 0])
    assert outcome.results[2][:3] == (101.0, True, [0, 0, 0])


# -- joiners that nobody admits -----------------------------------------------------------------------------------


def admits_early(rank: int) -> None:
    pg = world()
    for _ in range(2 if rank == 0 else 0):
        pg.recover_ranks(dist.group.WORLD, [2, 3])
    for _ in range(5):
        add(1)
        time.sleep(1)


def test_a_rejected_proposal_is_named() -> None:
    """Who called, where, when, and why it was turned down."""
    outcome = Cluster().launch(admits_early, ranks=2).join(joins, ranks=2, rank_offset=2, at_s=1.0).run()
    found = first(outcome)
    (rejected,) = [side for side in found.sides if side.role == "rejected"]
    assert rejected.ranks == (0,) and rejected.stack[0].function == "admits_early"
    assert "recover_ranks([2, 3]) at 0 s (2 times): Rejected, target in-group rank is out of valid range" in found.cause
    assert "no serving rank calls" not in found.cause


@pytest.mark.parametrize(("steps", "on_hang"), [(400, "report"), (5, "timeout")])
def test_a_joiner_that_gave_up_keeps_its_explanation(steps: int, on_hang: str) -> None:
    """Servers that go on, or a run that lets time-outs strike: nobody admitted it, and then it raised."""
    cluster = Cluster(on_hang=on_hang).launch(serves, ranks=2, args=(steps,))  # type: ignore[arg-type]
    outcome = cluster.join(joins, ranks=1, rank_offset=2, at_s=1.0).run()
    assert outcome.verdict == "deadlock" and "nobody admitted it" in first(outcome).title
    assert first(outcome).ranks("then") == (2,) and len(outcome.findings) == 1


# -- polling -------------------------------------------------------------------------------------------------------


def polls(rank: int, how: str) -> float:
    pg = world()
    group = dist.group.WORLD
    if rank == 0:
        while not all(pg.get_peer_state(group, [2, 3])):
            pass
        pg.recover_ranks(group, [2, 3])
    grown = {
        "active": lambda: int(pg.get_active_ranks(group).sum()) == 4,
        "synced": lambda: pg.get_num_synced_ranks(group) == 4,
        "epoch": lambda: bool(pg.get_current_epoch(group)) and dist.get_world_size() == 4,
        "world": lambda: dist.get_world_size() == 4,
    }[how]
    while not grown():
        pass
    return add(1)


def joins_and_adds(rank: int) -> float:
    joins(rank)
    return add(1)


@pytest.mark.parametrize("how", ["active", "synced", "epoch", "world"])
def test_busy_polling_of_the_state_of_a_group_lets_others_run(how: str) -> None:
    """A waiting loop without a sleep ends once the joiners are in."""
    cluster = Cluster().launch(polls, ranks=2, args=(how,))
    outcome = cluster.join(joins_and_adds, ranks=2, rank_offset=2, at_s=1.0).run()
    assert outcome.verdict == "ok" and set(outcome.results.values()) == {4.0}


# -- words ---------------------------------------------------------------------------------------------------------


def joins_with_eight(rank: int) -> None:
    world(is_extension=True, capacity=8).join_group(dist.group.WORLD)


def test_both_capacities_are_named() -> None:
    """A joiner's WORLD of another capacity: the call that it made, and what to give."""
    outcome = Cluster().launch(serves, ranks=2).join(joins_with_eight, ranks=2, rank_offset=2, at_s=1.0).run()
    found = first(outcome)
    assert "max_group_size 8, and the group to attach to has 4" in found.cause
    assert found.remedy.startswith("give max_group_size 4") and found.sides[0].doing == "init_process_group"


def joins_unshifted(rank: int) -> None:
    from mooncake import pg

    options = pg.MooncakeBackendOptions(CAPACITY, True)
    dist.init_process_group("mooncake-cpu", rank=rank - 2, world_size=4, pg_options=options)


def test_an_unshifted_joiner_is_explained_before_what_it_raises() -> None:
    """The number of a living rank; and rank 0, which starts a second server."""
    outcome = Cluster().launch(serves, ranks=2).join(joins_unshifted, ranks=2, rank_offset=2, at_s=1.0).run()
    assert "could not register as rank 1" in first(outcome).title and first(outcome).ranks("then") == (3,)
    (raised,) = [found for found in outcome.findings if found.kind == "exception"]
    assert raised.ranks("raised") == (2,) and "rank_offset" in raised.remedy


def joins_differing(rank: int) -> None:
    world(is_extension=True)
    lists = [2, 3] if rank == 2 else [1, 3]
    dist.new_group(lists, use_local_synchronization=True, backend="mooncake-cpu")


def test_only_the_ranks_that_create_a_foreign_group_are_named() -> None:
    """The list is not the launch's without the offset, so nobody says that it is."""
    outcome = Cluster().launch(serves, ranks=2).join(joins_differing, ranks=2, rank_offset=2, at_s=1.0).run()
    assert first(outcome).title.startswith("rank 3 creates") and "lacks rank_offset" not in first(outcome).cause


def serves_long(rank: int) -> None:
    serves(rank, 400)


def creates_alone(rank: int) -> None:
    world(is_extension=True)
    dist.new_group([2, 3], use_local_synchronization=True, backend="mooncake-cpu")


def test_a_creation_that_times_out_names_who_is_missing() -> None:
    """The title says it once, and nobody is told to lengthen a time-out that Mooncake ignores."""
    cluster = Cluster(faults=["missing rank=3"]).launch(serves_long, ranks=2)
    outcome = cluster.join(creates_alone, ranks=2, rank_offset=2, at_s=1.0).run()
    found = first(outcome)
    assert found.ranks("missing") == (3,) and found.ranks("then") == (2,)
    assert found.title.count("timed out") == 1 and "longer time-out" not in found.remedy
