"""Asynchronous calls: tensors that are used too early, handles that nobody waits for, threads on one group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from simulator import Outcome, Verdict, simulate

Program = Callable[[int], object]
WRONG: list[tuple[Program, Verdict]] = []
RIGHT: list[Program] = []


def wrong(verdict: Verdict) -> Callable[[Program], Program]:
    """Collects a program that deserves `verdict`, at a line that ends in `# CULPRIT`."""

    def collect(program: Program) -> Program:
        WRONG.append((program, verdict))
        return program

    return collect


def right(program: Program) -> Program:
    """Collects a program without a fault."""
    RIGHT.append(program)
    return program


def start() -> None:
    dist.init_process_group("gloo", init_method="env://")


def reads_early(rank: int, victim: int) -> float:
    start()
    x = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    early = x.sum().item() if rank == victim else 0.0  # CULPRIT
    work.wait()
    return early


@wrong(Verdict.RACE)
def the_first_reads_early(rank: int) -> float:
    return reads_early(rank, 0)


@wrong(Verdict.RACE)
def the_last_reads_early(rank: int) -> float:
    """In this order the collective is over as soon as the last rank comes; it might not be."""
    return reads_early(rank, 1)


@right
def reads_after_the_wait(rank: int) -> float:
    start()
    x = torch.full((4,), rank + 1.0)
    before = x.sum().item()
    dist.all_reduce(x, async_op=True).wait()
    return before + x.sum().item()


@wrong(Verdict.RACE)
def writes_what_is_sent(rank: int) -> list[float]:
    start()
    x = torch.full((4,), rank + 1.0)
    if rank == 0:
        work = dist.isend(x, dst=1)
        x.zero_()  # CULPRIT
        work.wait()
    else:
        dist.recv(x, src=0)
    return x.tolist()


@right
def reads_what_is_sent(rank: int) -> float:
    """Both only read."""
    start()
    x = torch.full((4,), rank + 1.0)
    if rank == 0:
        work = dist.isend(x, dst=1)
        total = x.sum().item()
        work.wait()
        return total
    dist.recv(x, src=0)
    return x.sum().item()


@right
def a_reply_says_that_the_message_has_come(rank: int) -> list[float]:
    """The buffer is free once the receiver has answered, though nobody has waited yet."""
    start()
    x, y = torch.full((4,), rank + 1.0), torch.zeros(1)
    if rank == 0:
        work = dist.isend(x, dst=1)
        dist.recv(y, src=1)
        x.zero_()
        work.wait()
    else:
        dist.recv(x, src=0)
        dist.send(y, dst=0)
    return x.tolist()


@wrong(Verdict.RACE)
def two_receives_into_one_tensor(rank: int) -> list[float]:
    start()
    x = torch.zeros(4)
    if rank == 0:
        for value in (1.0, 2.0):
            dist.send(torch.full((4,), value), dst=1)
    else:
        works = [dist.irecv(x, src=0), dist.irecv(x, src=0)]  # CULPRIT
        for work in works:
            work.wait()
    return x.tolist()


@right
def two_receives_into_columns(rank: int) -> list[list[float]]:
    """The columns of a matrix lie between each other and do not overlap."""
    start()
    x = torch.zeros(4, 2)
    columns = [x[:, 0], x[:, 1]]
    works = [dist.all_reduce(column.contiguous(), async_op=True) for column in columns]
    columns[1].fill_(3.0)
    for work in works:
        work.wait()
    return x.tolist()


@wrong(Verdict.RACE)
def a_synchronous_call_on_a_tensor_in_flight(rank: int) -> list[float]:
    start()
    other = dist.new_group()
    x = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    dist.all_reduce(x, group=other)  # CULPRIT
    work.wait()
    return x.tolist()


@wrong(Verdict.RACE)
def another_thread_writes(rank: int) -> list[float]:
    start()
    x = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    thread = threading.Thread(target=lambda: x.fill_(7.0))  # CULPRIT
    thread.start()
    thread.join()
    work.wait()
    return x.tolist()


@wrong(Verdict.LEAK)
def nobody_waits(rank: int) -> None:
    start()
    dist.all_reduce(torch.ones(4), async_op=True)  # CULPRIT
    dist.barrier()


@wrong(Verdict.LEAK)
def a_message_that_nobody_receives(rank: int) -> None:
    start()
    if rank == 0:
        dist.isend(torch.ones(4), dst=1)  # CULPRIT
    dist.barrier()


@wrong(Verdict.LEAK)
def destroyed_in_flight(rank: int) -> None:
    start()
    group = dist.new_group()
    if rank == 0:
        dist.irecv(torch.ones(4), src=1, group=group)  # CULPRIT
    dist.destroy_process_group()


@wrong(Verdict.RACE)
def another_handle_is_waited_for(rank: int) -> list[float]:
    """The other call may be over as well; nobody has asked."""
    start()
    x, y = torch.ones(4), torch.ones(4)
    first = dist.all_reduce(x, async_op=True)
    dist.all_reduce(y, async_op=True)
    first.wait()
    return (x + y).tolist()  # CULPRIT


@right
def a_query_that_says_yes_is_a_wait(rank: int) -> list[float]:
    start()
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    return x.tolist()


@right
def a_future_is_a_wait(rank: int) -> list[float]:
    start()
    x = torch.ones(4)
    dist.all_reduce(x, async_op=True).get_future().wait()
    return x.tolist()


@right
def batches_are_waited_for(rank: int) -> list[float]:
    start()
    x, y = torch.full((4,), float(rank)), torch.zeros(4)
    peer = 1 - rank
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]):
        work.wait()
    return y.tolist()


@wrong(Verdict.RACE)
def two_threads_at_once(rank: int) -> list[float]:
    start()
    x, y = torch.ones(1), torch.full((1,), 10.0)
    thread = threading.Thread(target=lambda: dist.all_reduce(y))  # CULPRIT
    thread.start()
    dist.all_reduce(x)  # CULPRIT
    thread.join()
    return [x.item(), y.item()]


@right
def two_threads_in_turn(rank: int) -> list[float]:
    start()
    first_is_over = threading.Event()
    x, y = torch.ones(1), torch.full((1,), 10.0)

    def first() -> None:
        dist.all_reduce(x)
        first_is_over.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_is_over.wait()
    dist.all_reduce(y)
    thread.join()
    return [x.item(), y.item()]


@right
def two_threads_on_two_groups(rank: int) -> list[float]:
    start()
    other = dist.new_group()
    x, y = torch.ones(1), torch.full((1,), 10.0)
    thread = threading.Thread(target=lambda: dist.all_reduce(y, group=other))
    thread.start()
    dist.all_reduce(x)
    thread.join()
    return [x.item(), y.item()]


def lines(outcome: Outcome) -> set[str]:
    """The lines that the findings show."""
    text = Path(__file__).read_text().splitlines()
    sites = [side.site for finding in outcome.findings for side in finding.sides]
    return {text[site.line - 1] for site in sites if site is not None and site.file == __file__}


@pytest.mark.parametrize(("program", "verdict"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_the_fault_is_found_at_its_line(program: Program, verdict: Verdict) -> None:
    """With the right word for it."""
    outcome = simulate(program, 2)
    assert outcome.verdict is verdict, outcome.report()
    assert any(line.endswith("# CULPRIT") for line in lines(outcome)), outcome.report()


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_are_left_alone(program: Program) -> None:
    """However suspicious they look."""
    outcome = simulate(program, 2)
    assert outcome.verdict is Verdict.OK and not outcome.findings, outcome.report()
