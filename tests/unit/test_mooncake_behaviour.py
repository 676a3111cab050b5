"""Simulated Mooncake groups behave as the real ones did: each test is a row of docs/mooncake.md.

Values, masks, times and texts are those of mooncake-transfer-engine 0.3.13.post1 on real processes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Certainty, Cluster, Outcome, Verdict

Body = Callable[..., Any]


def world(capacity: int | None = None, *, joins: bool = False, flags: tuple[bool, bool] | None = None) -> Any:
    """Enter WORLD; the module `mooncake.pg`."""
    from mooncake import pg

    options = None
    if flags is not None:
        options = pg.MooncakeBackendOptions(capacity, joins, *flags)
    elif capacity is not None:
        options = pg.MooncakeBackendOptions(capacity, joins)
    dist.init_process_group("mooncake-cpu", pg_options=options)
    return pg


def summed(value: float, elements: int = 2) -> list[float]:
    tensor = torch.full((elements,), float(value))
    dist.all_reduce(tensor)
    return tensor.tolist()


def launch(body: Body, ranks: int, *args: Any) -> Outcome:
    return Cluster().launch(body, ranks=ranks, args=args).run()


def kinds(outcome: Outcome) -> list[Verdict]:
    return [finding.kind for finding in outcome.findings]


# -- death -------------------------------------------------------------------------------------------------------


def after_a_death(rank: int, lost: int, knobs: dict[str, int], early_s: float, ask: bool) -> Any:
    """`lost` ends itself 0.5 s before the others call all_reduce, or `early_s` after they did."""
    pg = world()
    for knob, value in knobs.items():
        getattr(pg, knob)(value)
    summed(rank + 1)
    if rank == lost:
        time.sleep(early_s)
        os._exit(7)
    time.sleep(0.0 if early_s else 0.5)
    tensor, began_s = torch.full((2,), float(rank + 1)), time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    took_s = round(time.monotonic() - began_s, 1)
    told = [pg.get_local_success(work), pg.get_failed_ranks_hint(work).tolist()] if ask else []
    state = [dist.get_world_size(), pg.get_active_ranks(dist.group.WORLD).tolist()] if ask else []
    return [tensor.tolist(), took_s, *told, *state, summed(rank + 1)]


@pytest.mark.parametrize(
    ("lost", "knobs", "early_s", "expected"),
    [
        (2, {}, 0.0, [[3.0, 3.0], 30.0, False, [0, 0, 1], 2, [1, 1, 0], [3.0, 3.0]]),
        (1, {}, 0.0, [[4.0, 4.0], 30.0, False, [0, 1, 0], 3, [1, 0, 1], [4.0, 4.0]]),
        (2, {"set_fault_reconciliation_window_us": 4_000_000}, 0.0,
         [[3.0, 3.0], 4.0, False, [0, 0, 1], 2, [1, 1, 0], [3.0, 3.0]]),
        (2, {}, 4.0, [[3.0, 3.0], 40.0, False, [0, 0, 1], 2, [1, 1, 0], [3.0, 3.0]]),
        (2, {"set_collective_timeout_us": 5_000_000}, 4.0,
         [[3.0, 3.0], 35.0, False, [0, 0, 1], 2, [1, 1, 0], [3.0, 3.0]]),
    ],
)  # fmt: skip
def test_survivors_go_on_with_their_own_data(
    lost: int, knobs: dict[str, int], early_s: float, expected: list[Any]
) -> None:
    """No exception: 30 s after the report (40 s if it died in flight), the hint, the mask, a hole in it."""
    outcome = launch(after_a_death, 3, lost, knobs, early_s, True)
    assert outcome.results == {rank: expected for rank in range(3) if rank != lost}
    assert kinds(outcome) == [Verdict.EXCEPTION]


def test_a_partial_result_that_nobody_asks_about_is_a_finding() -> None:
    """With ranks, line, cause and remedy; a program that asks is left alone (the test above)."""
    outcome = launch(after_a_death, 3, 2, {}, 0.0, False)
    assert kinds(outcome) == [Verdict.EXCEPTION, Verdict.WRONG_RANKS]
    finding = outcome.findings[1]
    assert finding.title == "all_reduce on group 'WORLD' went on without rank 2 on ranks 0, 1, and nobody asked"
    assert (finding.ranks("went on"), finding.missing, finding.certainty) == ((0, 1), (2,), Certainty.CAUSE)
    assert "get_local_success" in finding.remedy


def test_rank_0_takes_the_others_with_it() -> None:
    """The coordinator is in its process: SIGABRT at the first collective that cannot reach it."""
    outcome = launch(after_a_death, 3, 0, {}, 0.0, True)
    assert [outcome.ranks[rank].exit_code for rank in range(3)] == [7, -6, -6]
    assert "PGAssertionException: syncAfterFailure failed for rank 1" in outcome.findings[0].title
    assert outcome.findings[0].certainty is Certainty.CAUSE


def without_sync(rank: int) -> Any:
    pg = world(3, flags=(True, False))
    summed(rank + 1)
    if rank == 2:
        os._exit(7)
    time.sleep(0.5)
    values = [summed(rank + 1), summed(rank + 1)]
    began_s = time.monotonic()
    status = pg.sync_after_failure(dist.group.WORLD).status
    return [*values, status.name, round(time.monotonic() - began_s), dist.get_world_size(), summed(rank + 1)]


def test_without_auto_sync_the_dead_are_added_again() -> None:
    """The second all_reduce reads what the dead rank wrote two calls before: 6 instead of 3."""
    outcome = launch(without_sync, 3)
    expected = [[3.0, 3.0], [6.0, 6.0], "Reconciled", 30, 2, [3.0, 3.0]]
    assert outcome.results == {0: expected, 1: expected}


def test_an_idle_group_learns_of_a_death_by_heartbeats_alone() -> None:
    """Nobody calls a collective meanwhile: the next one is whole, and was a success."""

    def body(rank: int) -> Any:
        pg = world()
        if rank == 2:
            os._exit(7)
        time.sleep(40)
        tensor = torch.full((2,), float(rank + 1))
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        return pg.get_local_success(work), tensor.tolist(), pg.get_current_epoch(dist.group.WORLD)

    outcome = launch(body, 3)
    assert outcome.results == dict.fromkeys((0, 1), (True, [3.0, 3.0], 3))


def test_a_missing_rank_that_lives_is_waited_for_and_found_at_once() -> None:
    """Time-outs are ignored, so nothing can move: a deadlock at that very moment."""

    def body(rank: int) -> None:
        world()
        if rank == 0:
            dist.all_reduce(torch.ones(1))

    outcome = launch(body, 2)
    assert (kinds(outcome), outcome.virtual_s) == ([Verdict.DEADLOCK], 0.0)
    assert outcome.findings[0].missing == (1,)


# -- mismatches --------------------------------------------------------------------------------------------------


def _reduce(value: float, n: int = 4, dtype: torch.dtype = torch.float32, op: Any = dist.ReduceOp.SUM) -> list[float]:
    tensor = torch.full((n,), value, dtype=dtype)
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def _broadcast(value: float, src: int) -> list[float]:
    tensor = torch.full((4,), value)
    dist.broadcast(tensor, src)
    return tensor.tolist()


def _gather(value: float) -> list[list[float]]:
    outputs = [torch.full((4,), -9.0) for _ in range(2)]
    dist.all_gather(outputs, torch.full((4,), value))
    return [output.tolist() for output in outputs]


def _barrier() -> None:
    dist.barrier()


ONE, TWO, THREE = [1.0] * 4, [2.0] * 4, [3.0] * 4
MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any, Any]] = {
    "broadcast 0": (lambda: _reduce(1.0), lambda: _broadcast(2.0, 0), ONE, ONE),
    "broadcast 1": (lambda: _reduce(1.0), lambda: _broadcast(2.0, 1), TWO, TWO),
    "barrier": (lambda: _reduce(1.0), _barrier, ONE, None),
    "all_gather": (lambda: _reduce(1.0), lambda: _gather(2.0), THREE, [ONE, TWO]),
    "elements": (lambda: _reduce(1.0), lambda: _reduce(2.0, 8), ONE, [*THREE, *TWO]),
    "reduce op": (lambda: _reduce(1.0), lambda: _reduce(2.0, op=dist.ReduceOp.MAX), THREE, TWO),
    "root": (lambda: _broadcast(1.0, 0), lambda: _broadcast(2.0, 1), ONE, ONE),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_calls_that_differ_read_garbage_and_are_a_mismatch(name: str) -> None:
    """Never an error; the next collective is right; the finding shows both sides."""
    first, second, *expected = MISMATCHES[name]

    def body(rank: int) -> Any:
        world()
        summed(rank + 1)
        return (first, second)[rank](), summed(rank + 1)

    outcome = launch(body, 2)
    assert outcome.results == {rank: (expected[rank], [3.0, 3.0]) for rank in range(2)}
    assert kinds(outcome) == [Verdict.MISMATCH]
    assert outcome.findings[0].ranks("gave") == (0, 1)


def test_dtypes_that_differ_are_read_as_bits() -> None:
    """float32 against int64: 1 on one side, two words of garbage and then 2 on the other."""

    def body(rank: int) -> Any:
        world()
        summed(1.0)
        return _reduce(1.0) if rank == 0 else _reduce(2, dtype=torch.int64)

    outcome = launch(body, 2)
    assert outcome.results[0] == ONE
    assert outcome.results[1][2:] == [2, 2] and outcome.results[1][0] == 0x3F8000003F800000 + 2
    assert kinds(outcome) == [Verdict.MISMATCH]


# -- membership --------------------------------------------------------------------------------------------------


def deactivated(rank: int) -> Any:
    pg = world()
    summed(1.0)
    dist.barrier()
    if rank == 0:
        assert pg.deactivate_ranks(dist.group.WORLD, [1, 3]).status == pg.ProposalStatus.Applied
    time.sleep(1)
    seen: list[Any] = [dist.get_world_size(), pg.get_active_ranks(dist.group.WORLD).tolist()]
    if rank in (1, 3):
        with pytest.raises(RuntimeError) as refused:
            summed(rank + 1)
        seen.append(str(refused.value))
    else:
        seen.append(summed(rank + 1))
        outputs = [torch.full((1,), -1.0) for _ in range(3)]
        dist.all_gather(outputs, torch.full((1,), float(rank)))
        assert torch.isnan(outputs[1]).all()
        with pytest.raises(RuntimeError, match="^Tensor list size must match active group size$"):
            dist.all_gather([torch.zeros(1)] * 4, torch.ones(1))
        tensor = torch.full((2,), 7.0)
        dist.broadcast(tensor, 1)
        seen += [outputs[0].item(), outputs[2].item(), tensor.tolist()]
    if rank == 3:
        time.sleep(1)
        pg.join_group(dist.group.WORLD)
    elif rank == 0:
        assert pg.activate_ranks(dist.group.WORLD, [3]).new_epoch == 6
    time.sleep(1 if rank == 3 else 2)
    return seen if rank == 1 else [*seen, dist.get_world_size(), summed(rank + 1)]


def test_deactivated_ranks_are_refused_and_may_come_back() -> None:
    """An inactive root broadcasts stale data; slots of the inactive are uninitialised (all bits set)."""
    outcome = launch(deactivated, 4)
    refused = "mooncakePgAllReduce failed: invalid state: rank is not active in this group"
    whole = [3, [1, 0, 1, 0], [4.0, 4.0], 0.0, 2.0, [1.0, 1.0], 4, [8.0, 8.0]]
    assert outcome.results[0] == outcome.results[2] == whole
    assert outcome.results[1] == [3, [1, 0, 1, 0], refused]
    assert outcome.results[3] == [3, [1, 0, 1, 0], refused, 4, [8.0, 8.0]]


def serve(rank: int, until_s: float, newcomers: tuple[int, ...], asks: bool) -> Any:
    """Serve until `until_s`, then admit."""
    pg = world(4)
    time.sleep(until_s)
    answer = pg.recover_ranks(dist.group.WORLD, list(newcomers)) if rank == 0 and newcomers else None
    if answer is None:
        return None
    return answer.status.name, answer.dropped_ranks, answer.reject_reason, round(time.monotonic(), 1)


def joins(rank: int, after_s: float, early: bool) -> None:
    pg = world(4, joins=True)
    if early:
        assert summed(rank) == [rank, rank]
    time.sleep(after_s)
    pg.join_group(dist.group.WORLD)


def scale(until_s: float, newcomers: tuple[int, ...], after_s: float, early: bool = False) -> Outcome:
    cluster = Cluster().launch(serve, ranks=2, args=(until_s, newcomers, True))
    return cluster.join(joins, ranks=1, rank_offset=2, at_s=1.0, args=(after_s, early)).run()


def test_a_right_scale_up_is_ok() -> None:
    """No finding, no warning."""
    assert scale(3.0, (2,), 0.0).findings == ()


def test_recovering_one_that_has_not_joined_holds_the_primary_for_twenty_seconds() -> None:
    """Rejected, and a finding: no other thread of the process ran meanwhile."""
    outcome = scale(2.0, (2,), 40.0)
    assert outcome.results[0][:3] == ("Rejected", [], "proposal admission timed out")
    finding = outcome.findings[-1]
    assert finding.kind is Verdict.TIMEOUT and "held rank 0 for 20 s" in finding.title


def test_a_joiner_that_comes_late_is_admitted_then_and_only_warned_about() -> None:
    """Applied after as long as it took."""
    outcome = scale(2.0, (2,), 6.0)
    assert outcome.results[0][0] == "Applied"
    assert (outcome.verdict, [f.warning for f in outcome.findings]) == (Verdict.OK, [True])


def test_a_joiner_that_nobody_admits_is_found_at_once() -> None:
    """With those who should have, and what they do instead."""
    outcome = scale(2.0, (), 0.0)
    assert (kinds(outcome), outcome.virtual_s) == ([Verdict.DEADLOCK], 2.0)
    finding = outcome.findings[0]
    assert finding.title == "rank 2 waits in join_group on group 'WORLD', and nobody admits it"
    assert (finding.waiting, finding.ranks("not admitting")) == ((2,), (0, 1))
    assert "recover_ranks(group, [2])" in finding.remedy


def test_a_joiners_collective_before_it_joins_is_its_own() -> None:
    """It returns the joiner's own value: wrong ranks."""
    outcome = scale(3.0, (2,), 0.0, True)
    assert kinds(outcome) == [Verdict.WRONG_RANKS]
    assert "has not joined" in outcome.findings[0].title


