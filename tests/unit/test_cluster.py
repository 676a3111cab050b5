"""What a user writes: bad input is refused in one line; odd sizes and odd functions work."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Cluster, ClusterOptions, Limits, SimulationFailed, UsageError, Verdict, simulate


def nothing(rank: int) -> int:
    return rank


async def lazy(rank: int) -> None:
    raise AssertionError("nobody awaits it")


def everybody_meets(rank: int) -> float:
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Cluster(nodes=0), "nodes=0: a cluster has at least one node"),
        (lambda: Cluster(gpus_per_node=0), "gpus_per_node=0: give 1 or more, or leave it out"),
        (lambda: Cluster(carrier="fibre"), "carrier='fibre': give one of thread, greenlet"),
        (lambda: Cluster(on_hang="wait"), "on_hang='wait': give 'report' or 'timeout'"),
        (lambda: Cluster(probe_crash="some"), "probe_crash='some': give 'first', 'all' or 'none'"),
        (lambda: Cluster(sede=1), "unexpected keyword argument 'sede'"),
        (lambda: Cluster().run(), "nothing to run: call launch() first"),
        (lambda: Cluster().launch(nothing, ranks=0), "ranks=0: launch at least one rank"),
        (lambda: Cluster().launch("script.py", ranks=2), "'script.py' is not a function to run on a rank"),
        (lambda: Cluster().launch(nothing, ranks=2, at_s=-1), "at_s=-1: a start time is 0 or later"),
        (lambda: Cluster().launch(nothing, ranks=4, world_size=2), "world_size=2: rank 3 needs a world of 4"),
        (lambda: Cluster(nodes=2, gpus_per_node=2).launch(nothing, ranks=5), "rank 4 does not fit: 2 nodes x 2 GPUs"),
        (lambda: Cluster().launch(nothing, ranks=1 << 17), "at most 65536 ranks can be simulated"),
        (lambda: Cluster(seed="abc"), "seed='abc': give a whole number"),
        (lambda: Cluster(seed=-1), "seed=-1: give 0 or more"),
        (lambda: Cluster(isolate="mypkg"), "isolate='mypkg': give a sequence of module names"),
        (lambda: Cluster(isolate=("torch",)), "isolate 'torch': name a module of your own"),
        (lambda: Cluster(isolate=("*",)), "isolate '*': name a module of your own"),
        (lambda: Cluster(limits=3), "limits=3: give Limits"),
        (lambda: Cluster(policy=5), "policy=5: give a function"),
        (lambda: Cluster(ClusterOptions(), seed=3), "seed: give either ClusterOptions or single options, not both"),
        (lambda: Limits(spin_wall_s=-1), "spin_wall_s=-1: give a number above 0"),
        (lambda: Cluster().launch(nothing, ranks="2"), "ranks='2': launch at least one rank"),
        (lambda: Cluster().launch(nothing, ranks=2, at_s=float("inf")), "at_s=inf: a start time is 0 or later"),
        (lambda: Cluster().launch(nothing, ranks=2, args=5), "args=5: give a list or tuple of arguments"),
        (lambda: Cluster().launch(nothing, ranks=2, env={1: "x"}), "give texts by name"),
        (lambda: Cluster().launch(nothing, ranks=2, world_size=4.5), "world_size=4.5: give a whole number"),
        (lambda: Cluster().launch(lazy, ranks=2), "only makes a coroutine or generator when it is called"),
        (lambda: Cluster().launch(nothing, ranks=2).recover(nothing, ranks=[1, 1]), "give whole numbers, each once"),
        (lambda: Cluster().launch(nothing, ranks=2).recover(nothing, ranks=(1.0,)), "give whole numbers, each once"),
        (
            lambda: Cluster().launch(nothing, ranks=4).join(nothing, ranks=2, rank_offset=3),
            "rank 3 is live already: give rank_offset=4 or higher",
        ),
        (
            lambda: Cluster().launch(nothing, ranks=4).join(nothing, ranks=2, rank_offset=0),
            "rank_offset=0: joiners come behind the launched ranks, so give 1 or more",
        ),
        (lambda: Cluster().launch(nothing, ranks=2).recover(nothing, ranks=[5]), "[5] were never launched"),
        (lambda: Cluster().launch(nothing, ranks=2).recover(nothing, ranks=[]), "ranks=[]: name the slots to fill"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: Callable[[], Any], message: str) -> None:
    """What was given, and what would do."""
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 64])
def test_any_number_of_ranks_meets(ranks: int) -> None:
    """One rank alone, odd numbers, many."""
    outcome = simulate(everybody_meets, ranks).raise_if_bad()
    assert outcome.results == dict.fromkeys(range(ranks), ranks * (ranks - 1) / 2)


@pytest.mark.slow
def test_a_thousand_ranks_meet() -> None:
    """1,024 ranks in one process."""
    outcome = simulate(everybody_meets, 1024).raise_if_bad()
    assert set(outcome.results.values()) == {1024 * 1023 / 2}


def test_an_unknown_backend_is_an_exception_at_the_users_line() -> None:
    """torch itself refuses it; the report shows where."""

    def program(rank: int) -> None:
        dist.init_process_group("carrier-pigeon")

    outcome = simulate(program, 2)
    assert outcome.verdict is Verdict.EXCEPTION
    assert outcome.findings[0].sides[0].site is not None
    assert outcome.findings[0].sides[0].site.file == __file__


def test_a_world_size_that_nobody_fills_is_a_deadlock() -> None:
    """Two ranks that believe in a world of three."""
    outcome = Cluster().launch(everybody_meets, ranks=2, world_size=3).run()
    assert outcome.verdict is Verdict.DEADLOCK
    assert "waits for world_size=3 workers, and fewer ranks connect to it" in outcome.findings[0].cause


@pytest.mark.parametrize(
    ("leave", "status", "code"),
    [
        (lambda: sys.exit(), "ok", 0),
        (lambda: sys.exit(0), "ok", 0),
        (lambda: sys.exit(3), "exit", 3),
        (lambda: sys.exit("no GPU"), "exit", 1),
        (lambda: os._exit(0), "ok", 0),
        (lambda: os._exit(5), "exit", 5),
        (lambda: os.abort(), "crash", -6),
        (lambda: os.kill(os.getpid(), 9), "crash", -9),
    ],
)
def test_every_way_to_leave_is_recorded(leave: Callable[[], None], status: str, code: int) -> None:
    """With the status that a real process would have had; the test process lives on."""

    def program(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            leave()
        return

    outcome = simulate(program, 2)
    assert (outcome.ranks[1].status, outcome.ranks[1].exit_code) == (status, code)
    assert outcome.ok == (status == "ok")


def test_raise_if_bad_raises_the_report() -> None:
    """pytest shows it as the failure."""

    def program(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank:
            dist.barrier()

    with pytest.raises(SimulationFailed, match="deadlock: barrier seq 0 of group 'WORLD'") as caught:
        simulate(program, 2).raise_if_bad()
    assert caught.value.outcome.verdict is Verdict.DEADLOCK


def test_a_rank_has_torchruns_environment() -> None:
    """Two nodes of two."""

    def program(rank: int) -> tuple[str, ...]:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR")
        return tuple(os.environ[name] for name in names)

    outcome = Cluster(nodes=2, gpus_per_node=2).launch(program, ranks=4).run()
    assert outcome.results[3] == ("3", "1", "4", "2", "1", "node0")


def test_joiners_meet_a_serving_cohort_over_its_store() -> None:
    """Ranks that come later have other functions, another world size and their own start."""

    def serve(rank: int) -> bytes:
        store = dist.TCPStore("node0", 1234, is_master=rank == 0, wait_for_workers=False)
        return store.get("hello")

    def join(rank: int) -> str:
        dist.TCPStore("node0", 1234, is_master=False, wait_for_workers=False).set("hello", f"from {rank}")
        return os.environ["WORLD_SIZE"]

    outcome = Cluster().launch(serve, ranks=2).join(join, ranks=1, rank_offset=2, at_s=3.0).run().raise_if_bad()
    assert outcome.results == {0: b"from 2", 1: b"from 2", 2: "3"}
    assert outcome.virtual_s == 3.0


def test_a_slot_is_recovered_only_after_its_process_has_ended() -> None:
    """The run is refused, and nothing is left behind."""

    def sleeper(rank: int) -> None:
        time.sleep(10.0)

    before = threading.active_count()
    with pytest.raises(UsageError, match="rank 1 is still alive at 1 s"):
        Cluster().launch(sleeper, ranks=2).recover(nothing, ranks=[1], at_s=1.0).run()
    assert threading.active_count() == before


def test_an_exception_that_cannot_be_printed_is_an_exception_of_the_rank() -> None:
    """Its type stands in the report."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("nope")

    def program(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 1:
            raise Unprintable
        dist.barrier()

    outcome = simulate(program, 2)
    assert outcome.findings[0].title == "rank 1 ended with Unprintable: <unprintable>"
