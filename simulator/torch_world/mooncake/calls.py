"""The functions of `mooncake.pg` on one rank's group (protocol `mooncake_pg.Membership`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simulator.engine.scheduler import Wait
from simulator.mooncake_model.coordinator import Coordinator
from simulator.mooncake_model.groups import Group
from simulator.mooncake_model.proposals import Answer
from simulator.mooncake_model.timing import JOIN_TIMEOUT_S
from simulator.records import Gathering, GroupView, Note
from simulator.torch_world.mooncake.arguments import failed
from simulator.torch_world.mooncake.group import NORMAL, QUIESCING, MooncakeGroup
from simulator.torch_world.mooncake.pg import (
    ProposalStatus,
    ProposeViewUpdateResponse,
    SyncAfterFailureResponse,
    SyncAfterFailureStatus,
)
from simulator.torch_world.mooncake.process import NOT_CONNECTED, Processes
from simulator.torch_world.simulation import Simulation

HELD_S = 1.0
"""Waiting so long for a proposal, with the interpreter's lock held, is worth a note."""
_NAMES = {"Join": "joinGroup", "GetPeerState": "getPeerState", "ActivateRanks": "activateRanks",
          "DeactivateRanks": "deactivateRanks", "SyncAfterFailure": "syncAfterFailure"}  # fmt: skip


