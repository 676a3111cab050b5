"""The data plane of a joiner cannot be connected: all ranks roll back, and serve on without the cohort.

python examples/elastic/roll_back.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=1)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2, connects=False)
    return Cluster().launch(serve, ranks=4, args=(JOB,)).join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="roll_back",
    title="Roll-back: the data plane of a joiner cannot be connected",
    text="""Ranks 4 and 5 are active in WORLD already when the hook that connects the data plane raises on them. That is
    their vote, and rank 0 decides for all: the two are made inactive again, and all four serving ranks wait until
    they see that before the next step. The joiners are told which rank failed, and how.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
