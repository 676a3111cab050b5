"""Where the ranks of a group bring their buffers together: the n-th rendezvous of each rank on a group is one meeting.

What does not fit together is refused on all ranks, as torch does after it has exchanged sizes and devices. A group that
spans nodes is refused too: here each node is an NVLink domain of its own, and memory handles are file descriptors,
which do not leave a node. (Real ranks then raise or hang, depending on where their neighbour runs.)

Not modelled: domains that span nodes (fabric handles), the time-out of each step of the exchange: the time-out of the
group's store covers all of it.

Source: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from simulator.barrier_model import CohortBarrier
from simulator.communicator import Communicator
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.memory_records import Offer, Rendezvous
from simulator.records import Gathering
from simulator.torch_world.device_memory import Block
from simulator.torch_world.symmetric_operators import is_set, multicast_allowed
from simulator.torch_world.symmetric_space import Allocation

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup
    from simulator.torch_world.simulation import Simulation

REFUSALS = {
    "devices": "CUDASymmetricMemoryAllocator::rendezvous: detected allocations from overlapping devices from "
    "different ranks.",
    "sizes": "Expected reqs[r].buffer_size == reqs[0].buffer_size to be true, but got false.",
    "pads": "Expected reqs[r].buffer_offset == reqs[0].buffer_offset to be true, but got false.",
    "nodes": "CUDASymmetricMemory::rendezvous: the ranks of the group are on different nodes, and file descriptors "
    "cannot be sent from one node to another",
}
"""Why a meeting fails, and what its ranks raise. All but the last are torch's texts."""


@dataclass(slots=True, eq=False)
class Room:
    """One meeting.

    Attributes:
        number: of the run, for the log of memory.
        allocations: rank to the buffer that it brought.
        multicast: the addresses that stand for all buffers, once all are there.
    """

    number: int
    meeting: Rendezvous
    gathering: Gathering
    barrier: CohortBarrier
    allocations: dict[int, Allocation] = field(default_factory=dict)
    multicast: Block | None = None

    @property
    def peers(self) -> list[Allocation]:
        """The buffers in group-rank order."""
        return [self.allocations[rank] for rank in self.meeting.ranks]


class Meetings:
    """All meetings of a run, by group."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._forget()
        sim.at_begin.append(self._forget)
        sim.at_release.append(self._release)

    def _release(self) -> None:
        """The run is over: break the circles through which buffers and handles hold each other."""
        for rooms in self._rooms.values():
            for room in rooms:
                for allocation in room.allocations.values():
                    allocation.handles.clear()
        self._forget()

    def _forget(self) -> None:
        self._rooms: dict[Communicator, list[Room]] = {}
        self._came: dict[tuple[Communicator, int], int] = {}

    def join(self, allocation: Allocation, tensor: torch.Tensor, group: SimProcessGroup) -> Room:
        """Bring a buffer to the group's next meeting, and wait until all have.

        Raises:
            RuntimeError: the buffers do not fit together.
            DistStoreError: the others did not come in time.
        """
        sim, comm, rank = self._sim, group.comm, group.global_rank
        sim.announce("rendezvous", ("rendezvous", comm.key))
        stack = sim.sites.capture(1)
        room = self._next(comm, rank)
        room.allocations[rank] = allocation
        room.meeting.offers[rank] = _offer(sim, allocation, tensor, stack)
        room.gathering.arrived[rank] = stack
        sim.memory.publish(rank, ("rendezvous", room.number))
        sim.log("rendezvous", comm.view.label, f"seq={room.meeting.seq}")
        room.barrier.arrive(rank)
        if room.barrier.complete:
            self._complete(room)
        else:
            self._wait(room, group, stack)
        sim.memory.observe(rank, ("rendezvous", room.number))
        if room.meeting.refused:
            raise RuntimeError(REFUSALS[room.meeting.refused])
        return room

    def _next(self, comm: Communicator, rank: int) -> Room:
        seq = self._came.get((comm, rank), 0)
        self._came[comm, rank] = seq + 1
        rooms = self._rooms.setdefault(comm, [])
        if seq == len(rooms):
            rooms.append(self._open(comm, seq))
        return rooms[seq]

    def _open(self, comm: Communicator, seq: int) -> Room:
        view = comm.view
        meeting = Rendezvous(view.name, view.label, view.ranks, view.backend, seq)
        self._sim.memory.log.meetings.append(meeting)
        barrier = CohortBarrier(self._sim.scheduler.env, view.ranks)
        return Room(next(self._sim.numbers), meeting, Gathering("rendezvous", view, seq), barrier)

    def _wait(self, room: Room, group: SimProcessGroup, stack: Stack) -> None:
        text = f"rendezvous of symmetric memory, seq {room.meeting.seq}, on group '{room.meeting.label}'"
        wait = Wait("collective", text, stack, room.gathering)
        limit_s = group.get_group_store().timeout.total_seconds()
        if not self._sim.wait(room.barrier.released, wait, limit_s):
            missing = room.meeting.ranks.index(room.gathering.missing[0])
            self._sim.note(
                "timeout", f"{text} timed out", stack=stack, group=group.comm.view, what=room.gathering, doing=text
            )
            raise dist.DistStoreError(
                f"wait timeout after {int(limit_s * 1000)}ms, keys: /CUDASymmetricMemory/{room.meeting.seq}/{missing}"
            )

    def _complete(self, room: Room) -> None:
        sim, meeting = self._sim, room.meeting
        contexts = [sim.contexts[rank] for rank in meeting.ranks]
        overlap = all(is_set(context, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES") for context in contexts)
        meeting.refused = _why_refused([meeting.offers[rank] for rank in meeting.ranks], overlap)
        if not meeting.refused:
            for peer in room.allocations.values():
                for block in (peer.buffer, peer.pad):
                    block.ranks = tuple(sorted({*block.ranks, *meeting.ranks}))
            if not overlap and all(offer.multicast for offer in meeting.offers.values()):
                room.multicast = sim.memory.add_multicast([peer.buffer for peer in room.peers])
        sim.scheduler.progress()


def _offer(sim: Simulation, allocation: Allocation, tensor: torch.Tensor, stack: Stack) -> Offer:
    context, region = sim.must_be_here("a rendezvous"), allocation.buffer.region
    assert region is not None
    return Offer(
        region=region.number,
        nbytes=allocation.nbytes,
        pad_bytes=allocation.pad.nbytes,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=allocation.device,
        node=context.node.number,
        multicast=multicast_allowed(sim, context),
        stack=stack,
    )


def _why_refused(offers: Sequence[Offer], overlap: bool) -> str:
    """A key of `REFUSALS`, in the order in which torch asks; empty if they fit together."""

    def differ(values: Sequence[Any]) -> bool:
        return len(set(values)) > 1

    named = [(offer.node, offer.device) for offer in offers if offer.device.startswith("cuda:")]
    if not overlap and len(set(named)) < len(named):
        return "devices"
    if differ([offer.nbytes for offer in offers]):
        return "sizes"
    if differ([offer.pad_bytes for offer in offers]):
        return "pads"
    return "nodes" if differ([offer.node for offer in offers]) else ""
