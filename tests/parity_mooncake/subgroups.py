"""Joiners create sub-groups while primaries do nothing; new_group in a plain world."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.parity_mooncake.observer import BACKEND, Group, Observer
from tests.parity_mooncake.scenario import Join, Launch, Table
from tests.parity_mooncake.steps import admit, is_joiner, joiner, member, primary, world

table = Table()
BARRIER = {"TORCH_DIST_INIT_BARRIER": "1"}


def _joiners_create(
    me: Observer, ranks: dict[int, list[int]] | list[int], options: tuple[Any, ...] = (), before: int = 0, **kw: Any
) -> None:
    if not is_joiner(me):
        primary(me)
        groups = [me.group([0, 1], name=f"earlier {number}") for number in range(before)]
        me.flag(f"made {me.rank}")
        me.wait_for("created 2", "created 3", within_s=22)
        for number, group in enumerate(groups):
            me.all_reduce(me.rank + 1, group, name=f"earlier {number}: sum")
        me.all_reduce(me.rank + 1)
        me.state()
        return
    me.wait_for("made 0", "made 1")
    joiner(me)
    mine = ranks[me.rank] if isinstance(ranks, dict) else ranks
    group = me.group(mine, *options, **kw)
    me.flag(f"created {me.rank}")
    _use(me, group)


def _use(me: Observer, group: Group) -> None:
    me.note("is a group", member(group))
    if member(group):
        me.state("sub", group)
        me.all_reduce(me.rank, group, name="sub sum")
        me.call("sub barrier", dist.barrier, group)
        me.reported_all_reduce(me.rank, "sub reported", group)
    elif group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        me.all_reduce(me.rank + 1, group, name="on what was returned")


LOCAL: dict[str, Any] = {"use_local_synchronization": True}
CREATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "own_local": ("[2, 3], local", {"ranks": [2, 3], **LOCAL}),
    "own": ("[2, 3], not local", {"ranks": [2, 3]}),
    "own_after_two": ("[2, 3], not local, primaries have made two", {"ranks": [2, 3], "before": 2}),
    "own_local_after_two": ("[2, 3], local, primaries have made two", {"ranks": [2, 3], "before": 2, **LOCAL}),
    "foreign_local": ("[0, 1], the offset forgotten, local", {"ranks": [0, 1], **LOCAL}),
    "foreign": ("[0, 1], the offset forgotten, not local", {"ranks": [0, 1]}),
    "foreign_after_one": ("[0, 1], not local, primaries have made one", {"ranks": [0, 1], "before": 1}),
    "extension_local": ("[2, 3] as an extension of nothing, local", {"ranks": [2, 3], "options": (2, True), **LOCAL}),
    "extension": ("[2, 3] as an extension of nothing", {"ranks": [2, 3], "options": (2, True)}),
    "extension_all": ("[0 .. 3] as an extension of nothing", {"ranks": [0, 1, 2, 3], "options": (4, True)}),
    "extension_no_prefix": (
        "[2, 3] as an extension, a group of that name exists",
        {"ranks": [2, 3], "options": (2, True), "before": 1},
    ),
    "extension_other_max": (
        "[0 .. 3] as an extension of a group with another maximum",
        {"ranks": [0, 1, 2, 3], "options": (4, True), "before": 1},
    ),
    "all": ("[0 .. 3] without the flag", {"ranks": [0, 1, 2, 3]}),
    "all_local": ("[0 .. 3] without the flag, local", {"ranks": [0, 1, 2, 3], **LOCAL}),
    "two_lists": ("rank 2 says [2, 3], rank 3 says [1, 3]", {"ranks": {2: [2, 3], 3: [1, 3]}, **LOCAL}),
    "own_larger_max": ("[2, 3] with room for 4, local", {"ranks": [2, 3], "options": (4,), **LOCAL}),
}
for _name, (_what, _how) in CREATIONS.items():
    _program = partial(_joiners_create, **_how)
    table.add(f"joiners_create_{_name}", _program, f"Joiners create {_what}.", (Launch(2), Join(2, 3)), limit_s=30)
    if not _how.get("use_local_synchronization"):
        table.add(
            f"joiners_create_{_name}_barrier",
            _program,
            f"Joiners create {_what}, with the barrier.",
            (Launch(2), Join(2, 3)),
            limit_s=30,
            env=BARRIER,
        )


@table(Launch(2), Join(2, 3), limit_s=30)
def flag_on_one_plain_first(me: Observer) -> None:
    """One joiner creates [2, 3] with the flag, the other without, which comes first: an exact match attaches."""
    _one_with_flag(me, late=3)


@table(Launch(2), Join(2, 3), limit_s=50)
def flag_on_one_flagged_first(me: Observer) -> None:
    """The one with the flag comes first, and runs alone; the other waits."""
    _one_with_flag(me, late=2)


def _one_with_flag(me: Observer, late: int) -> None:
    if not is_joiner(me):
        primary(me)
        me.wait_for("over 2", "over 3", within_s=60)
        return
    joiner(me)
    if me.rank == late:
        me.wait_until(lambda: False, 4.0)
    group = me.group([2, 3], 2, me.rank == 3, use_local_synchronization=True)
    me.note("is a group", member(group))
    if member(group):
        me.state("sub", group)
        me.all_reduce(me.rank, group, name="sum")


@table(Launch(2), limit_s=25)
def same_list_other_maximum(me: Observer) -> None:
    """Two groups that differ in their maximum never meet."""
    world(me, 2)
    me.group([0, 1], 2 if me.rank else 4)


@table(Launch(2), Join(2, 3), limit_s=25, env=BARRIER)
def barrier_key_polluted(me: Observer) -> None:
    """The joiners' names add to the primaries' barrier key: all hang."""
    if is_joiner(me):
        joiner(me)
        me.group([2, 3])
        return
    primary(me)
    me.wait_for("attached 2", "attached 3")
    me.wait_until(lambda: False, 3.0)
    me.group([0, 1])


@table(Launch(2), Join(2, 3), limit_s=25)
def barrier_on_joiners_only(me: Observer) -> None:
    """With the barrier in the joiners' environment alone, their init hangs."""
    if is_joiner(me):
        os.environ.update(BARRIER)
        joiner(me)
        return
    primary(me)
    me.all_reduce(me.rank + 1)


