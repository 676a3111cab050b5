"""Every rank adds its number to a sum that all of them get.

Four simulated ranks:

    hangcheck run --nproc-per-node 4 examples/allreduce.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {total.item():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
