"""An offset that overlaps: rank_offset=2, where ranks 2 and 3 serve. The deployment says no.

python examples/elastic/overlapping_offset.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=0, more_steps=20)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2, rank_offset=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    return made.join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="overlapping_offset",
    title="An offset that overlaps: rank_offset=2, where ranks 2 and 3 serve",
    text="""Two ranks are started with rank_offset=2, but ranks 2 and 3 serve already. Without the check, each of
    them would try to register in the place of a healthy rank for 30 s, and then fail with a time-out that
    does not say why.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
