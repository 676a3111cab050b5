"""Small programs, each with the verdict that it deserves and what its report has to say.

The correct ones matter as much as the wrong ones: a checker that cries wolf is switched off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from datetime import timedelta
from multiprocessing import shared_memory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from simulator import Finding, Limits, Outcome, Verdict, simulate

Program = Any


def gloo(timeout_s: float | None = None) -> None:
    dist.init_process_group("gloo", timeout=None if timeout_s is None else timedelta(seconds=timeout_s))


def ones(count: int = 1, value: float = 1.0) -> torch.Tensor:
    return torch.full((count,), float(value))


# -- correct programs that look suspicious -------------------------------------------------------------------------


def main_rank_first(rank: int) -> None:
    """Barriers in different branches that meet all the same."""
    gloo()
    if rank != 0:
        dist.barrier()
    time.sleep(0.2)
    if rank == 0:
        dist.barrier()


def members_only_with_local_synchronisation(rank: int) -> None:
    """Two halves create their own groups at once."""
    gloo()
    mine = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True)
    dist.all_reduce(ones(), group=group)


def point_to_point_by_a_subset(rank: int) -> None:
    """Two ranks talk, then all meet."""
    gloo()
    if rank in (1, 2):
        received = ones()
        ops = [dist.P2POp(dist.isend, ones(), 3 - rank), dist.P2POp(dist.irecv, received, 3 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    dist.barrier()


def non_members_call_too(rank: int) -> None:
    """The contract as it should be kept."""
    gloo()
    group = dist.new_group([0, 2])
    if rank in (0, 2):
        dist.barrier(group=group)
    dist.barrier()


def both_post_isend_first(rank: int) -> None:
    """Asynchronous sends do not block."""
    gloo()
    if rank < 2:
        sent = dist.isend(ones(), 1 - rank)
        dist.irecv(ones(), 1 - rank).wait()
        sent.wait()


def disjoint_groups_at_different_pace(rank: int) -> None:
    """Five collectives here, one there."""
    gloo()
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    for _ in range(5 if rank < 2 else 1):
        dist.all_reduce(ones(), group=groups[rank // 2])
    dist.barrier()


def a_store_poll_with_time_outs(rank: int) -> None:
    """A short time-out that the program handles is no finding."""
    gloo()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        time.sleep(5.0)
        store.set("ready", "1")
    while True:
        try:
            store.wait(["ready"], timedelta(seconds=1))
            break
        except dist.DistStoreError:
            continue


def threads_on_two_groups(rank: int) -> None:
    """Two threads, each with a group of its own."""
    gloo()
    groups = [dist.new_group(), dist.new_group()]

    def work(index: int) -> None:
        time.sleep(0.1 * (rank + index))
        dist.all_reduce(ones(index + 1), group=groups[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def a_group_made_by_its_members_only_and_no_other(rank: int) -> None:
    """Against the contract, harmless with the installed torch: a warning."""
    gloo()
    if rank < 2:
        dist.all_reduce(ones(), group=dist.new_group([0, 1]))
    dist.barrier()


def destroyed_and_made_again(rank: int) -> None:
    """A second life of the default group."""
    for _ in range(2):
        gloo()
        dist.all_reduce(ones())
        dist.destroy_process_group()


CORRECT = [
    main_rank_first,
    members_only_with_local_synchronisation,
    point_to_point_by_a_subset,
    non_members_call_too,
    both_post_isend_first,
    disjoint_groups_at_different_pace,
    a_store_poll_with_time_outs,
    threads_on_two_groups,
    destroyed_and_made_again,
]


@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.__name__)
def test_a_correct_program_has_no_findings(program: Program) -> None:
    """No false alarms."""
    outcome = simulate(program, 4)
    assert (outcome.verdict, outcome.findings) == (Verdict.OK, ()), outcome.report()


def test_a_harmless_breach_of_the_contract_is_a_warning() -> None:
    """Members alone created a group, and no later group suffered: said, but the run is ok."""
    outcome = simulate(a_group_made_by_its_members_only_and_no_other, 4)
    assert outcome.verdict is Verdict.OK
    assert [(f.level, f.warning, f.certainty) for f in outcome.findings] == [("contract", True, "suspect")]


# -- wrong programs ---------------------------------------------------------------------------------------------------


def one(outcome: Outcome, kind: Verdict) -> Finding:
    """The only finding, of this kind."""
    assert [f.kind for f in outcome.findings] == [kind], outcome.report()
    return outcome.findings[0]


def test_a_rank_that_skips_a_collective_is_named_with_what_it_did() -> None:
    """Waiting, missing, where, why."""

    def program(rank: int) -> None:
        gloo()
        if rank != 2:
            dist.all_reduce(ones())

    finding = one(simulate(program, 4), Verdict.DEADLOCK)
    assert (finding.waiting, finding.missing) == ((0, 1, 3), (2,))
    assert (finding.group, finding.seq, finding.level) == ("WORLD", 0, "torch")
    assert finding.sides[0].site is not None
    assert finding.sides[0].site.file == __file__
    assert finding.cause == "rank 2 has ended without entering this all_reduce"


def test_a_cycle_across_two_groups_is_written_out() -> None:
    """Rank 0: row then column; rank 1: column then row."""

    def program(rank: int) -> None:
        gloo()
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (first, second) if rank == 0 else (second, first):
            dist.all_reduce(ones(), group=group)

    finding = one(simulate(program, 2), Verdict.DEADLOCK)
    assert finding.cause == (
        "a cycle: rank 0 in all_reduce on group '#1' seq 0 waits for rank 1; "
        "rank 1 in all_reduce on group '#2' seq 0 waits for rank 0"
    )


def test_two_blocking_sends_before_the_receives() -> None:
    """A send blocks until its receive is posted, even for one element."""

    def program(rank: int) -> None:
        gloo()
        dist.send(ones(), 1 - rank)
        dist.recv(ones(), 1 - rank)

    finding = one(simulate(program, 2), Verdict.DEADLOCK)
    assert "a cycle" in finding.cause
    assert "isend" in finding.remedy


def test_a_skewed_counter_is_traced_to_the_call_that_skewed_it() -> None:
    """The hang shows at a later group; the cause is the first call that differs."""

    def program(rank: int) -> None:
        gloo()
        if rank == 0:
            dist.new_group([0])
        else:
            dist.new_group([1, 2])
            dist.new_group([1])
        dist.new_group([0, 1, 2])

    outcome = simulate(program, 3)
    finding = outcome.findings[0]
    assert finding.kind is Verdict.DEADLOCK
    assert "hold different names for the group [0, 1, 2]" in finding.cause
    assert "new_group call 1 of the default group is [0] on rank 0" in finding.cause
    assert "[1, 2] on ranks 1, 2" in finding.cause


def test_local_synchronisation_names_that_differ() -> None:
    """Up to torch 2.13 the name is a hash of the ranks and of the number of groups that this process is in.

    From 2.14 on it counts calls instead, which members and non-members make alike: the same program is right there.
    """

    def program(rank: int) -> None:
        gloo()
        dist.new_group([0, 2])
        dist.new_group([0, 1, 2], use_local_synchronization=True)

    outcome = simulate(program, 3)
    if TorchVersion(torch.__version__) >= "2.14":
        assert outcome.ok
        return
    finding = one(outcome, Verdict.DEADLOCK)
    assert "hold different names" in finding.cause
    assert finding.missing == (1,)


def test_lists_that_differ_in_one_slot_are_crossed() -> None:
    """Each half creates only its own list, in the same slot."""

    def program(rank: int) -> None:
        gloo()
        dist.new_group([0, 1] if rank < 2 else [2, 3])

    finding = one(simulate(program, 4), Verdict.MISMATCH)
    assert [(side.ranks, side.doing) for side in finding.sides] == [((0, 1), "[0, 1]"), ((2, 3), "[2, 3]")]


def test_the_store_barrier_of_a_skipped_call() -> None:
    """With TORCH_DIST_INIT_BARRIER=1 torch waits in its store, in slices of ten seconds, for half an hour."""

    def program(rank: int) -> None:
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
        gloo()
        if rank != 1:
            dist.new_group([0, 2])
        dist.barrier()

    finding = one(simulate(program, 3), Verdict.DEADLOCK)
    assert finding.title == "the store barrier after the creation of group '1' cannot complete"
    assert (finding.waiting, finding.missing) == ((0, 2), (1,))
    assert "0 on rank 1, 1 on ranks 0, 2" in finding.cause


@pytest.mark.parametrize(
    ("call", "differs"),
    [
        (lambda rank: dist.all_reduce(ones(rank + 1)), "elements"),
        (lambda rank: dist.all_reduce(ones().to(torch.float64 if rank else torch.float32)), "dtype"),
        (lambda rank: dist.all_reduce(ones(), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]), "reduce op"),
        (lambda rank: dist.broadcast(ones(), src=rank), "root (group rank)"),
        (lambda rank: dist.barrier() if rank else dist.all_reduce(ones()), "op"),
    ],
)
def test_arguments_that_differ_are_shown_side_by_side(call: Any, differs: str) -> None:
    """Both sides, and in what they differ."""

    def program(rank: int) -> None:
        gloo()
        call(rank)

    finding = one(simulate(program, 2), Verdict.MISMATCH)
    assert finding.cause == f"the ranks differ in: {differs}"
    assert {rank for side in finding.sides for rank in side.ranks} == {0, 1}


def test_an_exception_is_shown_before_those_it_strands() -> None:
    """The cause first; the others follow from it."""

    def program(rank: int) -> None:
        gloo()
        if rank == 1:
            raise TypeError("no tokens")
        dist.barrier()

    finding = one(simulate(program, 3), Verdict.EXCEPTION)
    assert finding.title == "rank 1 ended with TypeError: no tokens"
    assert finding.ranks("stranded") == (0, 2)


def test_a_key_that_nobody_sets() -> None:
    """The wait names its keys."""

    def program(rank: int) -> None:
        gloo()
        dist.distributed_c10d._get_default_store().get(f"from-{rank}")

    outcome = simulate(program, 2)
    assert {f.kind for f in outcome.findings} == {Verdict.DEADLOCK}
    assert "nobody sets the key" in outcome.findings[0].title
    assert "from-0" in outcome.findings[0].cause


def test_a_time_out_that_a_rank_does_not_survive_is_a_deadlock_with_its_snapshot() -> None:
    """The diagnosis is of the moment when nothing could move, not of the wreck afterwards."""

    def program(rank: int) -> None:
        gloo(timeout_s=10)
        if rank:
            dist.all_reduce(ones())

    outcome = simulate(program, 3, on_hang="timeout")
    finding = outcome.findings[0]
    assert (finding.kind, finding.waiting, finding.missing) == (Verdict.DEADLOCK, (1, 2), (0,))
    assert outcome.ranks[1].error.startswith("RuntimeError: [gloo] Timed out waiting 10000ms")
    assert outcome.virtual_s == pytest.approx(10, abs=1)


def test_a_late_rank_makes_its_peers_time_out() -> None:
    """Twenty-five virtual seconds late, at a time-out of ten."""

    def program(rank: int) -> None:
        gloo(timeout_s=10)
        if rank == 0:
            time.sleep(25)
        dist.all_reduce(ones())

    outcome = simulate(program, 2)
    assert outcome.verdict in (Verdict.TIMEOUT, Verdict.DEADLOCK)
    assert "10000ms" in outcome.report() or "Timed out" in outcome.ranks[1].error


def test_a_probe_over_shared_memory_is_named_on_one_node_only() -> None:
    """On two nodes it is needed."""

    def in_the_same_node_as(group: Any) -> None:
        if dist.get_rank() == 0:
            segment = shared_memory.SharedMemory(create=True, size=8)
            segment.close()
            segment.unlink()
        dist.barrier(group=group)

    def program(rank: int) -> None:
        gloo()
        in_the_same_node_as(dist.group.WORLD)

    finding = one(simulate(program, 2), Verdict.UNNEEDED_PROBE)
    assert finding.ranks("probing") == (0, 1)
    assert simulate(program, 2, nodes=2).ok


def test_a_rank_that_spins_is_shown_with_its_line() -> None:
    """It ends the run after the wall-clock limit."""

    def program(rank: int) -> None:
        gloo()
        if rank == 1:
            while True:
                pass
        dist.barrier()

    outcome = simulate(program, 2, limits=Limits(spin_wall_s=0.3))
    finding = one(outcome, Verdict.LIVELOCK)
    assert finding.ranks("spinning") == (1,)
    assert finding.certainty == "cannot decide"
    assert finding.sides[0].site is not None
    assert finding.sides[0].site.function.endswith("program")


def test_ranks_that_poll_for_ever_are_a_livelock() -> None:
    """A flag that nobody sets, looked at again and again."""

    def program(rank: int) -> None:
        gloo()
        while not dist.distributed_c10d._get_default_store().check(["never"]):
            time.sleep(0.01)

    outcome = simulate(program, 2, limits=Limits(idle_steps_max=2000))
    assert outcome.verdict is Verdict.LIVELOCK


def test_a_send_to_a_rank_outside_the_group_is_the_users_exception() -> None:
    """Global rank and group rank confused: torch refuses, the report names the line."""

    def program(rank: int) -> None:
        gloo()
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.broadcast(ones(), src=0, group=groups[rank // 2])

    outcome = simulate(program, 4)
    assert outcome.verdict is Verdict.EXCEPTION
    assert outcome.findings[0].ranks("raised") == (2, 3)


def test_tags_that_differ_are_the_cause() -> None:
    """Both tags stand in the report."""

    def program(rank: int) -> None:
        gloo()
        if rank == 0:
            dist.send(ones(), 1, tag=7)
        else:
            dist.recv(ones(), 0, tag=8)

    finding = one(simulate(program, 2), Verdict.DEADLOCK)
    assert finding.cause == "the tags differ: rank 0 sends with tag 7, rank 1 receives with tag 8"
    assert {"send to rank 1 tag 7", "recv from rank 0 tag 8"} <= {
        part for side in finding.sides for part in (side.doing.removeprefix("waits in ").split(" on ")[0],)
    }


def test_a_skipped_new_group_is_told_as_such() -> None:
    """The creation that cannot complete comes first, with who skipped which call."""

    def program(rank: int) -> None:
        gloo()
        tp = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dp = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3]) if not (rank == 3 and ranks == [0, 2])]
        for group in (tp[rank // 2], dp[-1] if rank % 2 else dp[0]):
            dist.all_reduce(ones(), group=group)

    finding = simulate(program, 4).findings[0]
    assert finding.title.startswith("creation of group '#")
    assert finding.group_ranks == (1, 3)
    assert "rank 3 has skipped new_group([0, 2])" in finding.cause
    assert "new_group calls in the same order" in finding.remedy


def test_ranks_that_wait_elsewhere_stand_beside_a_mismatch() -> None:
    """A second bug is not lost behind the first."""

    def program(rank: int) -> None:
        gloo()
        group = dist.new_group([1, 2])
        if rank == 0:
            dist.send(ones(), 1)
        else:
            dist.all_reduce(ones(rank), group=group)

    finding = one(simulate(program, 3), Verdict.MISMATCH)
    assert finding.ranks("also waiting") == (0,)


def test_an_event_loop_that_nobody_wakes_is_the_missing_rank() -> None:
    """asyncio waits without a time-out; its peers wait in a barrier."""

    def program(rank: int) -> None:
        gloo()

        async def main() -> None:
            if rank == 1:
                await asyncio.Event().wait()
            await asyncio.to_thread(dist.barrier)

        asyncio.run(main())

    finding = simulate(program, 3).findings[0]
    assert (finding.kind, finding.missing) == (Verdict.DEADLOCK, (1,))


def test_a_peer_that_comes_too_late_is_named() -> None:
    """The rank went on after its time-out; the report says who was late."""

    def program(rank: int) -> None:
        gloo(timeout_s=30)
        if rank == 1:
            time.sleep(100)
            return
        with contextlib.suppress(RuntimeError):
            dist.barrier()

    finding = one(simulate(program, 2), Verdict.TIMEOUT)
    assert (finding.ranks("timed out"), finding.ranks("late")) == ((0,), (1,))
    assert "barrier on group 'WORLD' seq 0 timed out on rank 0 at 30 s" in finding.title


# -- the report as text ----------------------------------------------------------------------------------------------

GOLDEN = """\
hangcheck: deadlock (1 finding, 3 ranks, seed 0, 0 s of virtual time)

