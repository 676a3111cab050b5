"""Recovery: a rank is killed, and a new process takes its slot in WORLD and in every group of the launch.

python examples/elastic/recover_rank.py
"""

from __future__ import annotations

from ranks import Job, recover, serve
from story import Story, tell

from simulator import Cluster

JOB = Job(launched=4, capacity=8, ends_after=2, attn_tp=2)


def cluster() -> Cluster:
    made = Cluster().launch(serve, ranks=4, args=(JOB,)).fault("kill rank=2 at=0.55s")
    return made.recover(recover, ranks=[2], args=(JOB, "second"), at_s=45.0)


STORY = Story(
    name="recover_rank",
    title="Recovery of one rank",
    text="""Rank 2 of four is killed in its sixth step. The others wait at the next collective for Mooncake's window of
    30 s, go on with three, and find the rank missing in the mask of active ranks. After 45 s a new process
    asks for the slot. It attaches to WORLD and to every group that rank 2 was launched in (here attention
    groups of two), and the lowest surviving member of each group activates it there.""",
    cluster=cluster,
)

if __name__ == "__main__":
    tell(STORY)
