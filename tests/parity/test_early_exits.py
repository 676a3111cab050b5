"""Which ranks leave a rooted collective before all have come: as predicted, so on real gloo."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.early_exits import may_leave
from tests.parity.program import Program, module_text
from tests.parity.real_ranks import RealRanks, real_ranks
from tests.parity.real_worker import Job

CALLS = {
    "broadcast": "dist.broadcast(x, src=ROOT)",
    "reduce": "dist.reduce(x, dst=ROOT)",
    "gather": "dist.gather(x, [torch.zeros(COUNT) for _ in range(world_size)] if rank == ROOT else None, dst=ROOT)",
    "scatter": "dist.scatter(x, [torch.ones(COUNT) for _ in range(world_size)] if rank == ROOT else None, src=ROOT)",
}
MAIN = """
def main(rank, world_size):
    dist.init_process_group("gloo")
    x = torch.ones(COUNT)
    if rank in HERE:
        CALL
    return rank
"""
CASES = [
    # op, ranks, root, elements, who is there, who leaves
    ("gather", 4, 0, 1, (0, 2), [2]),
    ("gather", 4, 0, 1, (1, 2, 3), []),
    ("scatter", 3, 1, 2, (0, 1), [0]),
    ("scatter", 3, 1, 2, (0, 2), []),
    ("broadcast", 4, 0, 1, (0, 1, 2), [0, 2]),
    ("broadcast", 4, 0, 1, (0, 1, 3), [1, 3]),
    ("broadcast", 4, 2, 1, (2, 3, 0), [0, 2]),
    ("broadcast", 6, 0, 1, (0, 1, 2, 3, 5), [1, 2, 3, 5]),
    ("reduce", 3, 1, 1, (1, 2), [2]),
    ("reduce", 3, 0, 3, (0, 2), []),
    ("reduce", 4, 0, 1, (1, 2, 3), [2, 3]),
    ("reduce", 4, 0, 8, (1, 2, 3), []),
]
QUICK_S, PATIENT_S = 1.5, 10.0


def program(op: str, size: int, root: int, count: int, here: tuple[int, ...]) -> Program:
    """Some ranks call a collective, the others return at once."""
    text = MAIN.replace("CALL", CALLS[op]).replace("ROOT", str(root)).replace("COUNT", str(count))
    name = "_".join(map(str, (op, size, root, count, *here)))
    return Program(name, module_text("Early exits.", text.replace("HERE", repr(here))), size)


@pytest.mark.parametrize(("op", "size", "root", "count", "here", "leave"), CASES)
def test_who_may_leave(op: str, size: int, root: int, count: int, here: tuple[int, ...], leave: list[int]) -> None:
    """By the messages of gloo's algorithms."""
    assert may_leave(op, root, size, here, length=count) == leave


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("size", range(2, 9))
def test_all_leave_once_all_are_there(op: str, size: int) -> None:
    """Whatever the root and the number of elements."""
    for root in range(size):
        for count in (0, 1, size, 5 * size + 1, 1 << 20):
            assert may_leave(op, root, size, range(size), length=count) == list(range(size))


def test_nobody_leaves_a_symmetric_collective_early() -> None:
    """Each rank needs data of all."""
    assert may_leave("all_reduce", 0, 3, [0, 1]) == []


@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore")
def test_real_gloo_lets_the_same_ranks_leave() -> None:
    """The same cases; who seems to hang gets more time."""
    wanted = {program(*case[:5]).name: case for case in CASES}
    with real_ranks(8) as ranks:
        found = _left(ranks, list(wanted.values()), QUICK_S)
        doubtful = [wanted[name] for name, left in found.items() if left != wanted[name][5]]
        found.update(_left(ranks, doubtful, PATIENT_S))
    assert found == {name: case[5] for name, case in wanted.items()}


def _left(ranks: RealRanks, cases: list[Any], deadline_s: float) -> dict[str, list[int]]:
    here = {program(*case[:5]).name: case[4] for case in cases}
    jobs = [Job(program(*case[:5]), deadline_s) for case in cases]
    return {
        job.program.name: sorted(rank for rank in here[job.program.name] if ends[rank].status == "ok")
        for job, ends in ranks.run(jobs)
    }