def test_who_never_registered_is_refused() -> None:
    """At once, with the reason."""
    outcome = Cluster().launch(serve, ranks=2, args=(0.0, (2,), True)).run()
    assert outcome.results[0][:3] == ("Rejected", [], "target in-group rank is out of valid range")


def test_a_joiner_with_another_capacity_runs_alone() -> None:
    """Its creation succeeds, and everything elastic is refused."""

    def join(rank: int) -> list[str]:
        pg = world(3, joins=True)
        texts = []
        calls = (lambda: pg.join_group(dist.group.WORLD), lambda: pg.recover_ranks(dist.group.WORLD, [0]),
                 lambda: dist.send(torch.ones(1), 0))  # fmt: skip
        for call in calls:
            with pytest.raises(RuntimeError) as refused:
                call()
            texts.append(str(refused.value))
        return texts

    cluster = Cluster().launch(serve, ranks=2, args=(3.0, (), True))
    outcome = cluster.join(join, ranks=1, rank_offset=2, at_s=1.0).run()
    assert outcome.results[2] == [
        "mooncakePgCommJoin failed: operation not supported: joinGroup is unavailable because this communicator is "
        "invalid",
        "mooncakePgCommActivateRanks failed: operation not supported: activateRanks is unavailable because this "
        "communicator is invalid",
        "mooncakePgSend failed: invalid state: P2P is unavailable for an invalid group",
    ]
    assert kinds(outcome) == [Verdict.WRONG_RANKS]


