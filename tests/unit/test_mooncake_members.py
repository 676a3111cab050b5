"""Members of a Mooncake group leave, come late or come back: calls go on, and errors are in Mooncake's words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Cluster, Level, Outcome, Verdict, simulate

Call = Callable[[int], Any]


def _pieces(count: int) -> list[torch.Tensor]:
    return [torch.zeros(2) for _ in range(count)]


def _gather_all(rank: int) -> Any:
    out = _pieces(3)
    dist.all_gather(out, torch.full((2,), rank + 1.0))
    return [piece.tolist() for piece in out[:2]]


def _gather_one(rank: int) -> Any:
    out = torch.zeros(6)
    dist.all_gather_single(out, torch.full((2,), rank + 1.0))
    return out[:4].tolist()


def _scatter_sum(rank: int) -> Any:
    out = torch.zeros(2)
    dist.reduce_scatter_single(out, torch.full((6,), rank + 1.0))
    return out.tolist()


def _reduce_all(rank: int) -> Any:
    tensor = torch.full((2,), rank + 1.0)
    dist.all_reduce(tensor)
    return tensor.tolist()


def _broadcast(src: int) -> Call:
    def call(rank: int) -> Any:
        tensor = torch.full((2,), rank + 1.0)
        dist.broadcast(tensor, src)
        return tensor.tolist()

    return call


def _reduce(dst: int) -> Call:
    def call(rank: int) -> Any:
        tensor = torch.full((2,), rank + 1.0)
        dist.reduce(tensor, dst)
        return tensor.tolist()

    return call


def _all_to_all(rank: int) -> Any:
    out = _pieces(3)
    dist.all_to_all(out, [torch.full((2,), rank + 1.0) for _ in range(3)])
    return [piece.tolist() for piece in out[:2]]


def _gather(dst: int) -> Call:
    def call(rank: int) -> Any:
        out = _pieces(3) if rank == dst else None
        dist.gather(torch.full((2,), rank + 1.0), out, dst=dst)
        return [piece.tolist() for piece in out[:2]] if out else None

    return call


def _scatter(src: int) -> Call:
    def call(rank: int) -> Any:
        out = torch.zeros(2)
        dist.scatter(out, [torch.full((2,), 7.0)] * 3 if rank == src else None, src=src)
        return out.tolist()

    return call


def _barrier(rank: int) -> Any:
    dist.barrier()


_BOTH = [[1.0, 1.0], [2.0, 2.0]]
_INSIDE: dict[str, tuple[Call, list[Any]]] = {
    "all_gather": (_gather_all, [_BOTH] * 2),
    "all_gather_single": (_gather_one, [[1.0, 1.0, 2.0, 2.0]] * 2),
    "reduce_scatter_single": (_scatter_sum, [[3.0, 3.0]] * 2),
    "all_reduce": (_reduce_all, [[3.0, 3.0]] * 2),
    "broadcast from a member": (_broadcast(0), [[1.0, 1.0]] * 2),
    "broadcast from the one that left": (_broadcast(2), [[0.0, 0.0]] * 2),  # nobody wrote: what lay in the buffer
    "reduce to a member": (_reduce(1), [[1.0, 1.0], [3.0, 3.0]]),
    "reduce to the one that left": (_reduce(2), _BOTH),
    "all_to_all": (_all_to_all, [_BOTH] * 2),
    "gather": (_gather(0), [_BOTH, None]),
    "gather to the one that left": (_gather(2), [None, None]),
    "scatter": (_scatter(0), [[7.0, 7.0]] * 2),
    "scatter from the one that left": (_scatter(2), [[0.0, 0.0]] * 2),
    "barrier": (_barrier, [None, None]),
}


def leaves_while_others_wait(rank: int, name: str) -> Any:
    from mooncake import pg

    dist.init_process_group("mooncake-cpu")
    dist.barrier()
    if rank == 2:
        time.sleep(1)
        pg.deactivate_ranks(dist.group.WORLD, [2])
        return None
    result = _INSIDE[name][0](rank)
    return result, _reduce_all(rank)


@pytest.mark.parametrize("name", _INSIDE)
def test_a_member_that_leaves_lets_the_waiting_go_on(name: str) -> None:
    """The last rank takes itself out while the others wait: they go on with what the two of them have."""
    outcome = simulate(leaves_while_others_wait, 3, args=(name,))
    assert outcome.ok, outcome.report()
    assert [outcome.results[rank] for rank in range(2)] == [(each, [3.0, 3.0]) for each in _INSIDE[name][1]]


def grows_while_others_wait(rank: int, name: str) -> Any:
    from mooncake import pg

    joins = rank == 2
    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(3, joins))
    if joins:
        pg.join_group(dist.group.WORLD)
    elif rank == 0:
        while not pg.get_peer_state(dist.group.WORLD, [2])[0]:
            time.sleep(0.5)
        pg.recover_ranks(dist.group.WORLD, [2])
    else:
        name = f"{name} of two"
    return _GROWN[name](rank)


def _scatter_sum_of_two(rank: int) -> Any:
    out = torch.zeros(2)
    dist.reduce_scatter_single(out, torch.full((4,), rank + 1.0))
    return out.tolist()


def _gather_all_of_two(rank: int) -> Any:
    out = _pieces(2)
    dist.all_gather(out, torch.full((2,), rank + 1.0))
    return [piece.tolist() for piece in out[:2]]


_GROWN: dict[str, Call] = {
    "all_gather": _gather_all,
    "all_gather of two": _gather_all_of_two,
    "reduce_scatter": _scatter_sum,
    "reduce_scatter of two": _scatter_sum_of_two,
}


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_a_group_that_grows_under_a_call_of_the_smaller_one_does_not_fail(name: str) -> None:
    """Rank 1 calls with lists of two, and the third is admitted meanwhile: a race is told, and nothing breaks."""
    cluster = Cluster().launch(grows_while_others_wait, ranks=2, args=(name,))
    outcome = cluster.join(grows_while_others_wait, ranks=1, rank_offset=2, at_s=1.0, args=(name,)).run()
    assert Verdict.RACE in [finding.kind for finding in outcome.findings], outcome.report()
    assert set(outcome.results) == {0, 1, 2}


# -- groups that all have destroyed --------------------------------------------------------------------------------


def asks_after_destroy(rank: int) -> list[str]:
    from mooncake import pg

    dist.init_process_group("mooncake-cpu")
    group = dist.new_group([0, 1], backend="mooncake-cpu")
    dist.barrier()
    dist.destroy_process_group(group)
    dist.barrier()
    texts = []
    for call in (
        lambda: pg.get_peer_state(group, [0]),
        lambda: pg.join_group(group),
        lambda: pg.recover_ranks(group, [0]),
        lambda: pg.deactivate_ranks(group, [1]),
        lambda: pg.sync_after_failure(group),
    ):
        with pytest.raises(RuntimeError) as raised:
            call()
        texts.append(str(raised.value))
    return texts


def test_a_destroyed_group_answers_in_mooncakes_words() -> None:
    """Whatever is asked of it: it is shut down."""
    outcome = simulate(asks_after_destroy, 2)
    names = ("GetPeerState", "Join", "ActivateRanks", "DeactivateRanks", "SyncAfterFailure")
    expected = [f"mooncakePgComm{name} failed: invalid state: communicator is shut down" for name in names]
    assert outcome.ok and outcome.results == {0: expected, 1: expected}, outcome.report()


def _options(capacity: int, *, joins: bool) -> Any:
    from mooncake import pg

    return pg.MooncakeBackendOptions(capacity, joins)


def destroys(rank: int) -> None:
    dist.init_process_group("mooncake-cpu", pg_options=_options(4, joins=False))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(30)


def comes_late(rank: int) -> list[float]:
    dist.init_process_group("mooncake-cpu", pg_options=_options(4, joins=True))
    return [float(value) for value in _reduce_all(rank)]


def test_a_joiner_of_a_group_that_all_have_destroyed_runs_alone() -> None:
    """There is no extension target any more, and that is the finding."""
    outcome = Cluster().launch(destroys, ranks=2).join(comes_late, ranks=1, rank_offset=2, at_s=5).run()
    assert outcome.verdict is Verdict.WRONG_RANKS and "silently runs alone" in outcome.findings[0].title
    assert outcome.results[2] == [3.0, 3.0]


# -- those who come back -------------------------------------------------------------------------------------------


def loses_rank_1_early(rank: int) -> None:
    dist.init_process_group("mooncake-cpu")
    if rank == 1:
        os._exit(9)
    time.sleep(100)


def makes_its_own_group(rank: int, ranks: list[int]) -> float:
    dist.init_process_group("mooncake-cpu", pg_options=_options(2, joins=True))
    own, tensor = _options(len(ranks), joins=True), torch.ones(1)
    group = dist.new_group(ranks, backend="mooncake-cpu", pg_options=own, use_local_synchronization=True)
    dist.all_reduce(tensor, group=group)
    return float(tensor)


@pytest.mark.parametrize(("ranks", "alone"), [([1], False), ([0, 1], True)])
def test_a_group_of_one_is_alone_by_right(ranks: list[int], alone: bool) -> None:
    """A rank died before it made its groups; its successor has nothing to attach to, which matters from two on."""
    launch = Cluster().launch(loses_rank_1_early, ranks=2)
    outcome = launch.recover(makes_its_own_group, ranks=[1], at_s=50, args=(ranks,)).run()
    found = [finding.title for finding in outcome.findings if finding.kind is Verdict.WRONG_RANKS]
    assert any("silently runs alone" in title for title in found) == alone, outcome.report()
    assert outcome.results[1] == 1.0


def _admit(slots: list[int]) -> None:
    from mooncake import pg

    while not all(pg.get_peer_state(dist.group.WORLD, slots)):
        time.sleep(0.5)
    pg.recover_ranks(dist.group.WORLD, slots)


def serves(rank: int, lists: list[list[int]]) -> list[float]:
    """Two ranks grow to three; rank 1 is lost, and comes back."""
    dist.init_process_group("mooncake-cpu", pg_options=_options(4, joins=False))
    for ranks in lists:
        dist.new_group(ranks, backend="mooncake-cpu", group_desc=f"tp{len(ranks)}")
    _admit([2])
    time.sleep(1)
    if rank == 1:
        os._exit(9)
    time.sleep(60)
    _admit([1])
    return list(_reduce_all(rank))


def joins_in(rank: int) -> list[float]:
    from mooncake import pg

    dist.init_process_group("mooncake-cpu", pg_options=_options(4, joins=True))
    pg.join_group(dist.group.WORLD)
    time.sleep(61)
    _admit([1])
    return list(_reduce_all(rank))


def comes_back(rank: int, lists: list[list[int]]) -> list[float]:
    from mooncake import pg

    dist.init_process_group("mooncake-cpu", pg_options=_options(4, joins=True))
    for ranks in lists:
        own = _options(len(ranks), joins=True)
        dist.new_group(ranks, backend="mooncake-cpu", group_desc=f"tp{len(ranks)}", pg_options=own)
    pg.join_group(dist.group.WORLD)
    return list(_reduce_all(rank))


def _grown_and_recovered(first: list[list[int]], again: list[list[int]]) -> Outcome:
    cluster = Cluster().launch(serves, ranks=2, args=(first,)).join(joins_in, ranks=1, rank_offset=2, at_s=1)
    return cluster.recover(comes_back, ranks=[1], at_s=55, args=(again,)).run()


def test_a_recovered_rank_repeats_the_calls_of_the_launch() -> None:
    """The joiners of the world that has grown since have no part in them."""
    outcome = _grown_and_recovered([[0, 1], [0], [1]], [[0, 1], [0], [1]])
    assert outcome.ok, outcome.report()
    assert outcome.results == {rank: [6.0, 6.0] for rank in range(3)}


def test_a_recovered_rank_that_makes_a_call_of_its_own_breaks_the_contract() -> None:
    """Nobody has made that call, and nobody will."""
    outcome = _grown_and_recovered([[0, 1]], [[0, 1], [0, 2]])
    found = [finding for finding in outcome.findings if finding.level is Level.CONTRACT]
    assert [finding.kind for finding in found] == [Verdict.DEADLOCK], outcome.report()
    assert "ranks  " not in outcome.report()
