"""What the ranks of the elastic examples do: serve, join, come back.  The same code runs simulated and on Mooncake.

    serve(rank, Job(launched=4, capacity=8))     a rank of the first launch
    join(rank, Job(...), Came(first=4, ranks=2)) a rank of a later cohort
    recover(rank, Job(...), "second")            a new process in the slot of a lost rank

A step of serving is an all_reduce over WORLD, to which each rank brings 1, so that the sum says who took part.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refimpl.distributed import (
    BootstrapArgs,
    Change,
    ElasticMember,
    Life,
    ParallelLayout,
    ParallelState,
    Patience,
    Role,
    State,
    bring_up,
    join_deployment,
)
from refimpl.distributed.membership import add_up, world_targets


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all ranks of one example know."""

    launched: int
    """Ranks of the first launch."""
    capacity: int
    """Ranks that WORLD may grow to: max_world_size."""
    ends_after: int
    """Changes of the membership (grown, recovered, rolled back, lost) after which serving ends."""
    more_steps: int = 3
    """Steps that are served after it."""
    steps_max: int = 1000
    """Steps after which serving ends in any case."""
    step_s: float = 0.1
    """How long a step computes, in seconds."""
    backend: str = "mooncake-cpu"
    init_method: str = "env://"
    attn_tp: int = 1
    """Width of one attention replica, in ranks."""
    dies: Mapping[int, int] = field(default_factory=dict)
    """From rank to the step before which its process is killed."""
    loads_s: float = 0.0
    """How long a joiner loads its weights, in seconds."""
    dies_loading: tuple[int, ...] = ()
    """Ranks whose processes are killed then."""
    patience: Patience = field(default_factory=lambda: Patience(peers_s=10.0, step_s=20.0, admit_s=10.0, early_s=5.0))

    def layout(self, ranks: int) -> ParallelLayout:
        """Data-parallel attention, experts over all ranks."""
        return ParallelLayout(tp=ranks, attn_dp=ranks // self.attn_tp, moe_ep=ranks)


@dataclass(frozen=True, kw_only=True)
class Came:
    """How a later cohort was started; wrong on purpose in some of the examples."""

    first: int
    """Lowest rank that the launcher gave out."""
    ranks: int
    """How many it started."""
    rank_offset: int | None = None
    """What it told them; None for `first`."""
    capacity: int | None = None
    """max_world_size that it told them; None for that of the job."""
    attn_tp: int | None = None
    """Width of one attention replica; None for that of the job."""
    launch_id: str = "first"
    connects: bool = True
    """False: its data plane cannot be connected."""


@dataclass
class Diary:
    """What a rank went through."""

    life: Life
    changes: list[Change] = field(default_factory=list)
    served: list[tuple[int, int]] = field(default_factory=list)
    """How many ranks met in a step, and how many such steps there were in a row."""
    pause_s: float = 0.0
    """The longest time between the ends of two steps."""
    error: str = ""
    """Why it was turned away."""

    def note(self, met: int) -> None:
        """One more step, in which as many ranks met."""
        steps = self.served.pop()[1] if self.served and self.served[-1][0] == met else 0
        self.served.append((met, steps + 1))


def serve(rank: int, job: Job) -> Diary:
    """A rank of the first launch."""
    args = launch_args(rank, job)
    member = ElasticMember(bring_up(args), args, patience=job.patience)
    return _serve(member, job, Diary(member.life))


def join(rank: int, job: Job, came: Came) -> Diary:
    """A rank of a later cohort."""

    def connect(_ranks: tuple[int, ...]) -> None:
        if not came.connects:
            raise OSError("no route to the experts")

    return _come_in(join_args(rank, job, came), job, came.launch_id, connect)


def recover(rank: int, job: Job, launch_id: str) -> Diary:
    """A new process in the slot of a lost rank."""
    args = launch_args(rank, job, role=Role.RECOVERING_JOINER)
    return _come_in(args, job, launch_id)


def launch_args(rank: int, job: Job, **given: Any) -> BootstrapArgs:
    """How a rank of the first launch is started."""
    return BootstrapArgs(
        layout=job.layout(job.launched),
        cohort_rank=rank,
        backend=job.backend,
        init_method=job.init_method,
        max_world_size=job.capacity,
        **given,
    )


def join_args(rank: int, job: Job, came: Came) -> BootstrapArgs:
    """How a rank of a later cohort is started."""
    attn_tp = came.attn_tp or job.attn_tp
    return BootstrapArgs(
        layout=ParallelLayout(tp=came.ranks, attn_dp=came.ranks // attn_tp, moe_ep=came.ranks),
        cohort_rank=rank - came.first,
        backend=job.backend,
        init_method=job.init_method,
        max_world_size=came.capacity or job.capacity,
        role=Role.SCALE_JOINER,
        rank_offset=came.first if came.rank_offset is None else came.rank_offset,
    )


def _come_in(
    args: BootstrapArgs, job: Job, launch_id: str, connect: Callable[[tuple[int, ...]], None] = lambda ranks: None
) -> Diary:
    diary = Diary(Life(State.REGISTERING))

    def load(_groups: ParallelState) -> None:
        time.sleep(job.loads_s)
        if args.rank in job.dies_loading:
            die()

    try:
        member = join_deployment(
            args, launch_id=launch_id, load=load, data_plane=connect, patience=job.patience, life=diary.life
        )
    except RuntimeError as error:
        diary.error = str(error)
        return diary
    return _serve(member, job, diary)


def die() -> None:
    """As if the machine had gone: nothing is closed, nobody is told."""
    os.kill(os.getpid(), signal.SIGKILL)


def _serve(member: ElasticMember, job: Job, diary: Diary) -> Diary:
    """Steps, with a look at the membership between two of them, until rank 0 lets all stop."""
    left, before_s = job.more_steps, time.monotonic()
    for step in range(job.steps_max):
        if job.dies.get(member.rank) == step:
            die()
        diary.note(_step(member))
        now_s = time.monotonic()
        diary.pause_s, before_s = max(diary.pause_s, now_s - before_s), now_s
        time.sleep(job.step_s)
        change = member.poll()
        if change is not None:
            diary.changes.append(change)
            if change.kind == "stop":
                return diary
        left -= _has_ended(diary, job)
        if member.rank == 0 and left < 0:
            member.stop()
    raise RuntimeError(f"rank {member.rank} served {job.steps_max} steps and nobody let it stop")


def _has_ended(diary: Diary, job: Job) -> bool:
    """Rank 0, which is there from the first to the last step, knows."""
    return len(diary.changes) >= job.ends_after


def _step(member: ElasticMember) -> int:
    """One step.  Returns: how many ranks met in it; those that are left, if one was lost in it."""
    total = add_up(world_targets(member.groups)[0], [1])
    return total.numbers[0]
