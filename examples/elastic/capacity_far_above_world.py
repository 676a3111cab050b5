"""max_ep_size far above the world: what does the reserve cost?

python examples/elastic/capacity_far_above_world.py
"""

from __future__ import annotations

from ranks import Job, launch_args, serve
from story import Story, tell

from refimpl.distributed import reserved_masks
from simulator import Cluster

JOB = Job(launched=4, capacity=64, ends_after=0, more_steps=5)


def cluster() -> Cluster:
    return Cluster().launch(serve, ranks=4, args=(JOB,))


def remark() -> str:
    args = launch_args(0, JOB)
    rows = reserved_masks(args.layout, args.plan())
    lines = [f"  {'group':<10} {'slots':>5} {'used':>4} {'masks':>5} {'bytes':>6} {'idle':>6}"]
    lines += [
        f"  {row.name:<10} {row.slots:>5} {row.used:>4} {row.masks:>5} {row.reserved_bytes:>6} {row.idle_bytes:>6}"
        for row in rows
    ]
    reserved, idle = sum(row.reserved_bytes for row in rows), sum(row.idle_bytes for row in rows)
    lines.append(f"  {'all':<10} {'':>5} {'':>4} {sum(row.masks for row in rows):>5} {reserved:>6} {idle:>6}")
    return (
        "Masks of active ranks that each rank keeps for its whole life (int32, on the device and on the host)\n"
        + "\n".join(lines)
        + f"\n  {idle} of {reserved} bytes, {100 * idle // reserved} %, are for slots that nobody fills."
    )


STORY = Story(
    name="capacity_far_above_world",
    title="max_ep_size far above the world: 64 slots for 4 ranks",
    text="""A deployment of four ranks is launched with max_world_size=64, the most that Mooncake takes. Each
    group that is created with it reserves a mask with one entry for each slot, for the device group and for
    the CPU group. Serving is as with an exact capacity; the memory is small, and stays.""",
    cluster=cluster,
    remark=remark,
)

if __name__ == "__main__":
    tell(STORY)
