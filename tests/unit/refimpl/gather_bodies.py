"""What one rank does and checks about the gatherer, wherever its kernel can run: simulated ranks, or processes on GPUs.

As in `bodies`, a body takes `(rank, world_size, init_method)` and asserts inside.  Data is fresh and random in each
call, equal on all ranks by its seed, so that each knows what the others gave; results are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl.distributed import GroupCoordinator, MultimemAllGatherer, ParallelLayout, get_tp_group
from refimpl.kernels.reference import all_gather_last_dim
from tests.unit.refimpl.bodies import running

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.uint8)
ROWS = (1, 5, 0, 3)
COLUMNS = (16, 48)
"""Columns of a shard: rows of 16 bytes and more in each dtype."""
POISON = 0x5A


def shards_of(world: int, shape: Sequence[int], dtype: torch.dtype, seed: int, device: torch.device) -> Any:
    """The shards of all ranks: random bytes, so every bit pattern occurs."""
    generator = torch.Generator().manual_seed(seed)
    nbytes = shape[-1] * dtype.itemsize
    size = (world, *shape[:-1], nbytes)
    noise = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator, device="cpu")
    return list(noise.view(dtype).to(device))


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Equal shape, dtype and bits; NaNs too."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return torch.equal(ours.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))


def poison(gather: MultimemAllGatherer) -> None:
    """Overwrite this rank's buffer, so that what the kernel does not write is seen; collective."""
    group: GroupCoordinator = gather.tp_group
    if gather._workspace is not None:
        gather._workspace.buffer.fill_(POISON)
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    group.barrier()


def check(gather: MultimemAllGatherer, shape: Sequence[int], dtype: torch.dtype, seed: int) -> None:
    """One gather of poisoned buffers against plain torch, with a synchronisation of all ranks before and after."""
    group = gather.tp_group
    shards = shards_of(group.world_size, shape, dtype, seed, group.device)
    poison(gather)
    out = gather(shards[group.rank_in_group])
    assert same_bits(out, all_gather_last_dim(shards)), f"{list(shape)} {dtype} seed {seed}"
    group.barrier()


def kernel_gathers_every_shape(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Few, odd and no rows; each dtype; buffers that are larger than the result; the kernel was really used."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=8, nnodes=lambda: 1)
        check(gather, (8, 64), torch.float32, seed=1)
        assert (gather._workspace is not None) is (world_size > 1)
        for number, dtype in enumerate(DTYPES):
            for rows in ROWS:
                for columns in COLUMNS:
                    check(gather, (rows, columns), dtype, seed=100 * number + 10 * rows + columns)


def entry_barrier_may_go_where_others_synchronise(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Without the entry barrier, with a barrier of the group between the calls."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=4, skip_entry_sync=True, nnodes=lambda: 1)
        for turn in range(4):
            check(gather, (4, 32), torch.bfloat16, seed=turn)


def calls_follow_each_other(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Back to back with the entry barrier: each result is right, though nothing else synchronises the ranks."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        group = get_tp_group()
        gather = MultimemAllGatherer(group, max_tokens=4, nnodes=lambda: 1)
        rounds = [shards_of(world_size, (3, 32), torch.bfloat16, seed, group.device) for seed in range(6)]
        outs = [gather(shards[group.rank_in_group]) for shards in rounds]
        for out, shards in zip(outs, rounds, strict=True):
            assert same_bits(out, all_gather_last_dim(shards))


def shards_may_lie_anywhere(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Strides and alignment differ between ranks, and all take the kernel: one rank copies where another need not."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        group = get_tp_group()
        gather = MultimemAllGatherer(group, max_tokens=4, nnodes=lambda: 1)
        shards = shards_of(world_size, (4, 32), torch.bfloat16, 3, group.device)
        mine = shards[group.rank_in_group]
        if rank % 2:
            room = torch.zeros(4 * 32 + 1, dtype=mine.dtype, device=mine.device)
            room[1:].copy_(mine.flatten())
            mine = room[1:].view(4, 32)
        else:
            mine = mine.t().contiguous().t()
        assert same_bits(gather(mine), all_gather_last_dim(shards))
        group.barrier()


def unfit_shapes_take_the_fallback(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """More rows than the buffer has, rows that are no multiple of 16 bytes: right results by the group's all_gather."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=4, nnodes=lambda: 1)
        for number, shape in enumerate(((4, 16), (5, 16), (4, 7), (4, 16))):
            check(gather, shape, torch.float32, seed=number)


GATHER_BODIES: tuple[Callable[..., None], ...] = (
    kernel_gathers_every_shape,
    entry_barrier_may_go_where_others_synchronise,
    calls_follow_each_other,
    shards_may_lie_anywhere,
    unfit_shapes_take_the_fallback,
)
