"""Where the members of a new group find each other: under the group's prefix in the store.

gloo connects all members while it makes the group, and so waits for each of them; nccl makes a handle and connects at
the first collective. The identity of a group is the prefix (default group, torch's name for the group, device): torch's
counters and hashes decide it, so a skewed counter keeps members apart here as it does in reality. Two lists under one
prefix are crossed wires: real gloo then connects strangers; here they are kept apart and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.barrier_model import CohortBarrier
from simulator.communicator import Communicator
from simulator.engine.scheduler import Wait
from simulator.faults.faults import Faults
from simulator.records import Gathering, GroupView
from simulator.torch_world.host_order import hear, tell
from simulator.torch_world.second_life import Life
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import StoreBase


@dataclass(slots=True, eq=False)
class Room:
    """One list of ranks under one prefix."""

    gathering: Gathering
    barrier: CohortBarrier
    comm: Communicator
    life: Life = field(default_factory=Life)


Rooms = dict[tuple[tuple[int, ...], object], Room]


def path_of(store: StoreBase) -> str:
    """The prefix of a store as its bottom store names it."""
    return store.path_of("") if hasattr(store, "path_of") else ""


def meet(
    sim: Simulation,
    store: StoreBase,
    view: GroupView,
    *,
    wait_s: float | None,
    variant: object = None,
    crosses: bool = True,
    make: type[Communicator] = Communicator,
) -> Room:
    """Arrive under `store`'s prefix as a member of `view`; with `wait_s`, wait for the others up to so many seconds.

    Args:
        variant: members must agree on this as well (Mooncake: the capacity).
        crosses: other lists under this prefix are crossed wires.
        make: what the members share.

    Raises:
        DistStoreError: the others did not come in time.
    """
    import torch.distributed as dist

    context = sim.must_be_here("a process group")
    rank, path = context.rank, path_of(store)
    key = f"{store.table.name} {path}"
    if sim.faults is not None:
        sim.faults.call("create")
        if wait_s is not None and store.table.is_served:
            _reach(sim.faults, store, view, path, wait_s)
    sim.announce("create", ("group", key, view.ranks))
    stack = sim.sites.capture(2)
    rooms: Rooms = store.table.meetings.setdefault(path, {})
    room = rooms.get((view.ranks, variant))
    if room is None or rank in room.gathering.arrived:
        before = None if room is None else room.life
        room = rooms[view.ranks, variant] = _open(sim, view, key, before, make)
        if crosses:
            _note_crossing(sim, rooms, room)
    room.gathering.arrived[rank] = stack
    if view.backend == "gloo":
        room.life.arrive(sim, view, rank, store, stack)
    tell(sim, ("group", room.comm.number))
    faults = sim.faults if wait_s is not None and room.barrier.complete_with_one_more else None
    is_held = faults is not None and faults.hold(room.gathering, lambda: _arrive(sim, room, rank))
    if not is_held:
        room.barrier.arrive(rank)
    sim.log("create", view.label, list(view.ranks), path)
    if room.barrier.complete:
        sim.group_completed()
    if wait_s is None or room.barrier.complete:
        if wait_s is not None:
            hear(sim, ("group", room.comm.number))
        sim.scheduler.progress()
        return room
    text = f"creation of group '{view.label}' {list(view.ranks)}"
    if not sim.wait(room.barrier.released, Wait("create", text, stack, room.gathering), wait_s):
        missing = view.ranks.index(room.gathering.missing[0])
        facts = {"group": view, "what": room.gathering, "doing": text}
        sim.note("timeout", f"{text} timed out", stack=stack, **facts)
        raise dist.DistStoreError(f"wait timeout after {int(wait_s * 1000)}ms, keys: /{path}0/{missing}")
    hear(sim, ("group", room.comm.number))
    return room


def _reach(faults: Faults, store: StoreBase, view: GroupView, path: str, wait_s: float) -> None:
    """The members publish their addresses in the store, and look for those of the others."""
    import torch.distributed as dist

    table = store.table
    if faults.requests.send("wait", (path,), table.name, table.node) > wait_s:
        raise dist.DistStoreError(f"wait timeout after {int(wait_s * 1000)}ms, keys: /{path}0/0")


def _arrive(sim: Simulation, room: Room, rank: int) -> None:
    room.barrier.arrive(rank)
    sim.group_completed()


def _open(
    sim: Simulation, view: GroupView, key: str, before: Life | None, make: type[Communicator] = Communicator
) -> Room:
    gathering, barrier = Gathering("create", view, None), CohortBarrier(sim.scheduler.env, view.ranks)
    return Room(gathering, barrier, make(sim, view, key), Life(before))


def _note_crossing(sim: Simulation, rooms: Rooms, mine: Room) -> None:
    own = mine.gathering.group.ranks
    others = [room for (ranks, _), room in rooms.items() if ranks != own and room.gathering.arrived]
    if not others:
        return
    other = others[0].gathering
    sim.note(
        "crossed",
        f"two lists of ranks meet under the one group name '{mine.gathering.group.name}'",
        group=mine.gathering.group,
        other=other.group,
        other_rank=next(iter(other.arrived)),
        other_stack=next(iter(other.arrived.values())),
        incomplete=bool(other.missing),
    )
