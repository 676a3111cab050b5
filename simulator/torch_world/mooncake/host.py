"""Simulated Mooncake groups: what the stand-in module `mooncake.pg` asks of the simulator.

- A plain group is created by all its members, and they wait for each other. Who declares a group that exists, with the
  same ranks and capacity, attaches to it.
- A group with `is_extension` attaches to one that exists under the same name, whose ranks are the first of its own, and
  whose capacity is the same. The newcomer is isolated until it joins and is admitted.
- If there is nothing to attach to, the group silently runs alone: Mooncake logs it, creation succeeds, and every
  collective returns the caller's own data. This is what becomes of a scale joiner's model-parallel groups that are
  created as recovered ones.

docs/mooncake.md says what is modelled, row by row, and what is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from simulator.barrier_model import CohortBarrier
from simulator.engine.errors import RankEnded, SimulatorFault
from simulator.engine.scheduler import Wait
from simulator.mooncake_model.groups import Group
from simulator.mooncake_model.timing import CREATION_TIMEOUT_S
from simulator.records import Gathering, GroupView
from simulator.torch_world.context import RankContext
from simulator.torch_world.meeting import Room, Rooms, meet, path_of
from simulator.torch_world.mooncake.calls import Calls
from simulator.torch_world.mooncake.comm import MooncakeComm
from simulator.torch_world.mooncake.group import MooncakeGroup
from simulator.torch_world.mooncake.pg import CreationRequest, Settings
from simulator.torch_world.mooncake.process import Process, Processes
from simulator.torch_world.mooncake.work import ElasticMessage, ElasticWork, LocalWork, hint_of
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import StoreBase

SIGSEGV = 11

ViewOf = Callable[[Simulation, int, str], GroupView]
_WORK = (ElasticWork, ElasticMessage, LocalWork)


def _simulated(request: CreationRequest) -> StoreBase:
    """The store under which torch makes the group; in a rank it is always one of the simulation's."""
    store = request.store
    if not isinstance(store, StoreBase):
        raise SimulatorFault(f"a group of a simulated rank stands on a real store: {store!r}")
    return store


