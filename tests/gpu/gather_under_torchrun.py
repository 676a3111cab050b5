"""The gatherer against NCCL's all-gather, bit for bit, on any number of GPUs.

    torchrun --nproc-per-node gpu tests/gpu/gather_under_torchrun.py

Eager and in CUDA graphs, with the entry barrier and without. Prints one line on rank 0; fails on any difference.
"""

from __future__ import annotations

import os

import torch

from refimpl.distributed import (
    BootstrapArgs,
    MultimemAllGatherer,
    ParallelLayout,
    bring_up,
    destroy_distributed_environment,
    get_tp_group,
)
from tests.unit.refimpl.gather_bodies import poison, same_bits, shards_of

SHAPES = [(1, 8), (5, 1000), (257, 2048), (33, 16384)]


def main() -> None:
    """One rank, started by torchrun."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    layout = ParallelLayout(tp=world)
    bring_up(BootstrapArgs(layout=layout, cohort_rank=rank, backend="nccl", device=str(device), init_method="env://"))
    for skip in (False, True):
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=257, skip_entry_sync=skip, nnodes=lambda: 1)
        gather(torch.zeros(1, 16384, dtype=torch.bfloat16, device=device))
        assert gather._workspace is not None, "the kernel is not used"
        for seed, shape in enumerate(SHAPES):
            eager(gather, shards_of(world, shape, torch.bfloat16, seed, device)[rank])
            replayed(gather, shards_of(world, shape, torch.bfloat16, seed, device)[rank])
    transport = "multicast" if gather._workspace.multicast else "peer stores"
    get_tp_group().barrier()
    if rank == 0:
        print(f"{world} ranks, {transport}: ok")
    destroy_distributed_environment()


def eager(gather: MultimemAllGatherer, shard: torch.Tensor) -> None:
    """One call over poisoned buffers."""
    expected = get_tp_group().all_gather(shard, dim=-1)
    poison(gather)
    assert same_bits(gather(shard), expected), list(shard.shape)


def replayed(gather: MultimemAllGatherer, shard: torch.Tensor) -> None:
    """Three replays, each with other data."""
    static = shard.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gather(static)
    for turn in range(3):
        static.copy_(shard.roll(turn, 0))
        expected = get_tp_group().all_gather(static, dim=-1)
        poison(gather)
        graph.replay()
        assert same_bits(out, expected), (list(shard.shape), turn)


if __name__ == "__main__":
    main()