class Calls:
    """What one rank asks of one group."""

    def __init__(self, sim: Simulation, group: MooncakeGroup, processes: Processes) -> None:
        self._sim = sim
        self._group = group
        self._processes = processes

    # -- questions -------------------------------------------------------------------------------------------------

    def active_ranks(self) -> torch.Tensor:
        self._group.look("mooncake.pg.get_active_ranks")
        return self._group.mask

    def num_synced_ranks(self) -> int:
        self._group.look("mooncake.pg.get_num_synced_ranks")
        record = self._group.comm.record
        return 0 if record is None else sum(record.may_be_active(slot) for slot in range(len(record.order)))

    def epoch(self) -> int:
        self._group.look("mooncake.pg.get_current_epoch")
        return self._epoch()

    def _epoch(self) -> int:
        record = self._group.comm.record
        return 0 if record is None else record.epoch

    def peer_state(self, ranks: list[int]) -> list[bool]:
        record, _ = self._valid("GetPeerState")
        self._must_fit("GetPeerState", "peer rank", ranks)
        self._announce("get_peer_state", writes=False)
        self._group.asked()
        known = [record.may_be_active(rank) for rank in ranks]
        if not all(known):
            self._sim.scheduler.poll(f"mooncake.pg.get_peer_state({ranks})")
        return known

    # -- proposals -------------------------------------------------------------------------------------------------

    def activate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        return self._propose("ActivateRanks", "activate", ranks)

    def deactivate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        return self._propose("DeactivateRanks", "deactivate", ranks)

    def _propose(self, call: str, verb: str, ranks: list[int]) -> ProposeViewUpdateResponse:
        record, coordinator = self._valid(call)
        self._must_fit(call, f"rank to {verb}", ranks)
        name = "recover_ranks" if verb == "activate" else "deactivate_ranks"
        self._announce(name)
        agent = self._group.process.agent
        if not coordinator.alive or agent is None:
            raise failed(f"Comm{call}", "RPC error", NOT_CONNECTED.format(call="proposeViewUpdate"))
        began_s, waits_for = self._now_s(), [rank for rank in ranks if not record.may_be_active(rank)]
        with self._processes.call():
            answered = coordinator.propose(record, ranks, agent, activates=verb == "activate")
            if not answered.triggered:
                self._sim.wait(answered, self._wait(f"mooncake.pg.{name}({ranks})", "recover", waits_for))
        answer = answered.value
        assert isinstance(answer, Answer)
        self._note_held(f"{name}({ranks})", waits_for, answer, self._now_s() - began_s)
        if answer.status == "Rejected":
            self._note_rejected(f"{name}({ranks})", ranks, answer, began_s)
        else:
            self._sim.scheduler.progress()
        status = ProposalStatus[answer.status.value]
        dropped = list(answer.dropped)
        return ProposeViewUpdateResponse(
            status=status, new_epoch=answer.epoch, dropped_ranks=dropped, reject_reason=answer.reason
        )

    def _note_held(self, call: str, waits_for: list[int], answer: Answer, waited_s: float) -> None:
        if waited_s >= HELD_S:
            text = f"{call} waited {waited_s:g} s"
            facts: dict[str, Any] = {"call": call, "late": tuple(waits_for), "waited_s": waited_s}
            label = answer.status.value
            self._sim.note("held", text, group=self._group.comm.view, status=label, reason=answer.reason, **facts)

    def _note_rejected(self, call: str, slots: list[int], answer: Answer, began_s: float) -> None:
        """The next rejections of the same call, for the same reason, are counted in the note of the first."""
        stack, rank = self._sim.sites.capture(2), self._group.global_rank
        record, key = self._group.comm.record, (call, answer.reason, stack[:1])
        note = self._group.rejected.get(key)
        if note is not None:
            note.facts["times"] += 1
            return
        order = () if record is None else record.order
        ranks = tuple(order[slot] if slot < len(order) else slot for slot in slots)
        facts = {"group": self._group.comm.view, "call": call, "ranks": ranks, "reason": answer.reason, "times": 1}
        self._sim.log("note", "rejected", call)
        note = Note("rejected", rank, f"{call} was rejected: {answer.reason}", stack, began_s, facts)
        self._group.rejected[key] = note
        self._sim.records.notes.append(note)

    # -- joining ---------------------------------------------------------------------------------------------------

    def join(self) -> None:
        group = self._group
        record, coordinator = self._valid("Join")
        if group.active or group.mode == QUIESCING:
            raise failed("CommJoin", "invalid state", "joinGroup requires an isolated or inactive rank")
        self._announce("join_group")
        self._sim.log("join", group.comm.view.label)
        if group.mode == NORMAL:
            record.publish(group.slot)
        group.mode = QUIESCING
        text = f"mooncake.pg.join_group on group '{group.comm.view.label}'"
        with self._processes.call():
            joined = coordinator.join(record, group.slot)
            if not joined.triggered:
                wait = self._wait(text, "join", [group.slot])
                if not self._sim.wait(joined, wait, JOIN_TIMEOUT_S):
                    what = f"waitUntilRankActive timed out for rank {group.global_rank} in group {group.group_name}"
                    self._sim.note("not_admitted", f"{text} timed out", stack=wait.stack, group=group.comm.view)
                    raise failed("CommJoin", "operation timed out", what)
        group.follow()

    def sync_after_failure(self) -> SyncAfterFailureResponse:
        _, coordinator = self._valid("SyncAfterFailure")
        group, agent = self._group, self._group.process.agent
        if not coordinator.alive or agent is None:
            raise failed("CommSyncAfterFailure", "RPC error", NOT_CONNECTED.format(call="syncAfterFailure"))
        decided = coordinator.sync_after(agent)
        if not decided.triggered:
            text = f"mooncake.pg.sync_after_failure on group '{group.comm.view.label}'"
            with self._processes.call():
                self._sim.wait(decided, Wait("decision", text, self._sim.sites.capture(1)))
        group.asked()
        status = SyncAfterFailureStatus.Reconciled if decided.value else SyncAfterFailureStatus.NoPending
        return SyncAfterFailureResponse(status=status)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return float(self._sim.scheduler.env.now)

    def _valid(self, call: str) -> tuple[Group, Coordinator]:
        if self._group.closed:
            raise failed(f"Comm{call}", "invalid state", "communicator is shut down")
        record, coordinator = self._group.comm.record, self._group.process.coordinator
        if record is None or coordinator is None:
            text = f"{_NAMES[call]} is unavailable because this communicator is invalid"
            raise failed(f"Comm{call}", "operation not supported", text)
        return record, coordinator

    def _must_fit(self, call: str, what: str, ranks: Sequence[int]) -> None:
        if any(not 0 <= rank < self._group.settings.max_group_size for rank in ranks):
            raise failed(f"Comm{call}", "invalid argument", f"{what} is out of range")

    def _announce(self, verb: str, *, writes: bool = True) -> None:
        self._sim.announce(verb, ("membership", self._group.comm.key), writes=writes)

    def _wait(self, text: str, op: str, slots: Sequence[int]) -> Wait:
        """`slots`: who is to come, for `recover`; who waits, for `join`."""
        comm, stack = self._group.comm, self._sim.sites.capture(2)
        record = comm.record
        known = () if record is None else record.order
        ranks = tuple(known[slot] if slot < len(known) else slot for slot in slots)
        view = GroupView(comm.view.name, comm.view.desc, ranks, comm.view.backend)
        arrived = {rank: stack for rank in ranks if op == "join"}
        return Wait("membership", text, stack, Gathering(op, view, None, arrived))
