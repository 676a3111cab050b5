"""What faults do to a run, on gloo and nccl: who dies, who hears of it, what the report says."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Cluster, Outcome, simulate
from simulator.faults import InjectedError, Injection


def summing(rank: int, backend: str = "gloo", rounds: int = 4) -> float:
    """One all_reduce each half second."""
    dist.init_process_group(backend)
    x = torch.ones(1)
    for _ in range(rounds):
        time.sleep(0.5)
        dist.all_reduce(x)
    return float(x.item())


def under(*faults: str, ranks: int = 4, args: tuple[Any, ...] = (), **options: Any) -> Outcome:
    """`summing` with these faults."""
    return simulate(summing, ranks, args=args, faults=faults, **options)


def faults_block(outcome: Outcome) -> list[str]:
    """What the report says of the faults, without the file's path."""
    block = outcome.report().split("\n\n")[1]
    return [line.split(", tests/")[0].split(", /")[0] for line in block.splitlines()]


# -- the end of a process ----------------------------------------------------------------------------------------------


def test_who_is_killed_in_a_collective_closes_its_connections_on_gloo() -> None:
    """The others raise; the report names the fault, and blames the code for not living with it."""
    outcome = under("kill rank=2 at=all_reduce#3")
    assert outcome.verdict == "exception"
    assert (outcome.ranks[2].status, outcome.ranks[2].exit_code) == ("killed", -9)
    (finding,) = outcome.findings
    assert finding.title == "ranks 0, 1, 3 did not survive the loss of rank 2"
    assert finding.cause == (
        "the connection to a peer closed, and the code does not handle the error; the fault [kill rank=2 "
        "at=all_reduce#3] struck rank 2 at 1.5 s: killed in all_reduce#3, its call#6"
    )
    assert faults_block(outcome) == [
        "faults injected:",
        "  kill rank=2 at=all_reduce#3",
        "    struck rank 2 at 1.5 s: killed in all_reduce#3, its call#6",
    ]
    assert "1.500000 r2 fault [kill rank=2 at=all_reduce#3] killed in all_reduce#3, its call#6" in (
        outcome.trace.to_text()
    )


def test_who_is_killed_on_nccl_leaves_the_others_waiting() -> None:
    """A deadlock that has the dead rank as missing, and the fault in its cause."""
    outcome = under("kill rank=2 at=all_reduce#3", args=("nccl",))
    (finding,) = outcome.findings
    assert (finding.kind, finding.waiting, finding.missing) == ("deadlock", (0, 1, 3), (2,))
    assert finding.cause == (
        "rank 2 was killed before entering this all_reduce; the fault [kill rank=2 at=all_reduce#3] struck rank 2 at "
        "1.5 s: killed in all_reduce#3, its call#5"
    )
    assert finding.remedy.startswith("notice that a rank is gone or out of reach")
    missing = next(side for side in finding.sides if side.role == "missing")
    assert missing.doing == "was killed at 1.5 s by [kill rank=2 at=all_reduce#3]"


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
@pytest.mark.parametrize("moment", ["1.2s", "all_reduce#2", "call#5"])
def test_nothing_of_a_killed_process_runs_any_more(moment: str, carrier: str) -> None:
    """No `except`, no `finally`, no thread, while the run lasts; on threads not after it either."""
    seen: list[str] = []

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        try:
            for _ in range(4):
                time.sleep(0.5)
                dist.all_reduce(torch.ones(1))
        except RuntimeError:
            pass
        finally:
            if rank == 1:
                seen.append("finally")
                store.set("cleaned", "yes")
        if rank == 0:
            time.sleep(5)
            seen.append(f"cleaned: {store.check(['cleaned'])}")

    outcome = simulate(work, 2, faults=[f"kill rank=1 at={moment}"], carrier=carrier)
    assert outcome.ranks[1].status == "killed"
    assert seen[0] == "cleaned: False"
    if carrier == "thread":
        assert seen == ["cleaned: False"]


def test_a_data_part_that_a_killed_rank_had_brought_is_gone() -> None:
    """On nccl, whose peers do not notice: who comes later waits, and is not given a dead rank's data."""

    def work(rank: int) -> float:
        dist.init_process_group("nccl")
        x = torch.ones(1)
        dist.all_reduce(x)
        if rank == 1:
            time.sleep(2)
        dist.all_reduce(x)
        return float(x.item())

    outcome = simulate(work, 2, faults=["kill rank=0 at=1s"])
    assert outcome.results == {}
    (finding,) = outcome.findings
    assert (finding.waiting, finding.missing) == ((1,), (0,))


