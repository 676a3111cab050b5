"""Steps that many scenarios share."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from tests.parity_mooncake.observer import Observer

DETECTION_US = 2_000_000
WINDOW_US = 4_000_000


def primary(me: Observer, size: int = 2, capacity: int = 4, *, name: str = "init") -> None:
    """A launched rank of a world that can grow; it lets joiners start."""
    me.init(size, capacity, name=name)
    me.flag(f"up {me.rank}")


def joiner(me: Observer, size: int = 4, capacity: int = 4, *, after: Sequence[int] = (0, 1)) -> None:
    """A rank that attaches to the world of those that are up."""
    me.wait_for(*(f"up {rank}" for rank in after))
    me.init(size, capacity, True)
    me.flag(f"attached {me.rank}")


def is_joiner(me: Observer) -> bool:
    """It belongs to a later cohort."""
    return me.process.role == "scale"


def quick(me: Observer) -> None:
    """Short time-outs, for scenarios that are not about their length."""
    me.pg.set_collective_timeout_us(DETECTION_US)
    me.pg.set_fault_reconciliation_window_us(WINDOW_US)


def admit(me: Observer, ranks: Sequence[int], *, by: Sequence[int] = (0,)) -> None:
    """Primaries wait for the joiners, `by` recover them; all of them meet afterwards, and joiners join."""
    if is_joiner(me):
        me.join()
    else:
        me.wait_for_peers(ranks)
        if me.rank in by:
            me.recover(ranks)
            me.flag("admitted")
        me.wait_for("admitted")


def world(me: Observer, size: int, *options: object) -> None:
    """A plain world that has met once."""
    me.init(size, *options)
    me.all_reduce(me.rank + 1, name="first")


def member(group: object) -> bool:
    """`new_group` gave a group of which the caller is a member."""
    return isinstance(group, dist.ProcessGroup)


def nap(me: Observer, seconds: float = 0.5) -> None:
    """Let time pass."""
    me.wait_until(lambda: False, seconds)


def world_and_deaths(me: Observer, size: int, *victims: int, options: tuple[object, ...] = ()) -> None:
    """A world with short time-outs of which some have died just now."""
    quick(me)
    world(me, size, *options)
    if me.rank in victims:
        me.die()
    nap(me)


def admit_next(me: Observer, ranks: Sequence[int], by: int = 0) -> None:
    """Active ranks wait for joiners, and one recovers them."""
    me.wait_for_peers(ranks)
    if me.rank == by:
        me.recover(ranks)
        me.flag(f"admitted {list(ranks)}")
    me.wait_for(f"admitted {list(ranks)}")
