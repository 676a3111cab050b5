"""A bug: the last rank is in no pair of neighbours, so it skips `new_group`, which all ranks have to call.

Three simulated ranks find it:

    hangcheck run --nproc-per-node 3 examples/skipped_new_group.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank < 2:
        pair = dist.new_group([0, 1], group_desc="pair")
        dist.all_reduce(torch.ones(1), group=pair)
    everyone = dist.new_group(group_desc="everyone")  # torch counts groups to name them: rank 2 is one behind
    dist.all_reduce(torch.ones(1), group=everyone)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
