"""A rank of a running EP4 deployment is lost, and a new process takes its slot in WORLD and in every other group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refimpl.distributed import BootstrapArgs, CreationPlan, ParallelLayout, Role, bring_up
from simulator.cluster import Cluster
from simulator.outcome import Outcome

RANKS, CAPACITY, LOST = 4, 8, 2
LAYOUT = ParallelLayout(tp=RANKS, attn_cp=2, moe_ep=2, dcp=2, shared_experts_tp=2, pdmux=True)
RECOVER_AT_S = 1.0


def launch_args(rank: int) -> BootstrapArgs:
    """How the ranks were launched."""
    return BootstrapArgs(layout=LAYOUT, cohort_rank=rank, backend="mooncake", max_world_size=CAPACITY)


def recovering_args(rank: int) -> BootstrapArgs:
    """How the new process is started: the slot of the lost one, no offset."""
    return replace(launch_args(rank), role=Role.RECOVERING_JOINER)


def launched(rank: int, plan: CreationPlan | None) -> str:
    """A launched rank: starts, and is done (the lost one is gone, the others serve)."""
    bring_up(launch_args(rank), plan)
    return "gone" if rank == LOST else "serving"


def recovering(rank: int, plan: CreationPlan | None) -> str:
    """The new process."""
    bring_up(recovering_args(rank), plan)
    return "attached"


def recovery(
    launch_plan: CreationPlan | None = None, recover_plan: CreationPlan | None = None, **options: Any
) -> Outcome:
    """Run the recovery, with the creation plans of both sides as given."""
    cluster = Cluster(nodes=1, **options)
    cluster.launch(launched, ranks=RANKS, args=(launch_plan,))
    cluster.recover(recovering, ranks=[LOST], args=(recover_plan,), at_s=RECOVER_AT_S)
    return cluster.run()
