"""Another attention topology: attention over two ranks, where the deployment serves with one. The deployment says no.

python examples/elastic/other_topology.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=0, more_steps=20)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2, attn_tp=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    return made.join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="other_topology",
    title="Another attention topology: attention over two ranks, where the deployment serves with one",
    text="""The four serving ranks hold all heads of their own requests (attention tp=1). The cohort was started
    with attention over two ranks. A request could then not be moved between old and new ranks.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
