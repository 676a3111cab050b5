"""W ranks on one device in one process: each a stream, with buffers and signal pads in plain device memory.

    ranks = loopback(8, capacity=1 << 20, device=torch.device("cuda"))
    preload(8, torch.device("cuda"))         # before the first launch
    outs = all_gather_on_streams(ranks, shards, [torch.cuda.Stream() for _ in ranks])

It runs the kernel as several devices would, but for NVLink: there is no multicast, and all share one memory.
All programs of all ranks must run at once, since they wait for each other: they must find room on the device, and the
streams need a hardware queue each (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default, to be set before CUDA starts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from refimpl.kernels.multimem_all_gather import all_gather, launch
from refimpl.kernels.workspace import CHUNK, WORD, Workspace

PROGRAMS_ON_DEVICE = 128
"""Programs of all ranks together, at most one for each multiprocessor of an H100 or H200."""


def loopback(world: int, *, capacity: int, device: torch.device, pad_bytes: int = 2048) -> list[Workspace]:
    """The workspaces of `world` ranks with buffers of `capacity` bytes on `device`."""
    buffers = [torch.empty(capacity, dtype=torch.uint8, device=device) for _ in range(world)]
    pads = [torch.zeros(pad_bytes, dtype=torch.uint8, device=device) for _ in range(world)]
    tables = [
        torch.tensor([each.data_ptr() for each in memory], dtype=torch.int64, device=device)
        for memory in (buffers, pads)
    ]
    return [
        Workspace(
            rank=rank,
            world=world,
            buffer=buffers[rank],
            buffers=tables[0].data_ptr(),
            pads=tables[1].data_ptr(),
            multicast=0,
            pad_bytes=pad_bytes,
            programs_max=max(1, PROGRAMS_ON_DEVICE // world),
            keep=(buffers, pads, tables),
        )
        for rank in range(world)
    ]


def preload(world: int, device: torch.device, *, block: int | None = None, warps: int | None = None) -> None:
    """Load the kernels for `world` ranks, with and without entry barrier, by launches that wait for nobody.

    A kernel is loaded at its first launch, and loading waits until the device is idle.  A rank that waits for a peer
    whose launch has to load the kernel first would wait for ever.
    """
    scratch = torch.empty(CHUNK * world, dtype=torch.uint8, device=device)
    shard = torch.empty(1, CHUNK, dtype=torch.uint8, device=device)
    workspace = _answering_itself(scratch, world)
    config = workspace.launch(CHUNK)
    config = replace(config, block=block or config.block, warps=warps or config.warps)
    for entry_sync in (True, False):
        launch(workspace, shard, entry_sync=entry_sync, config=config)
    torch.cuda.synchronize(device)


def _answering_itself(scratch: torch.Tensor, world: int) -> Workspace:
    """Rank 0 of a group in which every signal comes back: the pads overlap by all but one word."""
    pad = torch.zeros(world + 1, dtype=torch.int32, device=scratch.device)
    pads = [pad.data_ptr() + WORD * rank for rank in range(world)]
    tables = [
        torch.tensor(addresses, dtype=torch.int64, device=scratch.device)
        for addresses in ([scratch.data_ptr()] * world, pads)
    ]
    return Workspace(
        rank=0,
        world=world,
        buffer=scratch,
        buffers=tables[0].data_ptr(),
        pads=tables[1].data_ptr(),
        multicast=0,
        pad_bytes=WORD * world,
        keep=(pad, tables),
    )


def all_gather_on_streams(
    ranks: Sequence[Workspace],
    shards: Sequence[torch.Tensor],
    streams: Sequence[torch.cuda.Stream],
    *,
    entry_sync: bool = True,
) -> list[torch.Tensor]:
    """One gather: each rank on its stream, all between two points of the current stream."""
    current = torch.cuda.current_stream()
    outs = []
    for workspace, shard, stream in zip(ranks, shards, streams, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            outs.append(all_gather(workspace, shard, entry_sync=entry_sync))
    for stream in streams:
        current.wait_stream(stream)
    return outs
