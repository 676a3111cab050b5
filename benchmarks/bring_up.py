"""How long a full bring-up of the reference implementation takes under simulation, beside what torch alone costs.

    python benchmarks/bring_up.py [--ranks 8,64,256,1024] [--json FILE]

(a) simulated bring-up against N times the bring-up of one rank on torch's own `fake` backend, in the same process, one
    after the other, in turn; (b) seconds to the verdict on the EP4 -> EP6 deadlock; (c) the same program as (a) on 8
    real gloo processes. Figures are as measured in one run on one machine, not thresholds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from refimpl.distributed import BootstrapArgs, ParallelLayout, bring_up, destroy_distributed_environment
from simulator import simulate
from simulator.scenarios.scale_up import scale_up

TP, PP = 8, 2
FAKE_SAMPLES = 8
REAL_RANKS = 8


def layout_of(ranks: int) -> ParallelLayout:
    """tp 8, ep 8, pp 2 (1 for 8 ranks), the rest 1; copies of it for more ranks."""
    pp = PP if ranks >= TP * PP else 1
    return ParallelLayout(tp=TP, moe_ep=TP, pp=pp, replicas=ranks // (TP * pp))


def start(rank: int, layout: ParallelLayout, solo: bool, backend: str = "gloo", init_method: str = "env://") -> int:
    """One rank's bring-up. Returns the number of groups that torch knows on this rank."""
    args = BootstrapArgs(layout=layout, cohort_rank=rank, backend=backend, solo_groups=solo, init_method=init_method)
    bring_up(args)
    return dist.get_pg_count()


def calls_per_rank(layout: ParallelLayout, solo: bool) -> int:
    """`new_group` calls that one rank makes: two a list, and two for WORLD."""
    lists = [r for name in layout.created() for r in layout.rank_lists(name) if solo or len(r) > 1]
    return 2 * len(lists) + 2


def simulated_s(layout: ParallelLayout, solo: bool) -> float:
    """Wall seconds of the simulated bring-up of all ranks."""
    begin = time.perf_counter()
    simulate(start, layout.world_size, args=(layout, solo)).raise_if_bad()
    return time.perf_counter() - begin


def fake_s(rank: int, layout: ParallelLayout, solo: bool) -> float:
    """Wall seconds of one rank's bring-up on torch's `fake` backend."""
    begin = time.perf_counter()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    bring_up(BootstrapArgs(layout=layout, cohort_rank=rank, backend="fake", solo_groups=solo))
    took = time.perf_counter() - begin
    destroy_distributed_environment()
    return took


def peak_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(ranks: int, solo: bool) -> dict[str, Any]:
    """One row of table (a)."""
    layout = layout_of(ranks)
    simulated_s(layout_of(TP), solo)  # both sides warm: the first run imports what it needs
    step = max(1, ranks // FAKE_SAMPLES)
    before = [fake_s(rank, layout, solo) for rank in range(0, ranks, 2 * step)]
    took_s = simulated_s(layout, solo)
    after = [fake_s(rank, layout, solo) for rank in range(step, ranks, 2 * step)]
    one_s = statistics.median(before + after)
    calls = calls_per_rank(layout, solo)
    return {
        "ranks": ranks,
        "new_group_calls_per_rank": calls,
        "simulated_s": took_s,
        "us_per_rank_and_group": 1e6 * took_s / ranks / calls,
        "one_rank_on_fake_s": one_s,
        "ratio": took_s / (ranks * one_s),
        "peak_mib": peak_mib(),
    }


def verdict_s() -> float:
    """Wall seconds from the call to the report of the EP4 -> EP6 deadlock."""
    begin = time.perf_counter()
    with redirect_stderr(StringIO()):  # the joiners' own tracebacks
        outcome = scale_up("before-repair")
    outcome.report()
    assert not outcome.ok
    return time.perf_counter() - begin


def real_gloo_s() -> float:
    """Wall seconds of the bring-up on real gloo processes, process start and imports not counted."""
    program = f"{Path(__file__)!s}"
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(REAL_RANKS)]
    done = subprocess.run(
        [*command, program, "--real-worker"], env=env, capture_output=True, text=True, timeout=300, check=True
    )
    return max(float(took) for took in re.findall(r"took (\d+\.\d+)", done.stdout))


def real_worker() -> None:
    """What each real process runs."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    start(int(os.environ["RANK"]), layout_of(REAL_RANKS), True)
    dist.barrier()
    print(f"took {time.perf_counter() - begin:.4f}", flush=True)
    dist.destroy_process_group()


def in_fresh_process(ranks: int, solo: bool) -> dict[str, Any]:
    """`measure` in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--one", str(ranks), *(["--solo"] if solo else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


COLUMNS = (
    ("ranks", 6, lambda row: f"{row['ranks']}"),
    ("calls/rank", 11, lambda row: f"{row['new_group_calls_per_rank']}"),
    ("simulated s", 12, lambda row: f"{row['simulated_s']:.3f}"),
    ("us/(rank*group)", 16, lambda row: f"{row['us_per_rank_and_group']:.2f}"),
    ("N x fake s", 11, lambda row: f"{row['ranks'] * row['one_rank_on_fake_s']:.3f}"),
    ("ratio", 6, lambda row: f"{row['ratio']:.2f}"),
    ("peak MiB", 9, lambda row: f"{row['peak_mib']:.0f}"),
)


def head() -> str:
    """The table's first line."""
    return " ".join(f"{name:>{width}}" for name, width, _ in COLUMNS)


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    return " ".join(f"{text(row):>{width}}" for _, width, text in COLUMNS)


def main() -> None:
    """Run the benchmarks that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,64,256,1024", help="numbers of ranks for (a)")
    parser.add_argument("--json", help="write the figures to this file too")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--solo", action="store_true", help="one-rank groups too, as the frameworks make them (slow)")
    parser.add_argument("--real-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.real_worker:
        real_worker()
    elif args.one is not None:
        print(json.dumps(measure(args.one, args.solo)))
    else:
        report([int(n) for n in args.ranks.split(",")], args.solo, args.json)


def report(ranks: list[int], solo: bool, path: str | None) -> None:
    """Print the table, and write JSON if asked to."""
    kind = "with" if solo else "without"
    print(f"torch {torch.__version__}; tp 8, ep 8, pp 2, rest 1; {kind} one-rank groups\n{head()}", flush=True)
    rows = []
    for number in ranks:
        rows.append(in_fresh_process(number, solo))
        print(line(rows[-1]), flush=True)
    verdict_s()
    verdicts = [verdict_s() for _ in range(5)]
    print(f"EP4 -> EP6 deadlock verdict: {min(verdicts):.3f} s to {max(verdicts):.3f} s (5 runs, torch imported)")
    real = real_gloo_s()
    print(f"{REAL_RANKS} real gloo processes, the same bring-up with one-rank groups: {real:.3f} s")
    document = json.dumps(
        {"torch": torch.__version__, "solo": solo, "bring_up": rows, "verdict_s": verdicts, "real_gloo_s": real},
        indent=2,
    )
    if path:
        Path(path).write_text(document + "\n")
    print(document)


if __name__ == "__main__":
    main()
