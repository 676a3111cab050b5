"""Scale-up during traffic: how long does serving stand still?

python examples/elastic/scale_during_traffic.py
"""

from __future__ import annotations

from functools import partial

from ranks import Came, Diary, Job, join, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=1, step_s=0.02, loads_s=4.0)


def cluster() -> Cluster:
    came = Came(first=4, ranks=2)
    return Cluster().launch(serve, ranks=4, args=(JOB,)).join(join, ranks=2, rank_offset=4, args=(JOB, came), at_s=1.0)


def remark() -> str:
    diary = cluster().run().raise_if_bad().results[0]
    assert isinstance(diary, Diary)
    states = {str(step.state): step.at_s for step in diary.life.steps}
    waited_s = states["admitting"] - states["waiting for peers"]
    return (
        f"Serving went on for {waited_s:.2f} s while the cohort got ready. The longest pause between two steps was "
        f"{diary.pause_s:.2f} s;\na step takes {JOB.step_s:.2f} s."
    )


STORY = Story(
    name="scale_during_traffic",
    title="Scale-up during traffic",
    text="""Four ranks serve a step every 20 ms. The two that join need four seconds to load their weights, which
    they do before they say that they are ready. Nobody waits for that: serving stands still only from the
    moment at which both have called join_group until all have met in WORLD.""",
    cluster=cluster,
    remark=partial(remark),
)

if __name__ == "__main__":
    tell(STORY)
