"""How many schedules a second one core explores.

    python benchmarks/explore.py [--schedules 300] [--json FILE]

Programs of 4 ranks with 50 operations in all, 12 or 13 for each rank, start of the group included:

    keys         store.set and store.get, no process group
    messages     isend and irecv in a ring
    collectives  all_reduce of 4 elements
    long         50 all_reduces on each rank, so 200 calls

Each is run under schedules of `pct`, in one process, one after the other, with each carrier. A row is the fastest of
five rounds, in CPU time of the process, which other work on the machine disturbs least; wall time stands beside it.
`bare` is the same program on torch's own `fake` backend, one rank after the other, where nothing waits and no data
moves: how often a second torch's Python layer could be run through at best. The simulator runs that layer unmodified.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from simulator.engine.carrier import CARRIERS
from simulator.exploration.program import OnRanks
from simulator.exploration.recipes import Given, Pct
from simulator.exploration.trial import Runner, on_stage

RANKS, CALLS = 4, 50
ROUNDS = 5
TARGETS = {"thread": 200, "greenlet": 1_000}
"""Schedules a second and core that we aim at."""


Start = Callable[[int], None]
"""Makes the default group of a rank."""


def share(rank: int) -> int:
    """How many of the calls a rank makes."""
    return CALLS // RANKS + (rank < CALLS % RANKS)


def _bare_start(rank: int) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)


def keys(rank: int) -> None:
    """Half of the calls set a key, the others get one of the neighbour's."""
    store = dist.TCPStore("node0", 29500, RANKS, rank == 0, wait_for_workers=False)
    for call in range(share(rank) // 2):
        store.set(f"{rank}/{call}", "value")
        store.get(f"{(rank + 1) % RANKS}/{call}")


def _start(rank: int) -> None:
    dist.init_process_group("gloo")


def messages(rank: int, start: Start = _start) -> None:
    """Each call is half of a message to the right."""
    start(rank)
    for _ in range(share(rank) // 2):
        sent = dist.isend(torch.ones(4), (rank + 1) % RANKS)
        dist.irecv(torch.empty(4), (rank - 1) % RANKS).wait()
        sent.wait()


def collectives(rank: int, start: Start = _start) -> None:
    """As many as each rank has calls for."""
    start(rank)
    total = torch.ones(4)
    for _ in range(CALLS // RANKS):
        dist.all_reduce(total)


def long(rank: int, start: Start = _start) -> None:
    """50 collectives."""
    start(rank)
    total = torch.ones(4)
    for _ in range(CALLS):
        dist.all_reduce(total)


WITH_GROUPS: tuple[Callable[[int, Start], None], ...] = (messages, collectives, long)
PROGRAMS: tuple[Callable[[int], None], ...] = (keys, messages, collectives, long)


def measure(program: Callable[[int], None], carrier: str, schedules: int) -> dict[str, Any]:
    """One row."""
    with on_stage(OnRanks(program, RANKS, (), {"carrier": carrier})) as runner:
        first = runner.trial(0, Given())
        assert first.ok, first.title
        rounds = [_round(runner, first.tasks, first.operations, schedules, number) for number in range(ROUNDS)]
    cpu_s, wall_s = min(cpu for cpu, _ in rounds), min(wall for _, wall in rounds)
    return {
        "program": program.__name__,
        "carrier": carrier,
        "operations": first.operations,
        "per_cpu_second": schedules / cpu_s,
        "per_wall_second": schedules / wall_s,
        "target": TARGETS[carrier],
    }


def bare(program: Callable[[int, Start], None], times: int) -> dict[str, Any]:
    """The row of a program on torch's fake backend."""
    rounds = [_bare_round(program, times) for _ in range(ROUNDS)]
    cpu_s, wall_s = min(cpu for cpu, _ in rounds), min(wall for _, wall in rounds)
    return {
        "program": program.__name__,
        "carrier": "bare",
        "per_cpu_second": times / cpu_s,
        "per_wall_second": times / wall_s,
        "target": None,
    }


def _bare_round(program: Callable[[int, Start], None], times: int) -> tuple[float, float]:
    """CPU and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        for rank in range(RANKS):
            program(rank, _bare_start)
            dist.destroy_process_group()
    return time.process_time() - cpu, time.perf_counter() - wall


def _round(runner: Runner, tasks: tuple[str, ...], operations: int, schedules: int, number: int) -> tuple[float, float]:
    """CPU and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    for schedule in range(schedules):
        runner.trial(schedule, Pct(f"{number} {schedule}", tasks, operations, 3))
    return time.process_time() - cpu, time.perf_counter() - wall


HEAD = f"{'program':>12} {'carrier':>9} {'schedules/s of CPU':>19} {'of wall':>9} {'target':>7}"


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    return (
        f"{row['program']:>12} {row['carrier']:>9} {row['per_cpu_second']:>19.0f} {row['per_wall_second']:>9.0f} "
        f"{row['target'] or '-':>7}"
    )


def main() -> None:
    """Print the table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100, help="in each round")
    parser.add_argument("--json", help="write the figures to this file too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; {RANKS} ranks, {CALLS} operations\n{HEAD}", flush=True)
    rows = []
    for with_group in WITH_GROUPS:
        rows.append(bare(with_group, args.schedules))
        print(line(rows[-1]), flush=True)
    for carrier in CARRIERS:
        for program in PROGRAMS:
            rows.append(measure(program, carrier, args.schedules))
            print(line(rows[-1]), flush=True)
    document = json.dumps({"torch": torch.__version__, "explore": rows}, indent=2)
    if args.json:
        Path(args.json).write_text(document + "\n")
    print(document)


if __name__ == "__main__":
    main()
