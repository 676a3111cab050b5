"""EP4 -> EP6: two ranks join four that serve.

python examples/elastic/ep4_to_ep6.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=1)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2)
    return Cluster().launch(serve, ranks=4, args=(JOB,)).join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="ep4_to_ep6",
    title="EP4 -> EP6: two ranks join four that serve",
    text="""Ranks 0 to 3 serve. After a second, ranks 4 and 5 are started with rank_offset=4. They register,
    create the groups of their own cohort, and enter WORLD at a step at which all serving ranks stand still.
    Only WORLD grows.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
