"""A bug: each serving rank looks for the joiners itself, and acts on what it sees. Some see them a step before others.

python examples/elastic/each_rank_polls.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from ranks import Came, Job, join_args, launch_args
from story import Story, tell

from refimpl.distributed import bring_up
from simulator import Cluster, Verdict

JOB = Job(launched=4, capacity=8, ends_after=1)
CAME = Came(first=4, ranks=2)
STEPS = 5
"""Steps that all six are to serve."""


def serve(rank: int) -> None:
    """A step, a look at the peers, a step, ... The first rank that sees both joiners admits them."""
    from mooncake import pg

    bring_up(launch_args(rank, JOB))
    while True:
        step(rank)
        if all(pg.get_peer_state(dist.group.WORLD, [4, 5])):
            break
    pg.recover_ranks(dist.group.WORLD, [4, 5])
    connect()
    for _ in range(STEPS):
        step(rank)


def join(rank: int) -> None:
    """A joiner: enters WORLD, connects, serves."""
    from mooncake import pg

    bring_up(join_args(rank, JOB, CAME))
    pg.join_group(dist.group.WORLD)
    connect()
    for _ in range(STEPS):
        step(rank)


def step(rank: int) -> None:
    """One step of serving; no two ranks have the same work."""
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1 * (rank + 1))


def connect() -> None:
    """The data plane: rank 0 tells all ranks where the experts are."""
    dist.broadcast(torch.zeros(6), group_src=0)


STORY = Story(
    name="each_rank_polls",
    title="A bug: each rank polls for itself",
    text="""The same scale-up, but without a decision. Each serving rank calls get_peer_state between its steps, and the
    moment it sees both joiners it admits them and connects the data plane, a broadcast over WORLD. Ranks that looked
    a little earlier saw nothing, and are in the all_reduce of the next step.""",
    cluster=lambda: Cluster().launch(serve, ranks=4).join(join, ranks=2, rank_offset=4, at_s=1.35),
    expected=Verdict.MISMATCH,
)

if __name__ == "__main__":
    tell(STORY)
