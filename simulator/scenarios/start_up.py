"""An expert-parallel start over Mooncake on one node, where the all-gatherer's topology probe must not run."""

from __future__ import annotations

from typing import Any

import torch

from refimpl.distributed import BootstrapArgs, MultimemAllGatherer, ParallelLayout, bring_up, get_tp_group
from simulator.cluster import Cluster
from simulator.outcome import Outcome

RANKS = 4


def start(rank: int, guard: bool, nodes: int) -> list[float]:
    """One rank: groups, the gatherer, one gather of a [1, 1] slice."""
    layout = ParallelLayout(tp=RANKS, moe_ep=RANKS)
    bring_up(BootstrapArgs(layout=layout, cohort_rank=rank, backend="mooncake", max_world_size=RANKS))
    gather = MultimemAllGatherer(get_tp_group(), max_tokens=16, nnodes=lambda: nodes, guard=guard)
    gathered: list[float] = gather(torch.full((1, 1), float(rank)))[0].tolist()
    return gathered


def start_up(guard: bool = True, nodes: int = 1, **options: Any) -> Outcome:
    """Run the start-up with or without the guard, on `nodes` nodes."""
    return Cluster(nodes=nodes, **options).launch(start, ranks=RANKS, args=(guard, nodes)).run()