def _groups_after(me: Observer, before: int = 0, **kw: Any) -> None:
    if is_joiner(me):
        joiner(me)
    else:
        me.init(2, 4)
        for _ in range(before):
            me.group([0, 1], name="earlier")
        me.flag(f"up {me.rank}")
    admit(me, [2, 3])
    me.all_reduce(me.rank + 1)
    group = me.group([0, 1, 2, 3], **kw)
    me.all_reduce(me.rank + 1, group, name="sum")


for _name, _how in (("", {}), ("_local", LOCAL)):
    for _before in (0, 1):
        table.add(
            f"group_of_all_after_scale_up{_name}{'_uneven' if _before else ''}",
            partial(_groups_after, before=_before, **_how),
            "All four create a group afterwards" + (", the primaries have one more" if _before else ""),
            (Launch(2), Join(2, 3)),
            limit_s=25,
        )


@table(Launch(2), Join(2, 3), limit_s=30)
def gloo_of_joiners_local(me: Observer) -> None:
    """A gloo sub-group of the joiners in a Mooncake world, local."""
    _gloo_of_joiners(me, **LOCAL)


@table(Launch(2), Join(2, 3), limit_s=30)
def gloo_of_joiners(me: Observer) -> None:
    """The same, not local, while its name is unused."""
    _gloo_of_joiners(me)


def _gloo_of_joiners(me: Observer, **kw: Any) -> None:
    if not is_joiner(me):
        primary(me)
        me.wait_for("over 2", "over 3", within_s=25)
        return
    joiner(me)
    group = me.group([2, 3], backend="gloo", timeout=timedelta(seconds=10), **kw)
    if member(group):
        me.all_reduce(me.rank, group, name="sum")


@table(Launch(4), limit_s=20)
def mooncake_halves_of_a_gloo_world(me: Observer) -> None:
    """The rank in the first Mooncake group becomes the rank of the process: [2, 3] as the first one fails."""
    me.call("init", dist.init_process_group, "gloo", rank=me.rank, world_size=4)
    group = me.group([0, 1] if me.rank < 2 else [2, 3], name="half", backend=BACKEND, **LOCAL)
    if member(group):
        me.all_reduce(me.rank, group, name="sum")


@table(Launch(4), limit_s=20)
def mooncake_all_of_a_gloo_world(me: Observer) -> None:
    """A Mooncake group of all comes first: halves work afterwards."""
    me.call("init", dist.init_process_group, "gloo", rank=me.rank, world_size=4)
    group = me.group([0, 1, 2, 3], backend=BACKEND)
    me.all_reduce(me.rank, group, name="sum of all")
    half = me.group([0, 1] if me.rank < 2 else [2, 3], name="half", backend=BACKEND, **LOCAL)
    if member(half):
        me.all_reduce(me.rank, half, name="sum")


def _member_skips(me: Observer, skips: int, **kw: Any) -> None:
    world(me, 3)
    if me.rank != skips:
        group = me.group([0, 1], **kw)
        me.note("is a group", member(group))
        if member(group):
            me.all_reduce(me.rank + 1, group, name="sum")
    else:
        me.wait_until(lambda: False, 60.0)


