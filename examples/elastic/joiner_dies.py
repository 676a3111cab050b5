"""A joiner is killed after it was accepted: the deployment withdraws its offer and goes on.

python examples/elastic/joiner_dies.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=1, loads_s=1.0)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,)).fault("kill rank=5 at=1.5s")
    return made.join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="joiner_dies",
    title="A joiner dies on the way",
    text="""Ranks 4 and 5 are accepted and create their groups, then rank 5 is killed while it loads its weights.
    The serving ranks go on; when rank 5 has not said that it is ready after 10 s, rank 0 withdraws the offer
    and all roll back to serving. Rank 4, which waits at the store and not in join_group, is told why.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
