"""Of many waits, the one that explains the others comes first; sends and receives that would fit are one fault."""

from __future__ import annotations

import torch
import torch.distributed as dist

from simulator import Finding, simulate


def ones() -> torch.Tensor:
    return torch.ones(1)


def findings(program: object, ranks: int) -> list[Finding]:
    """What is said of a program; all of it must be deadlocks."""
    outcome = simulate(program, ranks)  # type: ignore[arg-type]
    assert outcome.verdict == "deadlock", outcome.report()
    return [finding for finding in outcome.findings if finding.kind == "deadlock"]


def test_the_end_of_a_chain_of_waits_comes_first() -> None:
    """Ranks 0 and 1 wait in a barrier for rank 2, which waits for rank 3, which has ended."""

    def chain(rank: int) -> None:
        dist.init_process_group("gloo")
        group = dist.new_group([0, 1, 2])
        if rank == 2:
            dist.recv(ones(), 3)
        if rank != 3:
            dist.barrier(group=group)

    (finding,) = findings(chain, 4)
    assert (finding.title, finding.waiting, finding.missing) == (
        "recv from rank 3 on group 'WORLD' cannot complete",
        (2,),
        (3,),
    )
    assert finding.cause == "rank 3 has ended without a send that matches"
    assert finding.ranks("also waiting") == (0, 1)


def test_a_rank_that_has_ended_counts_more_than_a_cycle() -> None:
    """Rank 3 will never come to the barrier; that rank 2 waits for rank 0 is not what has to change first."""

    def early(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 2:
            dist.recv(ones(), 0)
        if rank != 3:
            dist.barrier()

    (finding,) = findings(early, 4)
    assert (finding.waiting, finding.missing) == ((0, 1), (2, 3))
    assert finding.cause == "rank 3 has ended without entering this barrier"


def test_who_would_set_the_key_is_named_where_it_is_held_up() -> None:
    """The key is set after a collective that the others enter after the key."""

    def late(rank: int) -> None:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            dist.all_reduce(ones())
            store.set("go", "1")
        else:
            store.wait(["go"])
            dist.all_reduce(ones())

    (finding,) = findings(late, 3)
    assert (finding.waiting, finding.missing) == ((1,), (0, 2))
    assert finding.cause.endswith("; no rank has set 'default_pg/0//go', and rank 1 is held up here")
    assert finding.remedy == "set the key before this all_reduce, or enter it before the wait for the key"


def test_a_skewed_name_explains_collectives_that_never_meet() -> None:
    """On nccl a group is made without waiting, so its skewed name shows in the first collective only."""

    def skewed(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank != 1:
            dist.new_group([0, 2])
        dist.all_reduce(ones(), group=dist.new_group([0, 1, 2]))

    finding = findings(skewed, 3)[0]
    assert (finding.waiting, finding.missing) == ((0, 2), (1,))
    assert finding.cause.startswith("the ranks hold different names for the group [0, 1, 2]: '#1' on rank 1, ")
    assert finding.remedy == "let all ranks make the same new_group calls in the same order, members or not"


def test_two_groups_of_one_list_in_opposite_order_are_a_cycle() -> None:
    """The same list twice is no skew, where all ranks make the same calls."""

    def crossed(rank: int) -> None:
        dist.init_process_group("gloo")
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        order = [first, second] if rank == 0 else [second, first]
        for group in order:
            dist.all_reduce(ones(), group=group)

    (finding,) = findings(crossed, 2)
    assert finding.cause.startswith("a cycle: rank 0 in all_reduce on group '#1' seq 0 waits for rank 1; ")


def test_a_send_and_a_receive_that_would_fit_are_one_fault() -> None:
    """Rank 0 sends to rank 1 what rank 3 expects of rank 2; ranks 1 and 2 have ended."""

    def astray(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 0:
            dist.send(ones(), 1)
        if rank == 3:
            dist.recv(ones(), 2)

    (finding,) = findings(astray, 4)
    assert (finding.waiting, finding.missing) == ((0, 3), (1, 2))
    assert finding.cause == (
        "rank 0 sends to rank 1; rank 3 receives from rank 2; ranks 1, 2 ended without answering; a send here and a "
        "receive would fit each other, so the number of a peer is wrong on one side"
    )


def test_two_sends_and_tags_that_differ_stay_apart() -> None:
    """Nothing joins two sends, nor a send and a receive whose tags differ."""

    def two_sends(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank in (0, 3):
            dist.send(ones(), 1 if rank == 0 else 2)

    def two_tags(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank == 0:
            dist.send(ones(), 1, tag=1)
        if rank == 3:
            dist.recv(ones(), 2, tag=2)

    assert len(findings(two_sends, 4)) == 2
    assert len(findings(two_tags, 4)) == 2
