"""The all-gather kernel on one GPU: W ranks as W streams of this process, which share the device's memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from refimpl.kernels.loopback import all_gather_on_streams, loopback, preload
from refimpl.kernels.multimem_all_gather import all_gather
from refimpl.kernels.reference import all_gather_last_dim
from refimpl.kernels.workspace import Workspace
from tests.unit.refimpl.gather_bodies import POISON, same_bits

pytestmark = pytest.mark.gpu(count=1)

WORLDS = (2, 4, 8)
CAPACITY = 64 << 20
SHAPES = [
    (torch.bfloat16, 1, 8),
    (torch.bfloat16, 7, 1000),
    (torch.bfloat16, 129, 2048),
    (torch.bfloat16, 33, 16384),
    (torch.float16, 5, 256),
    (torch.float32, 3, 4),
    (torch.float32, 257, 1028),
    (torch.float8_e4m3fn, 31, 4096),
    (torch.uint8, 1, 16),
    (torch.int64, 9, 2),
]


class Ranks:
    """The ranks of one world size, their streams, and random shards for them."""

    def __init__(self, world: int) -> None:
        self.device = torch.device("cuda", 0)
        self.world = world
        preload(world, self.device)
        self.ranks: list[Workspace] = loopback(world, capacity=CAPACITY, device=self.device)
        self.streams = [torch.cuda.Stream() for _ in range(world)]
        self.generator = torch.Generator(self.device).manual_seed(world)

    def shards(self, dtype: torch.dtype, rows: int, columns: int) -> list[torch.Tensor]:
        """Fresh random bytes for each rank."""
        shape = (self.world, rows, columns * dtype.itemsize)
        noise = torch.randint(0, 256, shape, dtype=torch.uint8, device=self.device, generator=self.generator)
        return list(noise.view(dtype))

    def poison(self) -> None:
        """Overwrite all buffers."""
        for rank in self.ranks:
            rank.buffer.fill_(POISON)

    def gather(self, shards: list[torch.Tensor], *, entry_sync: bool = True) -> list[torch.Tensor]:
        """One gather on all streams."""
        return all_gather_on_streams(self.ranks, shards, self.streams, entry_sync=entry_sync)


@pytest.fixture(scope="module")
def ranks_of() -> Callable[[int], Ranks]:
    """Ranks by world size, kept for the tests of this file."""
    made: dict[int, Ranks] = {}

    def of(world: int) -> Ranks:
        if world not in made:
            made[world] = Ranks(world)
        return made[world]

    return of


@pytest.mark.parametrize("entry_sync", [True, False])
@pytest.mark.parametrize(("dtype", "rows", "columns"), SHAPES)
@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_has_what_plain_torch_gives(
    world: int, dtype: torch.dtype, rows: int, columns: int, entry_sync: bool, ranks_of: Callable[[int], Ranks]
) -> None:
    """Bit for bit, over poisoned buffers, three times with fresh data; the current stream orders the calls."""
    ranks = ranks_of(world)
    for _ in range(3):
        shards = ranks.shards(dtype, rows, columns)
        ranks.poison()
        outs = ranks.gather(shards, entry_sync=entry_sync)
        expected = all_gather_last_dim(shards)
        assert all(same_bits(out, expected) for out in outs)


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_beyond_the_result_is_touched(world: int, ranks_of: Callable[[int], Ranks]) -> None:
    """Rows that do not fill a block leave the rest of the buffer alone, and the pads are clean afterwards."""
    ranks = ranks_of(world)
    ranks.poison()
    shards = ranks.shards(torch.bfloat16, 3, 72)
    ranks.gather(shards)
    used = shards[0].nbytes * world
    assert all(bool((rank.buffer[used:] == POISON).all()) for rank in ranks.ranks)
    pads = ranks.ranks[0].keep[1]  # type: ignore[index]
    assert not any(bool(pad.any()) for pad in pads)


@pytest.mark.parametrize("world", WORLDS)
def test_no_rows_launch_nothing(world: int, ranks_of: Callable[[int], Ranks]) -> None:
    """T = 0 gives an empty result of the right width."""
    ranks = ranks_of(world)
    outs = ranks.gather(ranks.shards(torch.bfloat16, 0, 64))
    assert [list(out.shape) for out in outs] == [[0, 64 * world]] * world


@pytest.mark.parametrize("world", WORLDS)
def test_calls_follow_each_other_on_each_stream(world: int, ranks_of: Callable[[int], Ranks]) -> None:
    """Twenty calls without a host synchronisation, the ranks ordered by the entry barrier alone."""
    ranks = ranks_of(world)
    rounds = [ranks.shards(torch.bfloat16, 5, 640) for _ in range(20)]
    torch.cuda.synchronize()
    outs: list[list[torch.Tensor]] = []
    for shards in rounds:
        outs.append([])
        for rank, shard, stream in zip(ranks.ranks, shards, ranks.streams, strict=True):
            with torch.cuda.stream(stream):
                outs[-1].append(all_gather(rank, shard).clone())
    torch.cuda.synchronize()
    for shards, results in zip(rounds, outs, strict=True):
        expected = all_gather_last_dim(shards)
        assert all(same_bits(out, expected) for out in results)


@pytest.mark.parametrize("entry_sync", [True, False])
@pytest.mark.parametrize("world", WORLDS)
def test_a_captured_graph_can_be_replayed(world: int, entry_sync: bool, ranks_of: Callable[[int], Ranks]) -> None:
    """The graph holds the launches of all ranks; each replay gathers what its inputs hold then."""
    ranks = ranks_of(world)
    static = ranks.shards(torch.bfloat16, 17, 512)
    ranks.gather(static, entry_sync=entry_sync)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = ranks.gather(static, entry_sync=entry_sync)
    for _ in range(5):
        fresh = ranks.shards(torch.bfloat16, 17, 512)
        for mine, new in zip(static, fresh, strict=True):
            mine.copy_(new)
        ranks.poison()
        graph.replay()
        expected = all_gather_last_dim(fresh)
        assert all(same_bits(out, expected) for out in outs)