deadlock: all_reduce seq 1 of group 'tp' [0, 1, 2] cannot complete
  waiting: ranks 0, 2  all_reduce seq 1                  {file}:{wait}
  missing: rank 1      waits in recv from rank 0 on group 'WORLD'  {file}:{missing}
  cause:   a cycle: rank 0 in all_reduce on group 'tp' seq 1 waits for rank 1; rank 1 in recv from rank 0 on group
           'WORLD' waits for rank 0
  remedy:  let every rank of the group enter the same collectives in the same order, or none
  real:    gloo waits for the group's time-out (30 minutes by default) and then raises; once a process has exited, its
           peers get `Connection closed by peer`
  level:   torch    certainty: cause
"""


def pipeline(rank: int) -> None:
    """The sample of the style guide: a rank that receives what is only sent afterwards."""
    gloo()
    tp = dist.new_group(group_desc="tp")
    dist.all_reduce(ones(), group=tp)
    if rank == 1:
        dist.recv(ones(), src=0)
    dist.all_reduce(ones(), group=tp)
    if rank == 0:
        dist.send(ones(), dst=1)


def test_the_whole_report_is_pinned() -> None:
    """Word for word: what a user reads is an interface."""
    first = pipeline.__code__.co_firstlineno
    report = simulate(pipeline, 3).report()
    place = report.split("all_reduce seq 1")[2].split()[0].rsplit(":", 1)[0]
    expected = GOLDEN.format(file=place, wait=first + 7, missing=first + 6)
    assert [line.split() for line in report.splitlines()] == [line.split() for line in expected.splitlines()]


def test_a_rank_that_swallows_its_error_for_ever_is_a_livelock() -> None:
    """Calls on lost connections fail at once: a loop around them neither waits nor gets anywhere."""

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            os._exit(1)
        while True:
            with contextlib.suppress(RuntimeError):
                dist.all_reduce(torch.ones(1))

    outcome = simulate(body, 2, limits=Limits(idle_steps_max=2_000))
    livelock = next(finding for finding in outcome.findings if finding.kind is Verdict.LIVELOCK)
    assert any(0 in side.ranks for side in livelock.sides)


def test_a_loop_that_only_looks_at_the_clock_ends_too() -> None:
    """Each look lets a little virtual time pass, so the rank seems to wait; it is ended all the same."""

    def body(rank: int) -> None:
        while True:
            for _ in range(200):
                time.perf_counter()
            sum(range(20_000))

    outcome = simulate(body, 1, limits=Limits(spin_wall_s=0.2))
    assert outcome.verdict is Verdict.LIVELOCK