def test_a_message_of_a_killed_rank_is_never_received() -> None:
    """On nccl: it was posted, and nobody had met it."""

    def work(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            dist.send(torch.ones(1), 1)
            time.sleep(9)
        else:
            time.sleep(3)
            dist.recv(torch.ones(1), 0)

    outcome = simulate(work, 2, faults=["kill rank=0 at=2s"])
    assert outcome.verdict == "deadlock"
    assert "recv" in outcome.findings[0].title


@pytest.mark.parametrize(("moment", "text"), [("all_reduce#2", "in all_reduce#2, its call#5"),
                                              ("1.2s", "while in time.sleep(0.5)")])  # fmt: skip
def test_a_rank_may_catch_the_exception_that_a_fault_raises(moment: str, text: str) -> None:
    """It is raised once, at the call or where the rank waits; `finally` blocks run."""

    def work(rank: int) -> str:
        dist.init_process_group("gloo")
        told = ""
        for _ in range(3):
            try:
                time.sleep(0.5)
                dist.all_reduce(torch.ones(1))
            except InjectedError as error:
                told += str(error)
                dist.all_reduce(torch.ones(1))
        return told

    outcome = simulate(work, 2, faults=[f"kill rank=1 at={moment} how=raise"]).raise_if_bad()
    assert outcome.results == {0: "", 1: f"fault injected: kill rank=1 at={moment} how=raise"}
    assert faults_block(outcome)[2].endswith(f"raised {text}")


def test_an_exception_that_nobody_catches_names_the_fault() -> None:
    """The finding is the usual one for an exception."""
    outcome = under("kill rank=2 at=all_reduce#2 how=raise")
    finding = outcome.findings[0]
    assert finding.title == "rank 2 ended with InjectedError: fault injected: kill rank=2 at=all_reduce#2 how=raise"
    assert "the fault [kill rank=2 at=all_reduce#2 how=raise] struck rank 2 at 1 s" in finding.cause
    assert finding.remedy == ("let the code live with an exception at this place: handle it, or end all ranks together")


def test_a_code_that_lives_with_the_loss_is_ok() -> None:
    """A fault is no finding: what the code makes of it may be one."""

    def work(rank: int) -> str:
        dist.init_process_group("gloo")
        try:
            dist.barrier()
        except RuntimeError:
            return "went on"
        return "all there"

    outcome = simulate(work, 3, faults=["kill rank=2 at=barrier#1"])
    assert (outcome.verdict, outcome.results) == ("ok", {0: "went on", 1: "went on"})


def test_a_fault_that_never_struck_says_why() -> None:
    """Too few calls, a run that was over, a rank that had ended: each in a sentence. The run does not go on for it."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        if rank:
            time.sleep(3)

    faults = ["kill rank=1 at=all_reduce#30", "kill rank=1 at=100s", "kill rank=0 at=2s", "skew rank=0 by=1s",
              "store-delay by=1s op=get", "kill rank=1 at=broadcast#1"]  # fmt: skip
    outcome = simulate(work, 2, faults=faults).raise_if_bad()
    assert faults_block(outcome)[2::2] == [
        "    never struck: rank 1 made 1 call of all_reduce",
        "    never struck: the run was over at 3 s",
        "    never struck: rank 0 had ended by then, at 0 s",
        "    never struck: no rank that it applies to looked at its clock, or slept by it",
        "    never struck: no request to a TCPStore was sent that it applies to",
        "    never struck: rank 1 made no calls of broadcast",
    ]
    assert outcome.virtual_s == 3.0


def test_rank_0_takes_its_store_with_it() -> None:
    """Who waits for a key hears that the connection is closed, as torch's clients do."""

    def work(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        if rank == 0:
            time.sleep(100)
        store.get("never")

    outcome = simulate(work, 2, faults=["kill rank=0 at=2s"])
    assert "DistNetworkError: Failed to recv, got 0 bytes" in outcome.ranks[1].error
    (finding,) = outcome.findings
    assert finding.title == "rank 1 did not survive the loss of rank 0"
    assert outcome.virtual_s == 2.0


def test_a_rank_is_started_again_in_a_process_of_its_own() -> None:
    """The same function and number, another pid, nothing left in memory; calls are counted anew."""

    def work(rank: int) -> tuple[int, int]:
        import os

        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        lives = store.add(f"lives of {rank}", 1)
        time.sleep(3)
        if rank == 0:
            time.sleep(5)
        return lives, os.getpid()

    outcome = simulate(work, 2, faults=["kill rank=1 at=2s restart=1.5s"]).raise_if_bad()
    assert outcome.results == {0: (1, 4000), 1: (2, 4002)}
    assert (outcome.ranks[1].status, outcome.ranks[1].start_s, outcome.ranks[1].end_s) == ("ok", 3.5, 6.5)


def test_all_ranks_can_die() -> None:
    """The run ends with the last of them, and a rank that starts again afterwards still comes."""
    outcome = under("kill rank=0-3 at=1.2s")
    assert [record.status for record in outcome.ranks.values()] == ["killed"] * 4
    assert (outcome.verdict, outcome.virtual_s) == ("ok", 1.2)

    def alone(rank: int) -> float:
        time.sleep(2)
        return time.monotonic()

    assert simulate(alone, 1, faults=["kill rank=0 at=1s restart=5s"]).results == {0: 8.0}


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_slow_rank_is_late_at_each_call() -> None:
    """Its calls and what they cost are in the report; a window bounds it; the others wait for it."""
    outcome = under("slow rank=2 by=1s since=0.5s until=3s").raise_if_bad()
    assert outcome.results[0] == 256.0
    assert faults_block(outcome)[2] == "    struck rank 2 at 0.5 s: late in all_reduce"
    assert outcome.virtual_s == 4.0
    assert outcome.faults[0].spent_s == 2.0


def test_a_slow_rank_makes_a_time_out_strike() -> None:
    """The time-out is the finding, the fault its cause."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        dist.barrier()

    outcome = simulate(work, 2, faults=["slow rank=1 by=60s since=0.001s"])
    assert outcome.ok  # nothing is called after 1 ms
    outcome = simulate(work, 2, faults=["slow rank=1 by=60s"])
    assert not outcome.ok
    assert "the fault [slow rank=1 by=60s] struck rank 1" in outcome.findings[0].cause


def test_chance_follows_from_the_seed() -> None:
    """The same seed draws the same calls, another seed others; `any` too."""

    def drawn(seed: int) -> tuple[float, tuple[int, ...]]:
        outcome = under("slow rank=any by=1s chance=0.5", seed=seed, args=("gloo", 8))
        return outcome.virtual_s, tuple(outcome.faults[0].ranks)

    assert drawn(3) == drawn(3)
    assert len({drawn(seed) for seed in range(6)}) > 2


def test_a_clock_is_off_and_drifts() -> None:
    """time.* and time.sleep of that rank only; the others' are right."""

    def work(rank: int) -> tuple[float, float]:
        start = time.monotonic()
        time.sleep(10)
        return start, round(time.monotonic() - start, 6)

    outcome = simulate(work, 3, faults=["skew rank=1 by=-3s", "skew rank=2 drift=1000ppm"]).raise_if_bad()
    assert outcome.results == {0: (0.0, 10.0), 1: (-3.0, 10.0), 2: (0.0, 10.0)}
    assert outcome.ranks[2].end_s == pytest.approx(10 / 1.001)


# -- stores ------------------------------------------------------------------------------------------------------------


def keys(rank: int) -> list[float]:
    """Rank 1 sets two keys and asks for one; rank 0 looks when they come."""
    store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
    times = []
    if rank == 0:
        for key in ("a", "b"):
            store.wait([key])
            times.append(time.monotonic())
        time.sleep(60)
    else:
        store.set("a", "1")
        times.append(time.monotonic())
        store.add("n", 1)
        times.append(time.monotonic())
        store.set("b", "1")
    return times


def test_a_delayed_set_lets_its_client_go_on() -> None:
    """It is not answered; the key is there later. A request with an answer holds the client."""
    outcome = simulate(keys, 2, faults=["store-delay by=5s op=set rank=1 calls=1"]).raise_if_bad()
    assert outcome.results == {0: [5.0, 5.0], 1: [0.0, 5.0]}  # the add queues behind the set


def test_a_lost_request_comes_when_the_kernel_sends_it_again() -> None:
    """Twice lost: 0.2 s and 0.4 s later."""
    outcome = simulate(keys, 2, faults=["store-loss times=2 op=add"]).raise_if_bad()
    assert outcome.results[1] == pytest.approx([0.0, 0.6])
    assert faults_block(outcome)[2] == "    struck rank 1 at 0 s: lost store.add('n')"


def test_a_connection_on_which_all_is_lost_is_given_up() -> None:
    """The client raises, after a quarter of an hour."""
    outcome = simulate(keys, 2, faults=["store-loss times=16 op=add"])
    assert outcome.ranks[1].error == "DistNetworkError: Connection timed out"
    assert outcome.ranks[1].end_s == pytest.approx(924.6)
    assert "[store-loss times=16 op=add] struck rank 1" in outcome.findings[0].cause


def test_a_wait_that_is_held_up_for_longer_than_its_time_out_raises() -> None:
    """When its cancellation is answered, though the key is there by then; measured on a real store."""

    def work(rank: int) -> float:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        store.set("k", "v")
        if rank == 0:
            time.sleep(99)
        else:
            with pytest.raises(dist.DistStoreError, match="wait timeout after 2000ms"):
                store.wait(["k"], timedelta(seconds=2))
        return time.monotonic()

    outcome = simulate(work, 2, faults=["store-delay by=50s op=wait"]).raise_if_bad()
    assert outcome.results == {0: 99.0, 1: 50.0}


def test_the_servers_can_end() -> None:
    """As a launcher's does that dies: clients hear of it, ranks live on."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        time.sleep(2)
        dist.all_reduce(torch.ones(1))
        store.get("k")

    outcome = simulate(work, 2, faults=["store-end at=1s"])
    assert faults_block(outcome)[2] == "    struck at 1 s: ended 1 server"
    assert [record.error_type for record in outcome.ranks.values()] == ["DistNetworkError"] * 2
    assert outcome.findings[0].title == "ranks 0, 1 did not survive the injected faults"


# -- starts ------------------------------------------------------------------------------------------------------------


def elastic(*faults: str) -> Outcome:
    """Two launched ranks that wait up to 10 s for a joiner's key; one joiner at 3 s."""

    def serve(rank: int) -> str:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        try:
            store.wait(["joined"], timedelta(seconds=10))
        except dist.DistStoreError:
            return f"alone at {time.monotonic():g} s"
        return f"joined at {time.monotonic():g} s"

    def join(rank: int) -> None:
        dist.TCPStore("node0", 1234, None, False, wait_for_workers=False).set("joined", "yes")

    cluster = Cluster(faults=faults).launch(serve, ranks=2)
    return cluster.join(join, ranks=1, rank_offset=2, at_s=3.0).run()


@pytest.mark.parametrize(
    ("fault", "served", "came"),
    [
        ("late cohort=scale-1 by=4s", "joined at 7 s", "started at 7 s, not at 3 s"),
        ("late cohort=scale-1 by=40s", "alone at 10 s", "started at 43 s, not at 3 s"),
        ("early rank=2 by=2s", "joined at 1 s", "started at 1 s, not at 3 s"),
        ("early rank=2 by=20s", "joined at 0 s", "started at 0 s, not at 3 s"),
        ("missing cohort=scale-1", "alone at 10 s", "never started"),
    ],
)
def test_joiners_come_late_early_or_never(fault: str, served: str, came: str) -> None:
    """The cohort that was launched sees it, and the report says it."""
    outcome = elastic(fault)
    assert outcome.results[0] == served
    assert faults_block(outcome)[2] == f"    struck rank 2 at 0 s: {came}"


def test_a_cohort_that_is_not_there_is_said() -> None:
    """The fault never struck."""
    assert faults_block(elastic("late cohort=scale-2 by=1s"))[2] == (
        "    never struck: no rank of cohort scale-2 was there to shift"
    )


def test_who_waits_for_a_rank_that_never_starts_is_told_so() -> None:
    """Missing, with the fault."""
    outcome = under("missing rank=3")
    finding = outcome.findings[0]
    assert 3 in finding.missing
    assert finding.cause.startswith("rank 3 never started")
    assert finding.cause.endswith("the fault [missing rank=3] struck rank 3 at 0 s: never started")


# -- the network -------------------------------------------------------------------------------------------------------


def test_a_collective_across_a_cut_completes_when_it_heals() -> None:
    """On both backends; within a node nothing is held up."""
    for backend, end_s in (("gloo", 11.0), ("nccl", 10.0)):  # on nccl the hosts sleep meanwhile
        outcome = under("cut node=1 since=0.7s until=10s", nodes=2, args=(backend,)).raise_if_bad()
        assert (outcome.results[0], outcome.virtual_s) == (256.0, end_s)
    same_node = under("cut node=1 since=0.7s until=10s", nodes=2, ranks=2)
    assert same_node.virtual_s == 11.0  # one rank a node
    assert under("cut node=1 since=0.7s until=10s", nodes=2, ranks=1).virtual_s == 2.0


def test_a_cut_that_does_not_heal_is_the_cause_of_the_deadlock() -> None:
    """All ranks have come, and yet it cannot complete."""
    outcome = under("cut node=1 since=0.7s", nodes=2)
    (finding,) = outcome.findings
    assert (finding.kind, finding.waiting, finding.missing) == ("deadlock", (0, 1, 2, 3), ())
    assert finding.cause == "the fault [cut node=1 since=0.7s] keeps the ranks from reaching each other"


def test_messages_and_stores_wait_for_the_cut_to_heal() -> None:
    """In their order; a get that was waiting hears its answer late; a set is there late."""

    def work(rank: int) -> list[float]:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        time.sleep(1)
        times = []
        for number in range(2):
            if rank == 0:
                dist.send(torch.tensor([number]), 1)
            else:
                got = torch.zeros(1, dtype=torch.long)
                dist.recv(got, 0)
                assert got.item() == number
            times.append(time.monotonic())
        if rank == 1:
            store.set("k", "v")
        assert store.get("k") == b"v"
        return [*times, time.monotonic()]

    faults = ["cut node=1 since=0.5s until=4s", "cut node=1 since=4.5s until=9s"]
    outcome = simulate(work, 2, nodes=2, faults=faults[:1]).raise_if_bad()
    assert outcome.results == {0: [4.0, 4.0, 4.0], 1: [4.0, 4.0, 4.0]}

    def late(rank: int) -> float:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["later"])
        else:
            time.sleep(5)
            store.set("later", "1")
        return time.monotonic()

    assert simulate(late, 2, nodes=2, faults=faults[1:]).raise_if_bad().results == {0: 5.0, 1: pytest.approx(11.2)}


@pytest.mark.parametrize(("cut_s", "took_s"), [(0.1, 0.2), (0.3, 0.6), (1.0, 1.4), (3.0, 3.0), (7.0, 12.6)])
def test_a_request_across_a_cut_gets_through_with_the_first_try_after_it(cut_s: float, took_s: float) -> None:
    """Measured on a real store behind a router that drops everything: 0.21, 0.65, 1.67, 3.35, 13.5 s. A set returns."""

    def work(rank: int) -> tuple[float, float]:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        if rank == 0:
            time.sleep(99)
            return 0.0, 0.0
        time.sleep(1 - time.monotonic())
        store.set("k", "v")
        sent_s = time.monotonic()
        store.add("n", 1)
        return sent_s - 1, time.monotonic() - 1

    outcome = simulate(work, 2, nodes=2, faults=[f"cut node=1 since=0.5s until={1 + cut_s}s"]).raise_if_bad()
    assert outcome.results[1] == (0.0, pytest.approx(took_s))


def test_a_store_that_stays_out_of_reach_is_given_up() -> None:
    """Its clients raise after 924.6 s; one that connects, after its own time-out."""

    def work(rank: int) -> str:
        if rank == 1:
            time.sleep(1)
        store = dist.TCPStore("node0", 1234, None, rank == 0, timedelta(seconds=60), wait_for_workers=False)
        time.sleep(2000 if rank == 0 else 4)
        try:
            store.add("n", 1)
        except dist.DistNetworkError as error:
            return f"{error} {time.monotonic():g}"
        return ""

    connected = simulate(work, 2, nodes=2, faults=["cut node=1 since=2s"]).raise_if_bad()
    assert connected.results[1] == "Connection timed out 929.6"
    outcome = simulate(work, 2, nodes=2, faults=["cut node=1"])
    assert "The client socket has timed out after 60000ms" in outcome.ranks[1].error
    assert outcome.ranks[1].end_s == 61.0
    assert "the fault [cut node=1] struck rank 1 at 1 s" in outcome.findings[0].cause


def test_a_time_out_strikes_during_a_cut() -> None:
    """gloo's group time-out is shorter than the cut."""

    def work(rank: int) -> str:
        dist.init_process_group("gloo", timeout=timedelta(seconds=10))
        time.sleep(1)
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            return str(error)
        return "went through"

    outcome = simulate(work, 2, nodes=2, faults=["cut node=1 since=0.5s until=60s"])
    assert outcome.results[0] == "[gloo] Timed out waiting 10000ms for recv operation to complete"


# -- liveness ----------------------------------------------------------------------------------------------------------


def test_faults_stop_and_progress_follows() -> None:
    """The cut heals, a missing rank comes, a slow one is quick again, a kill is too late."""
    faults = ["cut node=1", "missing rank=3", "slow rank=1 by=1s", "kill rank=0 at=31s"]
    outcome = under(*faults, nodes=2, faults_stop_at_s=30).raise_if_bad()
    assert outcome.results == dict.fromkeys(range(4), 256.0)
    assert outcome.ranks[3].start_s == 30.0
    block = faults_block(outcome)
    assert block[0] == "faults injected (until 30 s):"
    assert block[-1] == "    never struck: faults ended at 30 s"


def test_a_deadlock_after_faults_had_ended_says_so() -> None:
    """Nobody is cut off any more, and yet nothing moves: the dead rank is gone for good."""
    outcome = under("kill rank=2 at=1.2s", "slow rank=1 by=2s until=9s", args=("nccl",), faults_stop_at_s=3)
    (finding,) = outcome.findings
    assert finding.kind == "deadlock"
    assert finding.cause.endswith("faults had ended at 3 s, and no progress followed")


def test_retries_without_end_are_a_livelock_once_faults_have_ended() -> None:
    """Each try sets a key, so the run is never idle; but nothing completes, and no rank ends."""

    def work(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        tries = 0
        while not store.check(["ready"]):
            store.set(f"try {tries % 5} of {rank}", "now")
            tries += 1
            time.sleep(1)

    outcome = simulate(work, 2, faults=["slow rank=1 by=1s"], faults_stop_at_s=30)
    (finding,) = outcome.findings
    assert finding.kind == "livelock"
    assert finding.title.startswith("nothing got done from 30 s to 630")
    assert finding.cause.endswith("faults had ended at 30 s, and no progress followed")


# -- the same bytes ----------------------------------------------------------------------------------------------------

MANY = (
    "slow rank=any by=20ms chance=0.5", "skew rank=1 by=3s drift=50ppm", "store-loss times=1 chance=0.3",
    "cut node=1 since=1.1s until=3s", "kill rank=any at=all_reduce#4", "late rank=2 by=0.25s",
)  # fmt: skip


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_the_same_seed_gives_the_same_bytes(carrier: str) -> None:
    """Report, trace and data of a run with six faults, five times over."""

    def run() -> tuple[str, str, str]:
        outcome = under(*MANY, nodes=2, seed=5, carrier=carrier)
        return outcome.report(), outcome.trace.to_text(), str(outcome.to_dict())

    assert len({run() for _ in range(5)}) == 1


def test_without_faults_nothing_of_them_is_said() -> None:
    """No block, no key."""
    outcome = under()
    assert "faults injected" not in outcome.report()
    assert not any(event.kind == "fault" for event in outcome.trace)
    assert "faults" not in outcome.to_dict()


def test_the_data_has_what_came_of_each_fault() -> None:
    """For machines."""
    outcome = under("kill rank=2 at=all_reduce#3", "kill rank=1 at=send#1", args=("nccl",))
    struck, never = outcome.to_dict()["faults"]
    assert struck == {
        "fault": "kill rank=2 at=all_reduce#3",
        "strikes": 1,
        "ranks": [2],
        "first": {"rank": 2, "time_s": 1.5, "doing": "killed in all_reduce#3, its call#5"},
        "spent_s": 0.0,
        "why_not": "",
    }
    assert (never["strikes"], never["first"]) == (0, None)


def test_a_fault_may_be_a_function_of_ones_own() -> None:
    """The protocol is one call with an injection."""

    def unplug(injection: Injection) -> None:
        injection.at_time(1.2, lambda: injection.kill(1))

    outcome = simulate(summing, 2, faults=[unplug])
    assert outcome.ranks[1].status == "killed"
    assert faults_block(outcome)[1] == "  unplug"


def test_the_sample_in_the_reference_runs() -> None:
    """Its assert counts."""
    text = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    (sample,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    exec(compile(sample, "reference.md", "exec", dont_inherit=True), {})


def test_threads_of_a_killed_rank_stop_too() -> None:
    """Its heart-beat ends with it, and others see that."""

    def work(rank: int) -> int:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)

        def beat() -> None:
            while True:
                store.add(f"beats of {rank}", 1)
                time.sleep(1)

        threading.Thread(target=beat, daemon=True).start()
        time.sleep(10.5)
        return int(store.get("beats of 1"))

    outcome = simulate(work, 2, faults=["kill rank=1 at=4.2s"]).raise_if_bad()
    assert outcome.results == {0: 5}


def test_a_time_out_of_a_store_that_a_rank_dies_of_is_never_silent() -> None:
    """Also where something else was still to happen when it struck: here, another rank's sleep."""

    def work(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0, timeout=timedelta(seconds=30), wait_for_workers=False)
        if rank == 0:
            time.sleep(40)
        else:
            store.get("k")

    outcome = simulate(work, 2)
    assert outcome.verdict == "exception"
    assert "DistStoreError" in outcome.findings[0].title


@pytest.mark.parametrize("moment", ["all_reduce#1", "create#1", "call#1", "store#1"])
def test_who_is_killed_in_a_call_starts_again(moment: str) -> None:
    """On threads: the new process's thread is started from within the dying one."""
    outcome = under(f"kill rank=1 at={moment} restart=1s", ranks=2)
    struck = outcome.faults[0].first
    assert struck is not None
    assert outcome.ranks[1].start_s == struck.time_s + 1
    assert outcome.end.name in ("FINISHED", "QUIESCENT")
    assert [event.rank for event in outcome.trace if event.kind == "start"] == [0, 1, 1]


def test_a_cause_does_not_name_a_fault_that_cannot_be_behind_it() -> None:
    """A rank skips a barrier, and another one only comes late; a key that nobody sets, and others are delayed."""

    def skips(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank != 2:
            dist.barrier()

    neutral = "faults had struck before it; a run without them tells whether they matter"
    (finding,) = simulate(skips, 3, faults=["late rank=0 by=1s"]).findings
    assert finding.cause == f"rank 2 has ended without entering this barrier; {neutral}"

    def unset(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.distributed_c10d._get_default_store().get("never")

    for finding in simulate(unset, 2, faults=["store-delay by=1s"]).findings:
        assert finding.cause.endswith(f"'default_pg/0//never'; {neutral}")


def test_a_cause_names_who_may_have_set_the_key() -> None:
    """A rank that was killed before it did."""

    def work(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0, wait_for_workers=False)
        if rank == 0:
            store.get("k")
        else:
            time.sleep(2)
            store.set("k", "v")

    (finding,) = simulate(work, 2, faults=["kill rank=1 at=1s", "slow rank=0 by=1s"]).findings
    assert "; the fault [kill rank=1 at=1s] struck rank 1 at 1 s: killed while in time.sleep(2)" in finding.cause
    assert "slow" not in finding.cause
    (finding,) = simulate(work, 2, faults=["store-loss times=16 op=set"]).findings
    assert "; the fault [store-loss times=16 op=set] struck rank 1 at 2 s: lost store.set('k')" in finding.cause


def test_a_clock_that_drifts_strikes_in_a_sleep() -> None:
    """The rank never looks at it."""
    outcome = simulate(lambda rank: time.sleep(10), 2, faults=["skew rank=1 drift=1000000ppm"])
    assert outcome.ranks[1].end_s == 5.0
    assert faults_block(outcome)[2].startswith("    struck rank 1 at 0 s: its clock is off")


def test_until_ends_a_run_on_both_carriers() -> None:
    """What was found by then counts; a deadlock that comes before is found as ever."""

    def work(rank: int) -> None:
        while True:
            time.sleep(1)

    for carrier in ("thread", "greenlet"):
        outcome = simulate(work, 2, until_s=7.5, carrier=carrier)
        assert (outcome.verdict, outcome.virtual_s, outcome.end.name) == ("ok", 7.5, "UNTIL")
        assert [(side.ranks, side.doing) for side in outcome.standing] == [((0, 1), "waits in time.sleep(1)")]
    assert under(until_s=100).raise_if_bad().standing == ()
    assert under("missing rank=3", until_s=100).verdict == "deadlock"
