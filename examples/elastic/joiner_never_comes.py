"""Half of a cohort never starts: the half that did is told, the deployment notices nothing.

python examples/elastic/joiner_never_comes.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=0, more_steps=150)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    return made.join(join, ranks=1, rank_offset=4, world_size=6, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="joiner_never_comes",
    title="A joiner never comes",
    text="""A cohort of two is to join four ranks that serve, but rank 5 is never started. Rank 4 creates no group
    before all of its cohort have shown up at the store, so it does not hang in the creation of one. When its
    patience of 10 s is over it is turned away. The serving ranks never hear of the cohort.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
