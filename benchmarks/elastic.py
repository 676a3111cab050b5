"""How long elastic runs take under simulation.

    python benchmarks/elastic.py [--primaries 128,1024] [--joiners 64] [--tp 64,8] [--hours 1] [--json FILE]

(a) a scale-up: ranks are brought up, serve, and take a cohort in by the whole life cycle of the reference
    implementation (registration, groups of the cohort, `join_group`, activation in WORLD, data plane, sync, commit);
(b) an hour of waiting: elastic ranks that serve nothing and poll now and then, so that Mooncake's heart-beats are all
    that goes on. Virtual seconds for each wall second.

Each figure is from one run, in wall time and in CPU time of the process, which other work on the machine disturbs
least.
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

from refimpl.distributed import BootstrapArgs, ElasticMember, ParallelLayout, Patience, Role, bring_up, join_deployment
from simulator import Cluster, Outcome

JOIN_AT_S = 1.0
STEP_S = 0.5
IDLE_RANKS, IDLE_STEP_S = 4, 60.0
TARGET_SCALE_UP_S, TARGET_RATIO = 30, 60
"""What we aim at: wall seconds of 1,024 + 64 ranks, and virtual seconds for each wall second."""
PATIENCE = Patience(answer_s=600.0, peers_s=600.0, step_s=600.0)


def args_of(rank: int, first: int, ranks: int, capacity: int, tp: int) -> BootstrapArgs:
    """Of one rank of a cohort: tp ranks that share the experts, and as many copies of that as it takes."""
    return BootstrapArgs(
        layout=ParallelLayout(tp=tp, moe_ep=tp, replicas=ranks // tp),
        cohort_rank=rank - first,
        backend="mooncake",
        max_world_size=capacity,
        role=Role.SCALE_JOINER if first else Role.LAUNCH,
        rank_offset=first,
        solo_groups=False,
    )


def serve(rank: int, primaries: int, capacity: int, tp: int) -> int:
    """A rank of the launch."""
    args = args_of(rank, 0, primaries, capacity, tp)
    return until_grown(ElasticMember(bring_up(args), args, patience=PATIENCE))


def join(rank: int, primaries: int, joiners: int, capacity: int, tp: int) -> int:
    """A rank of the later cohort."""
    args = args_of(rank, primaries, joiners, capacity, tp)
    return until_grown(join_deployment(args, launch_id="one", patience=PATIENCE))


def until_grown(member: ElasticMember) -> int:
    """Steps until the cohort is in, then one more. Returns: how many ranks met in that."""
    while member.deployment.generation == 0:
        dist.all_reduce(torch.ones(1))
        time.sleep(STEP_S)
        member.poll()
    met = torch.ones(1)
    dist.all_reduce(met)
    return int(met.item())


def idle(rank: int, steps: int) -> None:
    """A rank that has nothing to do."""
    layout = ParallelLayout(tp=IDLE_RANKS, moe_ep=IDLE_RANKS)
    args = BootstrapArgs(layout=layout, cohort_rank=rank, backend="mooncake", max_world_size=8)
    member = ElasticMember(bring_up(args), args)
    for _ in range(steps):
        time.sleep(IDLE_STEP_S)
        member.poll()


def scale_up(primaries: int, joiners: int, tp: int) -> dict[str, Any]:
    """One row of (a)."""
    capacity = primaries + joiners
    cluster = Cluster(mooncake_ranks_max=max(64, capacity))
    cluster.launch(serve, ranks=primaries, args=(primaries, capacity, tp))
    cluster.join(join, ranks=joiners, rank_offset=primaries, args=(primaries, joiners, capacity, tp), at_s=JOIN_AT_S)
    outcome, row = timed(cluster.run)
    assert set(outcome.results.values()) == {capacity}, outcome.report()
    layout = args_of(0, 0, primaries, capacity, tp).layout
    lists = [ranks for name in layout.created() for ranks in layout.rank_lists(name) if len(ranks) > 1]
    calls = 2 * len(lists) + 2
    return {"primaries": primaries, "joiners": joiners, "tp": tp, "calls": calls, **row, "target_s": TARGET_SCALE_UP_S}


def waiting(hours: float) -> dict[str, Any]:
    """(b)."""
    steps = int(3600 * hours / IDLE_STEP_S)
    outcome, row = timed(Cluster().launch(idle, ranks=IDLE_RANKS, args=(steps,)).run)
    ratio = outcome.raise_if_bad().virtual_s / row["wall_s"]
    return {"ranks": IDLE_RANKS, "virtual_s": outcome.virtual_s, **row, "ratio": ratio, "target": TARGET_RATIO}


def timed(run: Callable[[], Outcome]) -> tuple[Outcome, dict[str, float]]:
    """What came of it, and seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = run()
    return outcome, {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


HEAD = f"{'primaries':>10} {'joiners':>8} {'tp':>4} {'new_group calls':>16} {'wall s':>8} {'CPU s':>8} {'aim':>5}"


def line(row: dict[str, Any]) -> str:
    """One row of (a) for people."""
    return (
        f"{row['primaries']:>10} {row['joiners']:>8} {row['tp']:>4} {row['calls']:>16} {row['wall_s']:>8.1f} "
        f"{row['cpu_s']:>8.1f} {row['target_s']:>5}"
    )


def main() -> None:
    """Print the tables, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--primaries", default="128,1024", help="ranks of the launch, multiples of tp")
    parser.add_argument("--joiners", type=int, default=64, help="ranks that join, a multiple of tp")
    parser.add_argument("--tp", default="64,8", help="ranks of one copy of the model")
    parser.add_argument("--hours", type=float, default=1.0, help="virtual hours of waiting")
    parser.add_argument("--json", help="write the figures to this file too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; scale-up\n{HEAD}", flush=True)
    rows = []
    for tp in map(int, args.tp.split(",")):
        for primaries in map(int, args.primaries.split(",")):
            rows.append(scale_up(primaries, args.joiners, tp))
            print(line(rows[-1]), flush=True)
    idle_row = waiting(args.hours)
    print(
        f"waiting: {idle_row['virtual_s']:.0f} virtual s of {IDLE_RANKS} ranks in {idle_row['wall_s']:.1f} s wall, "
        f"{idle_row['cpu_s']:.1f} s CPU: {idle_row['ratio']:.0f}:1 (aim {TARGET_RATIO}:1)"
    )
    document = json.dumps({"torch": torch.__version__, "scale_up": rows, "waiting": idle_row}, indent=2)
    if args.json:
        Path(args.json).write_text(document + "\n")
    print(document)


if __name__ == "__main__":
    main()
