"""When a rank of a Mooncake group cannot reach others: it reports them, asks the coordinator, or aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulator.engine.errors import RankEnded
from simulator.records import GroupView, Note
from simulator.torch_world.mooncake.seats import ElasticSlot, Seat
from simulator.torch_world.signals import SIGABRT
from simulator.torch_world.simulation import Simulation

if TYPE_CHECKING:
    from simulator.torch_world.mooncake.comm import MooncakeComm
    from simulator.torch_world.mooncake.group import MooncakeGroup

NO_SYNC = "PGAssertionException: syncAfterFailure failed for rank"
BAD_CHUNK = "PGAssertionException: P2P send got invalid chunk_len in credit slot."


def ask(handle: MooncakeGroup, failed: list[int], then: Callable[[], None], *, waits: bool) -> None:
    """A rank reports slots that it could not reach, and goes on: at once, or after the coordinator's decision."""
    comm, coordinator, agent = handle.comm, handle.process.coordinator, handle.process.agent
    ranks = [comm.rank_of(slot) for slot in failed]
    if coordinator is None or agent is None or not (coordinator.alive or waits):
        then()
    elif not coordinator.alive:
        abort(comm.sim, handle.global_rank, f"{NO_SYNC} {handle.global_rank}", comm.view)
    elif not waits:
        coordinator.report(ranks)
        then()
    else:
        decided = coordinator.sync_after(agent, ranks)
        if decided.callbacks is not None and not decided.triggered:
            decided.callbacks.append(lambda _: then())
        else:
            then()


def abort(sim: Simulation, rank: int, text: str, group: GroupView) -> None:
    """A rank ends itself as a failed assertion of Mooncake does: on another thread, so it goes on for a moment."""
    context, now_s = sim.contexts[rank], float(sim.scheduler.env.now)
    if sim.here() is context:
        sim.scheduler.env.timeout(0).callbacks.append(lambda _: abort(sim, rank, text, group))
    elif not context.ended:
        waits = [task.wait for task in context.tasks if task.wait is not None and task.wait.stack]
        stack = waits[0].stack if waits else ()
        sim.records.notes.append(Note("crash", rank, text, stack, now_s, {"group": group}))
        sim.end_rank(context, RankEnded("crash", -SIGABRT))


def note_partial(handle: MooncakeGroup, slot: ElasticSlot, seat: Seat) -> None:
    """A collective has gone on without some members; the note stands until the program asks."""
    comm, now_s = handle.comm, float(handle.sim.scheduler.env.now)
    missing = tuple(comm.rank_of(place) for place in sorted(seat.failed))
    facts: dict[str, Any] = {
        "group": comm.view, "seq": slot.gathering.seq, "op": seat.entry.op, "missing": missing, "asked": False,
        "waited_s": now_s - seat.entered_s, "synced": seat.asking, "mask": handle.settings.active_ranks is not None,
    }  # fmt: skip
    text = f"{seat.entry.op} seq {slot.gathering.seq} on group '{comm.view.label}' went on without {list(missing)}"
    seat.note = Note("partial", seat.rank, text, seat.stack, now_s, facts)
    handle.sim.records.notes.append(seat.note)
    handle.partial.append(seat.note)
    handle.sim.trace.add(now_s, seat.rank, "partial", seat.entry.op, comm.view.label, *missing)


def note_grown(comm: MooncakeComm, grown: list[int]) -> None:
    """The group grew while a member was inside a collective: which of them it is in, is a matter of timing."""
    for slot in comm.slots.values():
        if grown and slot.entries and not slot.done:
            rank, stack = next(iter(slot.gathering.arrived.items()))
            facts = {"group": comm.view, "seq": slot.gathering.seq, "op": slot.gathering.op, "grown": tuple(grown)}
            text = f"group '{comm.view.label}' grew while rank {rank} was inside {slot.gathering.op}"
            note = Note("grown_inside", rank, text, stack, float(comm.sim.scheduler.env.now), facts)
            comm.sim.records.notes.append(note)
