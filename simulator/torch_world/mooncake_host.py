"""Simulated Mooncake groups: creation, extension, membership. Source: docs/limits.md and the measured facts there.

- A plain group is created by all its members, and they wait for each other.
- A group with `is_extension` attaches to one that exists under the same name, whose ranks are the first of its own, and
  whose capacity is the same. The newcomer is isolated (its collectives are local) until it joins and is admitted.
- If there is nothing to attach to, the group silently runs alone: Mooncake logs it, creation succeeds, and every
  collective returns the caller's own data. This is what becomes of a scale joiner's model-parallel groups that are
  created as recovered ones.

Not modelled: heart-beats, the death of a member (its peers wait), failed-rank hints, deactivation by the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from simulator.barrier_model import CohortBarrier
from simulator.barrier_model import Membership as MembershipModel
from simulator.collectives import Entry
from simulator.communicator import Communicator, Slot
from simulator.engine.errors import RankEnded, SimulatorFault
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.fake_pg import MODELS, FinishedWork, SimProcessGroup, SimWork
from simulator.records import Gathering, GroupView
from simulator.torch_world.meeting import Room, Rooms, meet, path_of
from simulator.torch_world.mooncake_pg import (
    CreationRequest,
    ProposalStatus,
    ProposeViewUpdateResponse,
    Settings,
    SyncAfterFailureResponse,
    SyncAfterFailureStatus,
)
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import StoreBase

CREATION_TIMEOUT_S = 300.0
ADMISSION_TIMEOUT_S = 20.0
SIGSEGV = 11

ViewOf = Callable[[Simulation, int, str], GroupView]


@dataclass(slots=True, eq=False)
class Elastic:
    """What the members of one Mooncake group share."""

    room: Room
    membership: MembershipModel
    epoch: int = 0


class MooncakeGroup(SimProcessGroup):
    """One rank's Mooncake group: an active member, an isolated newcomer, or alone."""

    def __init__(
        self,
        sim: Simulation,
        room: Room,
        request: CreationRequest,
        settings: Settings,
        elastic: Elastic | None,
        ranks: tuple[int, ...],
    ) -> None:
        model = MODELS[room.comm.view.backend]
        super().__init__(sim, model, room.comm, request.group_rank, request.store, request.timeout, ranks)
        self.settings = settings
        self.elastic = elastic
        mask = settings.active_ranks
        self.mask = torch.zeros(settings.max_group_size, dtype=torch.int32) if mask is None else mask
        self.refresh_mask()

    @property
    def slot(self) -> int:
        return self._group_rank

    @property
    def active(self) -> bool:
        return self.elastic is not None and self.slot in self.elastic.membership.active

    def size(self) -> int:
        return self.elastic.membership.world_size if self.elastic is not None and self.active else self._declared_size

    def refresh_mask(self) -> None:
        """Write the active ranks into the user's tensor."""
        slots = self.elastic.membership.mask if self.elastic is not None and self.active else []
        wanted = slots or [int(slot == self.slot) for slot in range(self.settings.max_group_size)]
        with torch.inference_mode():
            self.mask[: len(wanted)] = torch.tensor(wanted, dtype=torch.int32)

    def _join(self, entry: Entry) -> SimWork:
        if self.active:
            return super()._join(entry)
        self._check(entry)
        stack = self.sim.sites.capture(2)
        self.sim.log("local", entry.op, self.comm.view.label)
        _run_alone(entry, self.slot, self._declared_size)
        return FinishedWork(self, entry.op, entry.outputs, stack)

    def _slot(self, entry: Entry, stack: Stack) -> Slot:
        return self.comm.enter(self.global_rank, entry, stack)


