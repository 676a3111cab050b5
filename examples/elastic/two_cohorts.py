"""Two cohorts at the same time: they are heard one after the other, in the order of their ranks.

python examples/elastic/two_cohorts.py
"""

from __future__ import annotations

from ranks import Came, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=2)


def cluster() -> Cluster:
    made = Cluster().launch(serve, ranks=4, args=(JOB,))
    for first, at_s in ((6, 1.0), (4, 2.0)):
        made.join(join, ranks=2, rank_offset=first, args=(JOB, Came(first=first, ranks=2)), at_s=at_s)
    return made


STORY = Story(
    name="two_cohorts",
    title="Two cohorts at the same time",
    text="""Two launchers that know nothing of each other start ranks 6 and 7, and a second later ranks 4 and 5. Each
    cohort gets a place in a line in the store. Ranks 6 and 7 leave a gap, so they wait for the cohort that
    fills it, 5 s at most; rank 0 hears ranks 4 and 5 first.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
