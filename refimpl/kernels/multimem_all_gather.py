"""All-gather along the last dimension over symmetric memory, in one launch: [T, H / W] on each of W ranks to [T, H].

    workspace = ...                                  # of this rank, see `symmetric` and `loopback`
    out = all_gather(workspace, shard)               # all ranks of the group call; `out` is a view of the buffer

Every program takes a share of this rank's 16-byte chunks, and stores each at its place in the buffers of all ranks:
with one multicast store where there is multicast, else with one store for each peer.  A barrier among the programs of
one number on all ranks ends the kernel: then every byte of this rank's buffer is there.  The entry barrier (optional)
keeps a fast rank from overwriting what a slow one still reads.

CUDA graphs: a launch reads and writes nothing but the shard, the buffers and the pads, which are clean at its end, so
it can be captured and replayed.  Ranks must replay the same launches in the same order.

Not done: overlapping with the computation that makes the shard; splitting a group over NVLink domains.

Source: the technique of multicast stores with signal pads is that of torch's `symm_mem.multimem_all_gather_out`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from refimpl.kernels import ptx
from refimpl.kernels.workspace import CHUNK, LaunchConfig, Workspace, why_not


@triton.jit(do_not_specialize=["shard", "buffers", "multicast", "pads", "rank", "rows", "row_chunks"])
def all_gather_kernel(
    shard: tl.int64,
    buffers: tl.int64,
    multicast: tl.int64,
    pads: tl.int64,
    rank: tl.int32,
    rows: tl.int32,
    row_chunks: tl.int32,
    WORLD: tl.constexpr,
    MULTICAST: tl.constexpr,
    ENTRY_SYNC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather the shards of all ranks into the buffers of all ranks.

    shard: address of [rows, row_chunks] chunks of 16 bytes, contiguous, 16-byte aligned.
    buffers, pads: addresses of tables of int64, one entry a rank: buffers of at least rows * WORLD * row_chunks chunks,
        pads of at least programs * WORLD words.
    multicast: the multicast address of the buffers, used if MULTICAST.
    rank: at run time, so that all ranks of one process share one compiled kernel: loading a second one would wait for
        the first to finish, which waits for the second.
    BLOCK: chunks that a program moves in one step.
    """
    program = tl.program_id(0)
    first_slot = program * WORLD
    if ENTRY_SYNC:
        ptx.exchange_signals(pads, first_slot, rank, WORLD)
        tl.debug_barrier()
    chunks = rows * row_chunks
    lane = tl.arange(0, BLOCK)
    for start in range(program * BLOCK, chunks, tl.num_programs(0) * BLOCK):
        chunk = start + lane
        valid = (chunk < chunks).to(tl.int32)
        a, b, c, d = ptx.load16(shard + chunk.to(tl.int64) * 16, valid)
        row = chunk // row_chunks
        column = chunk - row * row_chunks
        offset = ((row * WORLD + rank).to(tl.int64) * row_chunks + column) * 16
        if MULTICAST:
            ptx.multimem_store16(multicast + offset, a, b, c, d, valid)
        else:
            for turn in tl.static_range(WORLD):
                peer = (rank + turn) % WORLD
                buffer = tl.load((buffers + peer * 8).to(tl.pointer_type(tl.int64)))
                ptx.store16(buffer + offset, a, b, c, d, valid)
    tl.debug_barrier()
    ptx.exchange_signals(pads, first_slot, rank, WORLD)
    tl.debug_barrier()


def all_gather(workspace: Workspace, shard: torch.Tensor, *, entry_sync: bool = True) -> torch.Tensor:
    """Gather `shard` ([T, H / W], any dtype, equal shape on all ranks) to [T, H], a view of `workspace.buffer`.

    Call it on all ranks, on streams that can run at the same time.  The view holds until any rank's next call.

    entry_sync: let the ranks wait for each other before they store.  It may be left out only if, since the last read of
        the last result on any rank, all ranks have been through some other synchronisation of the same streams, such
        as an all_reduce: the exit barrier of the last call says that all have *written*, not that all have *read*.

    Raises:
        ValueError: `why_not` says so, or the signal pads are too small.
    """
    reason = why_not(shard, workspace.world, workspace.buffer.nbytes)
    if reason:
        raise ValueError(f"multimem all-gather: {reason}")
    rows, columns = shard.shape
    out = workspace.buffer[: shard.nbytes * workspace.world].view(shard.dtype)
    if shard.numel():
        launch(workspace, _aligned(shard), entry_sync=entry_sync)
    return out.view(rows, columns * workspace.world)


def launch(workspace: Workspace, shard: torch.Tensor, *, entry_sync: bool, config: LaunchConfig | None = None) -> None:
    """Launch the kernel for a contiguous, 16-byte aligned, non-empty shard."""
    config = config or workspace.launch(shard.nbytes)
    all_gather_kernel[(config.programs,)](
        shard.data_ptr(),
        workspace.buffers,
        workspace.multicast,
        workspace.pads,
        workspace.rank,
        shard.shape[0],
        shard.shape[1] * shard.element_size() // CHUNK,
        WORLD=workspace.world,
        MULTICAST=workspace.multicast != 0,
        ENTRY_SYNC=entry_sync,
        BLOCK=config.block,
        num_warps=config.warps,
    )


def _aligned(shard: torch.Tensor) -> torch.Tensor:
    """`shard` where the kernel can read it.  Strides and address may differ between ranks, so this is no condition."""
    shard = shard.contiguous()
    return shard.clone() if shard.data_ptr() % CHUNK else shard
