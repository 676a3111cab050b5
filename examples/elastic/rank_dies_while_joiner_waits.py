"""A serving rank is killed while a cohort waits: the cohort is sent away, the others go on.

python examples/elastic/rank_dies_while_joiner_waits.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from refimpl.distributed import Patience
from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=1, loads_s=3.0, patience=Patience(peers_s=60.0, step_s=20.0))


def cluster() -> Cluster:
    came = Came(first=4, ranks=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,)).fault("kill rank=2 at=2.05s")
    return made.join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="rank_dies_while_joiner_waits",
    title="A serving rank dies while a joiner waits",
    text="""Ranks 4 and 5 have been accepted and load their weights. Rank 2, which serves, is killed. The other
    serving ranks learn of it when the step that they are in ends, after Mooncake's window of 30 s, and send
    the cohort away: it asked to join a deployment of four, not one with a hole. Three ranks go on serving.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
