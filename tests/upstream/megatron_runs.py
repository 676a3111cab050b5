"""What is run of Megatron-core: its own `initialize_model_parallel`, on simulated ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from simulator import Cluster, Limits
from tests.upstream.rows import Row, timed
from tests.upstream.sglang_runs import With

ISOLATE = ("megatron.core.parallel_state",)
OPTIONS: dict[str, Any] = {"isolate": ISOLATE, "limits": Limits(spin_wall_s=120.0)}
LAYOUTS = {8: (2, 2, 1, 2), 64: (4, 4, 2, 2), 1024: (8, 8, 4, 8)}
"""By number of ranks: tensor, pipeline, context and expert parallel widths."""
NAMES = ("tensor_model", "pipeline_model", "context", "expert_model")


def start(rank: int, backend: str, widths: tuple[int, ...]) -> int:
    """One rank's start. Returns how many `new_group` calls it made."""
    dist.init_process_group(backend)
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(**{f"{n}_parallel_size": w for n, w in zip(NAMES, widths, strict=True)})
    assert parallel_state.get_tensor_model_parallel_world_size() == widths[0]
    return dist.get_pg_count()


def plain(version: str) -> list[Row]:
    """8 and 64 ranks, on gloo and nccl."""
    return [_run(version, ranks, backend) for ranks in (8, 64) for backend in ("gloo", "nccl")]


def large(version: str) -> list[Row]:
    """1,024 ranks."""
    return [_run(version, 1024, "nccl")]


def _run(version: str, ranks: int, backend: str) -> Row:
    widths = LAYOUTS[ranks]
    cluster = Cluster(nodes=max(1, ranks // 8), **OPTIONS).launch(start, ranks=ranks, args=(backend, widths))
    outcome, took_s = timed(cluster.run)
    title = "megatron-core tp {} pp {} cp {} ep {}".format(*widths)
    return Row.of(f"{title}, {backend}", version, ranks, took_s, outcome, groups=outcome.results.get(0))


def _mutated(rank: int, skips: bool) -> int:
    from megatron.core import parallel_state

    real = parallel_state.torch

    def new_group(ranks: Any = None, **kwargs: Any) -> Any:
        skipped = skips and list(ranks) == [4, 5] and kwargs.get("group_desc") == "TENSOR_MODEL_PARALLEL_GROUP"
        return dist.GroupMember.NON_GROUP_MEMBER if skipped else dist.new_group(ranks, **kwargs)

    if rank == 2 and skips:
        parallel_state.torch = With(real, distributed=With(real.distributed, new_group=new_group))
    if rank == 2 and not skips:
        parallel_state.RankGenerator = _rotating(parallel_state.RankGenerator)
    return start(rank, "gloo", LAYOUTS[8])


def _rotating(real: Any) -> Any:
    """Its lists of tensor parallel ranks begin with the second one."""

    class RankGenerator(real):  # type: ignore[misc]
        def get_ranks(self, token: str) -> Any:
            lists = super().get_ranks(token)
            return [*lists[1:], lists[0]] if token == "tp" else lists

    return RankGenerator


def mutants(version: str) -> list[Row]:
    """One rank skips a `new_group`; one rank's lists are rotated."""
    rows = []
    for name, skips in (("skip_one", True), ("rotate_one", False)):
        outcome, took_s = timed(Cluster(nodes=1, **OPTIONS).launch(_mutated, ranks=8, args=(skips,)).run)
        rows.append(Row.of(f"megatron-core, {name}", version, 8, took_s, outcome))
    return rows
