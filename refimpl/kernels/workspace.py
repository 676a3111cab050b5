"""What a launch needs to know of its group, on one rank; how it is cut up; what it cannot do.  Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 16
"""Bytes that one thread moves at once."""
WORD = 4
"""Bytes of a slot of a signal pad."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a launch is cut up.

    Attributes:
        programs: programs (CTAs) in all; equal on all ranks, since programs of one number meet.
        block: chunks a program moves in one step, a power of two.
        warps: warps a program.
    """

    programs: int
    block: int
    warps: int


def launch_config(shard_bytes: int, programs_max: int) -> LaunchConfig:
    """The configuration for a shard of `shard_bytes`, with at most `programs_max` programs.

    One chunk a thread and 512 threads: the fastest, or within the noise of it, for results of 1 MiB and more on one
    H200 with W = 8 ranks on it; smaller ones cost a barrier anyway (docs/gpu-results.md).
    """
    block, warps = 512, 16
    blocks = -(-shard_bytes // (CHUNK * block))
    return LaunchConfig(max(1, min(blocks, programs_max)), block, warps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What a launch needs to know of the group, on one rank.

    Attributes:
        rank: in the group; world: ranks of the group.
        buffer: this rank's symmetric buffer, uint8, 16-byte aligned.
        buffers, pads: addresses of the tables of the ranks' buffers and signal pads (int64, on the device).
        multicast: multicast address of the buffers, 0 for stores to each peer.
        pad_bytes: size of a signal pad.
        programs_max: programs that a launch may have, beyond what the pads allow.
        keep: whatever owns the memory.
    """

    rank: int
    world: int
    buffer: torch.Tensor
    buffers: int
    pads: int
    multicast: int
    pad_bytes: int
    programs_max: int = 64
    keep: object = None

    def launch(self, shard_bytes: int) -> LaunchConfig:
        """The configuration of a launch for a shard of that size.

        Raises:
            ValueError: the signal pads are too small for a single program.
        """
        by_pad = self.pad_bytes // (WORD * self.world)
        if by_pad < 1:
            raise ValueError(
                f"a signal pad of {self.pad_bytes} bytes has no room for {self.world} ranks: set_signal_pad_size to "
                f"{WORD * self.world} or more before the buffer is allocated"
            )
        return launch_config(shard_bytes, min(by_pad, self.programs_max))


SHARD_MAX = 1 << 34
"""Bytes of a shard: its chunks are counted in 32 bits."""


def why_not(shard: torch.Tensor, world: int, capacity: int) -> str:
    """Why the kernel cannot gather `shard`; empty if it can.  The same on all ranks, whose shards have one shape.

    capacity: bytes of a symmetric buffer.
    """
    if shard.dim() != 2:
        return f"it gathers matrices, and this has {shard.dim()} dimension(s)"
    row_bytes = shard.shape[1] * shard.element_size()
    if row_bytes % CHUNK:
        return f"a row of {shard.shape[1]} x {shard.dtype} has {row_bytes} bytes, no multiple of {CHUNK}"
    if shard.nbytes > SHARD_MAX:
        return f"a shard is larger than {SHARD_MAX} bytes"
    if shard.nbytes * world > capacity:
        return f"the result is larger than the symmetric buffer of {capacity} bytes"
    return ""
