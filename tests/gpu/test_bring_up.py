"""The reference implementation on real GPUs: one process a GPU, NCCL for the device groups, gloo for the CPU groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.refimpl import bodies
from tests.unit.refimpl.rank_pool import Body, RankPool

WORLD_SIZES = [pytest.param(count, marks=pytest.mark.gpu(count=count)) for count in (1, 2, 4)]


@pytest.fixture(scope="module")
def gpu_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Any]]:
    """From a world size to a pool of that many real processes, kept for the tests of this file."""
    pools: dict[int, RankPool] = {}

    def of_size(world_size: int) -> RankPool:
        if world_size not in pools:
            pools[world_size] = RankPool(world_size, tmp_path_factory.mktemp(f"nccl{world_size}"))
        return pools[world_size]

    yield of_size
    for pool in pools.values():
        pool.close()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda body: body.__name__)
def test_body_holds_on_nccl(body: Body, world_size: int, gpu_ranks: Callable[[int], RankPool]) -> None:
    """What holds on gloo and in simulation holds on GPUs."""
    gpu_ranks(world_size).run(body, backend="nccl", device="cuda:{rank}", timeout_s=120.0)