def _run_alone(entry: Entry, slot: int, size: int) -> None:
    """A collective of a group with one active member: its own part only; a foreign root's broadcast reads zeros."""
    with torch.inference_mode():
        if entry.op == "broadcast" and entry.root != slot:
            for tensor in entry.outputs:
                tensor.zero_()
        elif entry.op == "all_gather":
            for position, target in enumerate(entry.outputs):
                if position % size == slot:
                    target.copy_(entry.inputs[position // size].reshape(target.shape))
        elif entry.op == "reduce_scatter":
            for position, source in enumerate(entry.inputs):
                if position % size == slot:
                    target = entry.outputs[position // size]
                    target.copy_(source.reshape(target.shape))


class View:
    """The functions of `mooncake.pg` on one rank's group (protocol `mooncake_pg.Membership`)."""

    def __init__(self, sim: Simulation, group: MooncakeGroup) -> None:
        self._sim = sim
        self._group = group

    def active_ranks(self) -> torch.Tensor:
        return self._group.mask

    def num_synced_ranks(self) -> int:
        elastic = self._group.elastic
        return 0 if elastic is None else len(elastic.membership.active)

    def epoch(self) -> int:
        elastic = self._group.elastic
        return 0 if elastic is None else elastic.epoch

    def _must_be_valid(self, call: str) -> Elastic:
        if self._group.elastic is None:
            what = "joinGroup" if call == "Join" else call[0].lower() + call[1:]
            raise RuntimeError(
                f"mooncakePgComm{call} failed: operation not supported: {what} is unavailable because this "
                "communicator is invalid"
            )
        return self._group.elastic

    def _announce(self, verb: str, *, writes: bool = True) -> None:
        self._sim.announce(verb, ("membership", self._group.comm.key), writes=writes)

    def _must_fit(self, call: str, what: str, ranks: list[int], membership: MembershipModel) -> None:
        if any(not 0 <= rank < membership.capacity for rank in ranks):
            raise RuntimeError(f"mooncakePgComm{call} failed: invalid argument: {what} is out of range")

    def peer_state(self, ranks: list[int]) -> list[bool]:
        membership = self._must_be_valid("GetPeerState").membership
        self._must_fit("GetPeerState", "peer rank", ranks, membership)
        self._announce("get_peer_state", writes=False)
        known = [rank in membership.active or (self._group.active and rank in membership.joining) for rank in ranks]
        if not all(known):
            self._sim.scheduler.poll(f"mooncake.pg.get_peer_state({ranks})")
        return known

    def activate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        elastic = self._must_be_valid("ActivateRanks")
        membership = elastic.membership
        self._must_fit("ActivateRanks", "rank to activate", ranks, membership)
        self._announce("recover_ranks")
        if all(rank in membership.active for rank in ranks):
            return self._answer(ProposalStatus.Applied)
        if any(rank not in membership.registered and rank not in membership.active for rank in ranks):
            return self._answer(ProposalStatus.Rejected, "target in-group rank is out of valid range")
        deadline_s = self._sim.scheduler.env.now + ADMISSION_TIMEOUT_S
        while not membership.admit(ranks):
            left_s = deadline_s - self._sim.scheduler.env.now
            wait = self._wait(f"mooncake.pg.recover_ranks({ranks})", "recover", ranks, explicit=True)
            if left_s <= 0 or not self._sim.wait(membership.wait_for_join(), wait, left_s):
                return self._answer(ProposalStatus.Rejected, "proposal admission timed out")
        self._admitted(elastic)
        return self._answer(ProposalStatus.Applied)

    def deactivate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        elastic = self._must_be_valid("DeactivateRanks")
        self._must_fit("DeactivateRanks", "rank to deactivate", ranks, elastic.membership)
        self._announce("deactivate_ranks")
        if any(rank not in elastic.membership.active for rank in ranks):
            return self._answer(ProposalStatus.Rejected, "target in-group rank is out of valid range")
        for rank in ranks:
            elastic.membership.active.pop(rank, None)
        self._admitted(elastic)
        return self._answer(ProposalStatus.Applied)

    def join(self) -> None:
        membership = self._must_be_valid("Join").membership
        if self._group.active:
            raise RuntimeError(
                "mooncakePgCommJoin failed: invalid state: joinGroup requires an isolated or inactive rank"
            )
        self._announce("join_group")
        text = f"mooncake.pg.join_group on group '{self._group.comm.view.label}'"
        self._sim.log("join", self._group.comm.view.label)
        self._sim.wait(membership.join(self._group.slot), self._wait(text, "join", []))
        self._group.refresh_mask()

    def sync_after_failure(self) -> SyncAfterFailureResponse:
        self._must_be_valid("SyncAfterFailure")
        return SyncAfterFailureResponse(status=SyncAfterFailureStatus.NoPending)

    def _wait(self, text: str, op: str, ranks: list[int], *, explicit: bool = False) -> Wait:
        stack = self._sim.sites.capture(2)
        return Wait("membership", text, stack, Gathering(op, self._group.comm.view, None), explicit)

    def _answer(self, status: ProposalStatus, reason: str = "") -> ProposeViewUpdateResponse:
        return ProposeViewUpdateResponse(status=status, new_epoch=self.epoch(), dropped_ranks=[], reject_reason=reason)

    def _admitted(self, elastic: Elastic) -> None:
        """The group has new members: its ranks, masks and sequence numbers follow."""
        elastic.epoch += 1
        comm = self._group.comm
        members = [g for g in self._all_groups() if g.comm is comm]
        ranks = {group.slot: group.global_rank for group in members}
        active = sorted(elastic.membership.active)
        comm.view = GroupView(
            comm.view.name, comm.view.desc, tuple(ranks.get(slot, slot) for slot in active), comm.view.backend
        )
        seq = comm.next_seq.get(self._group.global_rank, 0)
        for rank in comm.view.ranks:
            comm.next_seq.setdefault(rank, seq)
        for group in members:
            group.refresh_mask()
        self._sim.scheduler.progress()
        self._sim.log("admit", comm.view.label, list(comm.view.ranks))

    def _all_groups(self) -> list[MooncakeGroup]:
        contexts = self._sim.contexts.values()
        return [g for context in contexts for g in context.groups if isinstance(g, MooncakeGroup)]


def _simulated(request: CreationRequest) -> StoreBase:
    """The store under which torch makes the group; in a rank it is always one of the simulation's."""
    store = request.store
    if not isinstance(store, StoreBase):
        raise SimulatorFault(f"a group of a simulated rank stands on a real store: {store!r}")
    return store


class MooncakeHost:
    """What the stand-in module `mooncake.pg` asks of the simulator (protocol `mooncake_pg.Host`)."""

    def __init__(self, sim: Simulation, view_of: ViewOf) -> None:
        self._sim = sim
        self._view_of = view_of
        self._elastic: dict[int, Elastic] = {}
        sim.at_begin.append(self._elastic.clear)

    def create(self, request: CreationRequest, settings: Settings, device: str) -> dist.ProcessGroup:
        backend = "mooncake-cpu" if device == "cpu" else "mooncake"
        view = self._view_of(self._sim, request.group_size, backend)
        self._check_role(settings, view)
        if settings.is_extension:
            group = self._attach(request, settings, view)
        else:
            group = self._create(request, settings, view)
        self._sim.must_be_here("a Mooncake group").groups.append(group)
        return group

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

    def _create(self, request: CreationRequest, settings: Settings, view: GroupView) -> MooncakeGroup:
        variant = (view.backend, settings.max_group_size)
        store = _simulated(request)
        room = meet(self._sim, store, view, wait_s=CREATION_TIMEOUT_S, variant=variant, crosses=False)
        elastic = self._elastic.get(id(room.comm))
        if elastic is None:
            active = dict.fromkeys(range(len(view.ranks)))
            membership = MembershipModel(self._sim.scheduler.env, settings.max_group_size, active)
            elastic = self._elastic[id(room.comm)] = Elastic(room, membership)
        return MooncakeGroup(self._sim, room, request, settings, elastic, view.ranks)

    def _attach(self, request: CreationRequest, settings: Settings, view: GroupView) -> MooncakeGroup:
        store = _simulated(request)
        self._sim.announce("attach", ("group", f"{store.table.name} {path_of(store)}"), writes=False)
        target = self._target(request, settings, view)
        stack = self._sim.sites.capture(2)
        while target is None and view.label == "WORLD":
            what = Gathering("create", view, None, {self._sim.must_be_here("a group").rank: stack})
            wait = Wait("create", f"a group to attach '{view.label}' {list(view.ranks)} to", stack, what)
            self._sim.wait_for_a_group(wait)
            target = self._target(request, settings, view)
        if target is None:
            return self._alone(request, settings, view)
        elastic = self._elastic[id(target.comm)]
        elastic.membership.register(request.group_rank)
        elastic.membership.active.pop(request.group_rank, None)
        self._sim.log("attach", view.label, list(view.ranks))
        return MooncakeGroup(self._sim, target, request, settings, elastic, view.ranks)

    def _target(self, request: CreationRequest, settings: Settings, view: GroupView) -> Room | None:
        """A complete group under the same name whose ranks are the first of `view`'s, with the same capacity."""
        store = _simulated(request)
        rooms: Rooms = store.table.meetings.get(path_of(store), {})
        for (ranks, variant), room in rooms.items():
            fits = view.ranks[: len(ranks)] == ranks and variant == (view.backend, settings.max_group_size)
            if fits and room.barrier.complete and id(room.comm) in self._elastic:
                return room
        return None

    def _alone(self, request: CreationRequest, settings: Settings, view: GroupView) -> MooncakeGroup:
        self._sim.note(
            "local_only",
            f"group '{view.label}' {list(view.ranks)} ({view.backend}) found nothing to attach to and runs alone",
            group=view,
        )
        comm = Communicator(self._sim, view, f"{path_of(_simulated(request))} alone")
        room = Room(Gathering("create", view, None), CohortBarrier(self._sim.scheduler.env, view.ranks), comm)
        return MooncakeGroup(self._sim, room, request, settings, None, view.ranks)

    def membership(self, group: dist.ProcessGroup) -> View | None:
        return View(self._sim, group) if isinstance(group, MooncakeGroup) else None

    def local_success(self, work: dist.Work) -> bool:
        return isinstance(work, SimWork) and isinstance(work._group, MooncakeGroup) and work.is_success()

    def failed_ranks_hint(self, work: dist.Work) -> torch.Tensor | None:
        if not (isinstance(work, SimWork) and isinstance(work._group, MooncakeGroup)):
            return None
        return torch.zeros(work._group.settings.max_group_size, dtype=torch.int32)

    def configure(self, knob: str, value: Any) -> None:
        self._sim.log("mooncake_set", knob, value)

    def crash(self, function: str, why: str) -> NoReturn:
        self._sim.note("crash", f"mooncake.pg.{function} on {why}: the real function reads a null pointer")
        context = self._sim.must_be_here(function)
        self._sim.end_rank(context, RankEnded("crash", -SIGSEGV))
        raise AssertionError("unreachable")
