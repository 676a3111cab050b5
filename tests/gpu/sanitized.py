"""A few gathers of ranks on streams of one GPU, checked; to be run under compute-sanitizer.

compute-sanitizer --tool memcheck python tests/gpu/sanitized.py
"""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch

from refimpl.kernels.loopback import all_gather_on_streams, loopback, preload
from refimpl.kernels.reference import all_gather_last_dim
from tests.unit.refimpl.gather_bodies import same_bits, shards_of


def main() -> None:
    """Odd shapes in buffers that they fill to the last byte, with and without entry barrier."""
    device = torch.device("cuda", 0)
    for world in (2, 4):
        preload(world, device)
        streams = [torch.cuda.Stream() for _ in range(world)]
        for seed, (rows, columns) in enumerate(((1, 8), (7, 1000), (33, 2048))):
            shards = shards_of(world, (rows, columns), torch.bfloat16, seed, device)
            ranks = loopback(world, capacity=shards[0].nbytes * world, device=device)
            for entry_sync in (True, False):
                torch.cuda.synchronize()
                outs = all_gather_on_streams(ranks, shards, streams, entry_sync=entry_sync)
                torch.cuda.synchronize()
                assert all(same_bits(out, all_gather_last_dim(shards)) for out in outs)
    print("gathered")


if __name__ == "__main__":
    main()