for _name, _skips, _how in (("member", 1, {"timeout": timedelta(seconds=5)}), ("outsider", 2, {})):
    for _env in ({}, BARRIER):
        table.add(
            f"{_name}_skips_new_group{'_barrier' if _env else ''}",
            partial(_member_skips, skips=_skips, **_how),
            f"A {_name} does not call new_group([0, 1]).",
            (Launch(3),),
            limit_s=22,
            env=_env,
        )


def _lists(me: Observer, lists: Sequence[list[int]]) -> None:
    world(me, 3)
    group = me.group(lists[me.rank], name="odd")
    me.note("is a group", member(group))
    if member(group):
        me.all_reduce(me.rank + 1, group, name="sum")


for _name, _ranks in (
    ("permuted_lists", [[0, 1, 2], [1, 0, 2], [2, 1, 0]]),
    ("different_lists", [[0, 1, 2], [0, 1], [0, 1, 2]]),
    ("disjoint_lists", [[0, 1], [0, 1], [2]]),
):
    table.add(
        _name, partial(_lists, lists=_ranks), "new_group of such lists in a plain world", (Launch(3),), limit_s=22
    )


@table(Launch(3), limit_s=22)
def groups_in_another_order(me: Observer) -> None:
    """Rank 1 creates two groups in the other order."""
    world(me, 3)
    for ranks in [[0, 1], [0, 1, 2]] if me.rank != 1 else [[0, 1, 2], [0, 1]]:
        me.group(ranks)


@table(Launch(3), limit_s=22)
def local_names_skewed(me: Observer) -> None:
    """Rank 0 has one more group, so its local name differs."""
    world(me, 3)
    if me.rank == 0:
        me.group([0], **LOCAL)
    me.group([0, 1, 2], **LOCAL)


def _ticks(me: Observer, name: str, fn: Callable[..., Any], *args: Any, **kw: Any) -> None:
    """A call that waits 3 s, and how many of the ticks of another thread it let through."""
    count = [0]
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            count[0] += 1
            time.sleep(0.1)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    time.sleep(0.05)
    before = count[0]
    me.call(name, fn, *args, show=lambda: "returned", **kw)
    let_through = count[0] - before
    over.set()
    thread.join()
    me.note(f"{name}: another thread", "runs" if let_through > 10 else "stands still")


@table(Launch(2), limit_s=25)
def threads_beside_a_wait(me: Observer) -> None:
    """new_group holds the GIL while it waits; all_reduce and barrier release it."""
    world(me, 2)
    for name, fn, args in (
        ("new_group", dist.new_group, ([0, 1],)),
        ("all_reduce", dist.all_reduce, (torch.ones(1),)),
        ("barrier", dist.barrier, ()),
    ):
        if me.rank == 1:
            time.sleep(3.0)
            me.call(name, fn, *args, show=lambda: "returned")
        else:
            _ticks(me, name, fn, *args)


@table(Launch(2), Join(2), limit_s=25)
def threads_beside_join_and_recover(me: Observer) -> None:
    """join_group and recover_ranks hold the GIL while they wait."""
    if is_joiner(me):
        joiner(me, 3, 3)
        time.sleep(3.0)
        me.join()
        me.meet("first", 0, 1, 2)
        me.wait_for("out")
        time.sleep(0.5)
        me.flag("rejoins")
        _ticks(me, "join_group again", me.pg.join_group, dist.group.WORLD)
        return
    primary(me, capacity=3)
    me.wait_for("attached 2")
    if me.rank == 0:
        _ticks(me, "recover", me.pg.recover_ranks, dist.group.WORLD, [2])
    me.meet("first", 0, 1, 2)
    if me.rank == 0:
        me.deactivate([2])
        me.flag("out")
        me.wait_for("rejoins")
        time.sleep(4.0)
        me.recover([2], name="recover again")


@table(
    Launch(2),
    Join(2, 3),
    limit_s=35,
    races="both cohorts' gloo groups have the name 1: 3 of 7 measured runs went well, 4 timed out or hung",
)
def gloo_of_joiners_beside_that_of_primaries(me: Observer) -> None:
    """The primaries have a gloo group of that name."""
    if not is_joiner(me):
        me.init(2, 4)
        me.group([0, 1], backend="gloo")
        me.flag(f"up {me.rank}")
        me.wait_for("over 2", "over 3", within_s=25)
        return
    joiner(me)
    group = me.group([2, 3], backend="gloo", timeout=timedelta(seconds=10))
    if member(group):
        me.all_reduce(me.rank, group, name="sum")
