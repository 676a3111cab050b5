"""What is run of vLLM: its own `init_distributed_environment` and `initialize_model_parallel`, on simulated ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from simulator import Cluster, Limits
from tests.upstream.rows import Row, timed
from tests.upstream.sglang_runs import With

ISOLATE = ("vllm.distributed.*", "vllm.config.*")
OPTIONS: dict[str, Any] = {"isolate": ISOLATE, "limits": Limits(spin_wall_s=120.0)}
LAYOUTS = {8: (2, 2, 2), 16: (4, 2, 2)}
"""By number of ranks: tensor, pipeline and data parallel widths. Experts are shared by all of tp and dp."""
Lists = dict[str, tuple[int, ...]]


def start(rank: int, backend: str, widths: tuple[int, ...], world: int) -> Lists:
    """One rank's start under an external launcher, such as torchrun. Returns its groups' global ranks."""
    from vllm.config import DeviceConfig, ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    tp, pp, dp = widths
    parallel = ParallelConfig(
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        enable_expert_parallel=True,
        distributed_executor_backend="external_launcher",
    )
    config = VllmConfig(parallel_config=parallel, device_config=DeviceConfig(device="cpu"))
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(world, rank, "env://", rank % 8, backend)
        parallel_state.initialize_model_parallel(tp, pp)
    groups = {name: getattr(parallel_state, f"_{name.upper()}") for name in ("tp", "pp", "dp", "ep")}
    return {name: tuple(group.ranks) for name, group in groups.items() if group is not None}


def small(version: str) -> list[Row]:
    """8 ranks on gloo."""
    return [_run(version, 8)]


def large(version: str) -> list[Row]:
    """16 ranks on two nodes."""
    return [_run(version, 16)]


def _run(version: str, world: int) -> Row:
    """In a process of its own: what vLLM registers with torch can be registered once."""
    widths = LAYOUTS[world]
    cluster = Cluster(nodes=world // 8, **OPTIONS).launch(start, ranks=world, args=("gloo", widths, world))
    outcome, took_s = timed(cluster.run)
    lists = {str(rank): lists for rank, lists in outcome.results.items()}
    return Row.of("vllm tp {} pp {} dp {} ep".format(*widths), version, world, took_s, outcome, lists=lists)


def _mutated(rank: int, skips: bool) -> Lists:
    from vllm.distributed import parallel_state

    real, init = parallel_state.torch, parallel_state.init_model_parallel_group

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        skipped = list(ranks) == [4, 5]
        return dist.GroupMember.NON_GROUP_MEMBER if skipped else dist.new_group(ranks, *args, **kwargs)

    def rotated(group_ranks: Any, *args: Any, **kwargs: Any) -> Any:
        lists = [*group_ranks[1:], group_ranks[0]] if kwargs.get("group_name") == "pp" else group_ranks
        return init(lists, *args, **kwargs)

    if rank == 2 and skips:
        parallel_state.torch = With(real, distributed=With(real.distributed, new_group=new_group))
    if rank == 2 and not skips:
        parallel_state.init_model_parallel_group = rotated
    return start(rank, "gloo", LAYOUTS[8], 8)


def skip_one(version: str) -> list[Row]:
    """One rank skips each `new_group` of one list."""
    return [_mutant(version, "skip_one", skips=True)]


def rotate_one(version: str) -> list[Row]:
    """One rank's lists are rotated."""
    return [_mutant(version, "rotate_one", skips=False)]


def _mutant(version: str, name: str, *, skips: bool) -> Row:
    outcome, took_s = timed(Cluster(nodes=1, **OPTIONS).launch(_mutated, ranks=8, args=(skips,)).run)
    return Row.of(f"vllm, {name}", version, 8, took_s, outcome)
