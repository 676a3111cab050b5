"""A wrong offset: rank_offset=5, which leaves a gap. The deployment says no.

python examples/elastic/wrong_offset.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=0, more_steps=80)


def cluster() -> Cluster:
    came = Came(first=5, ranks=2)
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    return made.join(join, ranks=2, rank_offset=5, args=(JOB, came), at_s=1.0)


STORY = Story(
    name="wrong_offset",
    title="A wrong offset: rank_offset=5, which leaves a gap",
    text="""Two ranks are started with rank_offset=5, but the deployment ends at rank 3. Without the check, their
    WORLD would attach with a hole at rank 4, and a rank_offset of 4 that came later would not find its place.
    The answer takes 5 s: rank 4 might register a little later than 5 and 6 do, so the deployment waits that long
    (Patience.early_s) before it says no.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