def test_a_rank_that_is_taken_is_refused_after_thirty_seconds() -> None:
    """A joiner whose number was not shifted."""

    def join(rank: int) -> Any:
        from mooncake import pg

        options = pg.MooncakeBackendOptions(4, True)
        with pytest.raises(RuntimeError) as refused:
            dist.init_process_group("mooncake-cpu", rank=1, world_size=2, pg_options=options)
        return str(refused.value), time.monotonic()

    cluster = Cluster().launch(serve, ranks=2, args=(40.0, (), True))
    outcome = cluster.join(join, ranks=1, rank_offset=2, at_s=1.0).run()
    text = "mooncakePgCommCreate failed: operation timed out: timed out waiting for agent registration"
    assert outcome.results[2][0] == text
    assert kinds(outcome) == [Verdict.WRONG_RANKS]


def test_the_first_mooncake_group_of_a_gloo_world_numbers_its_processes() -> None:
    """[2, 3] first: their group ranks are not their global ones."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        ranks = [0, 1] if rank < 2 else [2, 3]
        if rank < 2:
            group = dist.new_group(ranks, backend="mooncake-cpu", use_local_synchronization=True)
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            return tensor.item()
        with pytest.raises(RuntimeError, match="communicator rank does not map to the process global rank$"):
            dist.new_group(ranks, backend="mooncake-cpu", use_local_synchronization=True)
        return None

    assert launch(body, 4).results == {0: 2.0, 1: 2.0, 2: None, 3: None}


# -- the interpreter's lock --------------------------------------------------------------------------------------


def ticking(rank: int, in_join: bool) -> Any:
    """How often another thread of the process ran while it waited 3 s."""
    pg = world(4, joins=rank == 2)
    ticks = [0]

    def tick() -> None:
        while True:
            ticks[0] += 1
            time.sleep(0.1)

    threading.Thread(target=tick, daemon=True).start()
    if rank == 2:
        before = ticks[0]
        pg.join_group(dist.group.WORLD)
        return ticks[0] - before
    time.sleep(2)
    if rank == 1:
        time.sleep(3)
    before = ticks[0]
    dist.all_reduce(torch.ones(1))
    waited = ticks[0] - before
    if rank == 0:
        pg.recover_ranks(dist.group.WORLD, [2])
    return waited


def test_join_group_holds_the_interpreters_lock_and_all_reduce_does_not() -> None:
    """Another thread ran in 30 of 30 ticks beside all_reduce, in at most one beside join_group."""
    cluster = Cluster().launch(ticking, ranks=2, args=(False,))
    outcome = cluster.join(ticking, ranks=1, rank_offset=2, at_s=1.0, args=(True,)).run()
    assert outcome.results[2] <= 1 and outcome.results[0] >= 29


# -- messages ----------------------------------------------------------------------------------------------------


def test_a_message_that_nobody_takes_is_given_up_after_forty_seconds() -> None:
    """It returns without an error; asked, the work says no."""

    def body(rank: int, ask: bool) -> Any:
        pg = world()
        if rank == 1:
            time.sleep(60)
            return None
        work = dist.isend(torch.ones(2), 1)
        assert work is not None
        work.wait()
        return (pg.get_local_success(work), pg.get_failed_ranks_hint(work).tolist()) if ask else time.monotonic()

    asked = Cluster().launch(body, ranks=2, args=(True,)).run()
    assert (asked.results[0], asked.findings) == ((False, [0, 1]), ())
    silent = Cluster().launch(body, ranks=2, args=(False,)).run()
    assert kinds(silent) == [Verdict.TIMEOUT]
    assert "returned on rank 0 after 40 s although nobody met it" in silent.findings[0].title


def test_messages_of_different_sizes_abort_and_tags_do_not_count() -> None:
    """The sender's assertion fails; the other end follows, since rank 0 had the coordinator."""

    def body(rank: int, elements: int) -> Any:
        world()
        tensor = torch.zeros(elements)
        if rank == 0:
            dist.send(torch.full((2,), 7.0), 1, tag=5)
        else:
            dist.recv(tensor, 0, tag=9)
        return tensor.tolist()

    assert Cluster().launch(body, ranks=2, args=(2,)).run().results[1] == [7.0, 7.0]
    outcome = Cluster().launch(body, ranks=2, args=(4,)).run()
    assert [record.exit_code for record in outcome.ranks.values()] == [-6, -6]
    assert {Verdict.CRASH, Verdict.MISMATCH} == set(kinds(outcome))


