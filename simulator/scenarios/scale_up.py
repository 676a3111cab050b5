"""EP4 -> EP6 over Mooncake: four ranks serve, two join behind them (global ranks 4 and 5)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from refimpl.distributed import BootstrapArgs, CreationPlan, ParallelLayout, Role, bring_up, get_tp_group
from refimpl.distributed.contract import RulesName
from simulator.cluster import Cluster
from simulator.outcome import Outcome

SERVING, JOINING, CAPACITY = 4, 2, 8
PATIENCE_S, POLL_S = 10.0, 0.5
JOIN_AT_S = 1.0


def serving_args(rank: int, *, serving: int = SERVING, capacity: int | None = CAPACITY) -> BootstrapArgs:
    """How a serving rank is launched."""
    layout = ParallelLayout(tp=serving, moe_ep=serving)
    return BootstrapArgs(layout=layout, cohort_rank=rank, backend="mooncake", max_world_size=capacity)


def joining_args(rank: int, rules: RulesName, *, serving: int = SERVING, joining: int = JOINING) -> BootstrapArgs:
    """How a joiner is launched."""
    return BootstrapArgs(
        layout=ParallelLayout(tp=joining, moe_ep=joining),
        cohort_rank=rank - serving,
        backend="mooncake",
        max_world_size=CAPACITY,
        role=Role.SCALE_JOINER,
        rank_offset=serving,
        rules=rules,
    )


def elastic_groups(state: Any) -> list[dist.ProcessGroup]:
    """The groups that grow: the default group and the two of WORLD."""
    return [dist.group.WORLD, state.world.device_group, state.world.cpu_group]


def serve(rank: int, plan: CreationPlan | None) -> float | str:
    """A serving rank: starts, works, and admits the joiners when they have come."""
    from mooncake import pg

    args = serving_args(rank)
    state = bring_up(args, plan)
    _check_tp(SERVING)
    newcomers = list(range(SERVING, SERVING + JOINING))
    for group in elastic_groups(state):
        if not _wait_for_peers(pg, group, newcomers):
            return "nobody joined"
        pg.recover_ranks(group, newcomers)
    return _sum_over_world()


def _wait_for_peers(pg: Any, group: dist.ProcessGroup, ranks: list[int]) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(pg.get_peer_state(group, ranks)):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def join(rank: int, rules: RulesName, plan: CreationPlan | None) -> float:
    """A joiner: makes the groups of its cohort, then enters WORLD."""
    from mooncake import pg

    state = bring_up(joining_args(rank, rules), plan)
    _check_tp(JOINING)
    for group in elastic_groups(state):
        pg.join_group(group)
    return _sum_over_world()


def _check_tp(expected: int) -> None:
    """Every rank brings 1; the sum tells how many really took part."""
    total = get_tp_group().all_reduce(torch.ones(1)).item()
    if total != expected:
        raise RuntimeError(f"the tp group sums to {total:g}, expected {expected}: its ranks do not meet")


def _sum_over_world() -> float:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()


def scale_up(
    rules: RulesName = "repaired",
    *,
    serve_plan: CreationPlan | None = None,
    join_plan: CreationPlan | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Outcome:
    """Run the scale-up under one edition of the joiners' rules, or with creation plans as given."""
    cluster = Cluster(nodes=1, **options)
    cluster.launch(serve, ranks=SERVING, args=(serve_plan,), env=env)
    cluster.join(join, ranks=JOINING, rank_offset=SERVING, args=(rules, join_plan), env=env, at_s=JOIN_AT_S)
    return cluster.run()
