"""Capacity exceeded: six ranks for four free slots. The deployment says no.

python examples/elastic/capacity_exceeded.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=0, more_steps=20)


def cluster() -> Cluster:
    came = Came(first=4, ranks=6)
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    return made.join(join, ranks=6, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="capacity_exceeded",
    title="Capacity exceeded: six ranks for four free slots",
    text="""The deployment was launched with max_world_size=8, so four slots are free, and six ranks want to join.
    Capacity is part of the identity of a group: it cannot be raised while the deployment runs.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