# -- refusals ----------------------------------------------------------------------------------------------------


def test_what_is_not_supported_is_refused_in_its_words() -> None:
    """At the call, before anybody else hears of it."""

    def body(rank: int) -> list[str]:
        pg = world()
        ones, half = torch.ones(2), torch.ones(2, dtype=torch.float16)
        texts = []
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(half),
            lambda: dist.all_reduce(ones, dist.ReduceOp.AVG),
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND),
            lambda: dist.reduce_scatter(torch.zeros(1), [torch.ones(1)] * 2),
            lambda: dist.all_to_all_single(torch.zeros(2), ones),
            lambda: dist.broadcast(ones, 5),
            lambda: dist.recv(ones),
            lambda: pg.set_p2p_timeout_us(-1),
        ]
        for call in calls:
            with pytest.raises((RuntimeError, ValueError)) as refused:
                call()
            texts.append(str(refused.value))
        return texts

    outcome = launch(body, 2)
    expected = [
        "mooncakePgAllReduce failed: operation not supported: reduction datatype is not supported",
        "mooncakePgAllReduce failed: operation not supported: average reduction is not supported",
        "Unsupported Mooncake PG op: \x05",
        "Backend mooncake does not support reduce_scatter",
        "Backend mooncake does not support alltoall_base",
        "mooncakePgBroadcast failed: invalid argument: broadcast root is out of range",
        "Backend mooncake does not support recvAnysource",
        "mooncakePgContextSetP2PTimeout failed: invalid argument: P2P timeout must not be negative",
    ]
    assert outcome.results[0] == outcome.results[1] == expected


# -- scale and determinism ---------------------------------------------------------------------------------------


def test_more_ranks_than_the_real_limit_need_the_option() -> None:
    """64 is the real one."""

    def body(rank: int) -> float:
        world(65)
        return summed(1.0, 1)[0]

    assert "max_group_size must be in [group_size, 64]" in launch(body, 2).findings[0].title
    wide = Cluster(mooncake_ranks_max=65).launch(body, ranks=2).run()
    assert wide.results == {0: 2.0, 1: 2.0}


def test_the_same_run_twice_is_the_same_to_the_byte() -> None:
    """Deaths, windows and proposals included."""
    traces = [launch(after_a_death, 3, 2, {}, 4.0, True).trace.to_text() for _ in range(2)]
    assert traces[0] == traces[1]
