"""EP4 -> EP8 -> EP16: two cohorts, one after the other, each as large as what is there.

python examples/elastic/ep4_to_ep16.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=16, ends_after=2)


def cluster() -> Cluster:
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    for first, ranks, at_s in ((4, 4, 1.0), (8, 8, 3.0)):
        made.join(join, ranks=ranks, rank_offset=first, args=(JOB, Came(first=first, ranks=ranks)), at_s=at_s)
    return made


STORY = Story(
    name="ep4_to_ep16",
    title="EP4 -> EP8 -> EP16: the deployment doubles twice",
    text="""Four ranks serve, with room for sixteen. Four join after one second, eight after three. The ranks of
    the first cohort are serving ranks when the second one comes: they stand still, admit and count like the
    launched ones.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
