"""Groups that some members create with local synchronisation and others without."""

from __future__ import annotations

import torch
import torch.distributed as dist

from simulator import Verdict, simulate


def test_members_that_differ_in_local_synchronisation_are_found() -> None:
    """They look for each other under different names; the report names both lines."""

    def start(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.new_group([0, 1], group_desc="pair", use_local_synchronization=rank == 0)

    outcome = simulate(start, 2)
    first = outcome.findings[0]
    assert (first.kind, first.level, first.group) == (Verdict.MISMATCH, "contract", "pair")
    assert first.title == ("group 'pair' [0, 1] is created with use_local_synchronization by rank 0, without by rank 1")
    assert [side.ranks for side in first.sides] == [(0,), (1,)]


def test_a_description_that_is_used_twice_in_both_modes_is_no_difference() -> None:
    """Members make a group among themselves, and later all ranks make one of the same list and description."""

    def start(rank: int) -> float:
        dist.init_process_group("gloo")
        if rank < 2:
            pair = dist.new_group([0, 1], group_desc="pair", use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=pair)
        again = dist.new_group([0, 1], group_desc="pair")
        total = torch.ones(1)
        if rank < 2:
            dist.all_reduce(total, group=again)
        return total.item()

    outcome = simulate(start, 4)
    assert outcome.findings == ()
    assert outcome.results == {0: 2.0, 1: 2.0, 2: 1.0, 3: 1.0}