class MooncakeHost:
    """The simulator's side of the stand-in (protocol `mooncake_pg.Host`)."""

    def __init__(self, sim: Simulation, view_of: ViewOf) -> None:
        self._sim = sim
        self._view_of = view_of
        self._processes = Processes(sim)
        sim.at_begin.append(self._processes.forget)
        sim.at_rank_end.append(self._ended)

    @property
    def ranks_max(self) -> int:
        return self._sim.mooncake_ranks_max

    # -- creation --------------------------------------------------------------------------------------------------

    def create(self, request: CreationRequest, settings: Settings, device: str) -> dist.ProcessGroup:
        backend = "mooncake-cpu" if device == "cpu" else "mooncake"
        view = self._view_of(self._sim, request.group_size, backend)
        self._check_role(settings, view)
        store = _simulated(request)
        with self._processes.call():
            key = f"{store.table.name} {path_of(store)}"
            process = self._processes.enter(key, request.group_rank, view.ranks[request.group_rank])
            group = self._make(request, settings, view, process)
        self._sim.must_be_here("a Mooncake group").groups.append(group)
        return group

    def _make(self, request: CreationRequest, settings: Settings, view: GroupView, process: Process) -> MooncakeGroup:
        if settings.is_extension and not self._is_gathering(request, settings, view):
            return self._attach(request, settings, view, process)
        room = self._same(request, settings, view, process)
        if room is not None:
            return self._attached(room, request, settings, view, process)
        return self._found(request, settings, view, process)

    def _is_gathering(self, request: CreationRequest, settings: Settings, view: GroupView) -> bool:
        """Members of this very group wait for the others."""
        store = _simulated(request)
        rooms: Rooms = store.table.meetings.get(path_of(store), {})
        room = rooms.get((view.ranks, (view.backend, settings.max_group_size)))
        return room is not None and not room.barrier.complete

    def _check_role(self, settings: Settings, view: GroupView) -> None:
        """What a joiner may not ask for: who takes a lost slot attaches, and of new ranks' groups only WORLD grows."""
        context = self._sim.must_be_here("a Mooncake group")
        if context.cohort.startswith("recover") and not settings.is_extension:
            text = f"recovering rank {context.rank} creates group '{view.label}' anew instead of attaching to it"
            self._sim.note("not_attached", text, group=view)
        grows = settings.max_group_size > len(view.ranks)
        world = context.world.default_pg
        whole = world is None or len(view.ranks) == world.size()
        if context.outsiders is not None and grows and not whole:
            text = f"group '{view.label}' {list(view.ranks)} of a joiner reserves {settings.max_group_size} slots"
            self._sim.note("reserves", text, group=view)

    def _rooms(self, request: CreationRequest, view: GroupView) -> list[tuple[object, Room, MooncakeComm]]:
        """Rooms of this name on the store, with what their members agreed on; whatever torch puts before the name."""
        table = _simulated(request).table
        return [
            (variant, room, room.comm)
            for rooms in table.meetings.values()
            for (_, variant), room in rooms.items()
            if isinstance(room.comm, MooncakeComm) and room.gathering.group.name == view.name
        ]

    def _ready(self, request: CreationRequest, settings: Settings, view: GroupView) -> list[tuple[Room, Group]]:
        """Complete groups under the same name, device and capacity that some process still has."""
        wanted = (view.backend, settings.max_group_size)
        found = [(room, comm.record) for variant, room, comm in self._rooms(request, view) if variant == wanted]
        return [(room, record) for room, record in found if record is not None and record.agents]

    def _found(self, request: CreationRequest, settings: Settings, view: GroupView, process: Process) -> MooncakeGroup:
        variant = (view.backend, settings.max_group_size)
        room = meet(
            self._sim, _simulated(request), view, wait_s=CREATION_TIMEOUT_S, variant=variant, crosses=False,
            make=MooncakeComm,
        )  # fmt: skip
        comm = room.comm
        assert isinstance(comm, MooncakeComm) and process.coordinator is not None
        if comm.record is None:
            auto = settings.auto_deactivate_on_failure
            comm.bind(process.coordinator.found(view.ranks, settings.max_group_size, auto_deactivate=auto))
        return MooncakeGroup(self._sim, room, request, settings, process, view.ranks)

    def _same(self, request: CreationRequest, settings: Settings, view: GroupView, process: Process) -> Room | None:
        """A group with these very ranks, whose slot is not this process's own already."""
        for room, record in self._ready(request, settings, view):
            holder = record.agents.get(request.group_rank)
            free = holder is not process.agent and request.group_rank not in record.left
            if record.order == view.ranks and free:
                return room
        return None

    def _attach(self, request: CreationRequest, settings: Settings, view: GroupView, process: Process) -> MooncakeGroup:
        store = _simulated(request)
        self._sim.announce("attach", ("group", f"{store.table.name} {path_of(store)}"), writes=False)
        target = self._target(request, settings, view)
        stack = self._sim.sites.capture(2)
        while target is None and view.label == "WORLD" and not self._any_ready(request, view):
            what = Gathering("create", view, None, {self._sim.must_be_here("a group").rank: stack})
            wait = Wait("create", f"a group to attach '{view.label}' {list(view.ranks)} to", stack, what)
            self._sim.wait_for_a_group(wait)
            target = self._target(request, settings, view)
        if target is None:
            return self._alone(request, settings, view, process)
        return self._attached(target, request, settings, view, process)

    def _any_ready(self, request: CreationRequest, view: GroupView) -> bool:
        return any(comm.record is not None for _, _, comm in self._rooms(request, view))

    def _attached(
        self, room: Room, request: CreationRequest, settings: Settings, view: GroupView, process: Process
    ) -> MooncakeGroup:
        comm = room.comm
        assert isinstance(comm, MooncakeComm) and comm.record is not None
        assert process.coordinator is not None and process.agent is not None
        process.coordinator.attach(comm.record, request.group_rank, process.agent, view.ranks)
        comm.dead.pop(view.ranks[request.group_rank], None)
        self._sim.log("attach", view.label, list(view.ranks))
        return MooncakeGroup(self._sim, room, request, settings, process, view.ranks)

    def _target(self, request: CreationRequest, settings: Settings, view: GroupView) -> Room | None:
        """The one group that has these ranks, or the first of them and not the caller's."""
        ready = self._ready(request, settings, view)
        same = [room for room, record in ready if record.order == view.ranks]
        if same:
            return same[-1]
        longer = []
        for room, record in ready:
            known = len(record.order)
            if known < len(view.ranks) and view.ranks[:known] == record.order and request.group_rank >= known:
                longer.append(room)
        return longer[0] if len(longer) == 1 else None

    def _alone(self, request: CreationRequest, settings: Settings, view: GroupView, process: Process) -> MooncakeGroup:
        if settings.max_group_size > 1 or not self._replaces_nothing(request, view):
            self._note_alone(request, settings, view)
        comm = MooncakeComm(self._sim, view, f"{path_of(_simulated(request))} alone")
        room = Room(Gathering("create", view, None), CohortBarrier(self._sim.scheduler.env, view.ranks), comm)
        return MooncakeGroup(self._sim, room, request, settings, process, view.ranks)

    def _replaces_nothing(self, request: CreationRequest, view: GroupView) -> bool:
        """A recovering rank's group of one that the lost rank never made: its own data comes back either way."""
        recovers = self._sim.must_be_here("a Mooncake group").cohort.startswith("recover")
        return recovers and not self._rooms(request, view)

    def _note_alone(self, request: CreationRequest, settings: Settings, view: GroupView) -> None:
        text = f"group '{view.label}' {list(view.ranks)} ({view.backend}) found nothing to attach to and runs alone"
        others = self._capacities(request, settings, view)
        self._sim.note("local_only", text, group=view, capacity=settings.max_group_size, others=others)

    def _capacities(self, request: CreationRequest, settings: Settings, view: GroupView) -> tuple[int, ...]:
        """Those of the groups that the caller would have attached to if its own were the same."""
        found: dict[int, None] = {}
        for variant, _, comm in self._rooms(request, view):
            assert isinstance(variant, tuple)
            order = comm.record.order if comm.record is not None and comm.record.agents else ()
            if order and view.ranks[: len(order)] == order and variant[1] != settings.max_group_size:
                found[variant[1]] = None
        return tuple(found)

    # -- the end of a process ----------------------------------------------------------------------------------------

    def _ended(self, context: RankContext, why: str) -> None:
        """A process is gone. One that has returned keeps its registration and its connections (docs/limits.md)."""
        process = self._processes.of(context)
        if process is None:
            return
        process.ended_s = float(self._sim.scheduler.env.now)
        if not why:
            return
        if process.hosts and process.coordinator is not None:
            process.coordinator.end_host()
        if process.agent is not None and process.coordinator is not None:
            process.coordinator.end(process.agent)
        for group in context.groups:
            if isinstance(group, MooncakeGroup) and not group.closed:
                group.comm.end(group.global_rank)

    # -- what mooncake.pg asks ---------------------------------------------------------------------------------------

    def membership(self, group: dist.ProcessGroup) -> Calls | None:
        return Calls(self._sim, group, self._processes) if isinstance(group, MooncakeGroup) else None

    def local_success(self, work: dist.Work) -> bool:
        return isinstance(work, _WORK) and work.local_success()

    def failed_ranks_hint(self, work: dist.Work) -> torch.Tensor | None:
        if not isinstance(work, _WORK):
            return None
        group = work._group
        assert isinstance(group, MooncakeGroup)
        return hint_of(group, work.failed_slots())

    def configure(self, knob: str, value: Any) -> None:
        self._sim.log("mooncake_set", knob, value)
        self._processes.here().set(knob, value)

    def crash(self, function: str, why: str) -> NoReturn:
        self._sim.note("crash", f"mooncake.pg.{function} on {why}: the real function reads a null pointer")
        context = self._sim.must_be_here(function)
        self._sim.end_rank(context, RankEnded("crash", -SIGSEGV))
        raise AssertionError("unreachable")
