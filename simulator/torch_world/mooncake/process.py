"""What belongs to a process that uses Mooncake: its coordinator, its registration, its time-outs.

The first Mooncake group of a process decides: its group rank there is the process's number from then on, and rank 0 of
that group runs the coordinator. So a process whose first Mooncake group is not the world may be nobody it knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from simulator.engine.scheduler import Wait
from simulator.mooncake_model.agents import Agent
from simulator.mooncake_model.coordinator import Coordinator
from simulator.mooncake_model.timing import COLLECTIVE_TIMEOUT_S, P2P_TIMEOUT_S, REGISTRATION_TIMEOUT_S, WINDOW_S
from simulator.torch_world.context import RankContext
from simulator.torch_world.mooncake.arguments import failed
from simulator.torch_world.simulation import Simulation

NOT_CONNECTED = "mooncake::CoordinatorRpcService::{call} RPC failed: not connected"
_TIMES = {
    "set_collective_timeout_us": ("collective_timeout_s", "", ""),
    "set_p2p_timeout_us": ("p2p_timeout_s", "ContextSetP2PTimeout", "P2P timeout must not be negative"),
    "set_fault_reconciliation_window_us": (
        "window_s", "ContextSetFaultReconciliationWindow", "fault reconciliation window must not be negative",
    ),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Process:
    """One process.

    Attributes:
        rank: its number, once it has made a Mooncake group.
        hosts: it runs the coordinator.
        ended_s: when it ended, if it was the first that knew.
    """

    context: RankContext
    rank: int = -1
    hosts: bool = False
    coordinator: Coordinator | None = None
    agent: Agent | None = None
    ended_s: float | None = None
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    p2p_timeout_s: float = P2P_TIMEOUT_S
    window_s: float = WINDOW_S

    def set(self, knob: str, value: Any) -> None:
        """A `set_..._us` function; others change nothing here.

        Raises:
            RuntimeError: a negative time.
        """
        if knob not in _TIMES:
            return
        name, call, text = _TIMES[knob]
        if value < 0:
            raise failed(call, "invalid argument", text)
        setattr(self, name, value / 1e6)
        if self.hosts and self.coordinator is not None:
            self.coordinator.window_s = self.window_s


@dataclass(slots=True, eq=False)
class Processes:
    """All processes of a run that use Mooncake, and their coordinators."""

    sim: Simulation
    _processes: dict[RankContext, Process] = field(default_factory=dict)
    _coordinators: dict[str, Coordinator] = field(default_factory=dict)

    def forget(self) -> None:
        """A new run begins."""
        self._processes.clear()
        self._coordinators.clear()

    def here(self) -> Process:
        """That of the calling rank."""
        context = self.sim.must_be_here("Mooncake")
        return self._processes.setdefault(context, Process(context))

    def of(self, context: RankContext) -> Process | None:
        return self._processes.get(context)

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of Mooncake that holds the interpreter's lock while it waits: no other thread of the rank runs."""
        with self.sim.scheduler.alone_in_process():
            yield

    def enter(self, key: str, group_rank: int, global_rank: int) -> Process:
        """The calling rank makes a Mooncake group; if it is its first, it registers.

        Args:
            key: names where the members of the first group find their coordinator.

        Raises:
            RuntimeError: its number is taken, or is not the one that this group gives it.
        """
        process = self.here()
        if process.coordinator is None:
            process.rank = group_rank
            coordinator = self._coordinators.get(key)
            if coordinator is None or (group_rank == 0 and not coordinator.alive):
                coordinator = self._coordinators[key] = Coordinator(self.sim.scheduler.env)
            process.coordinator, process.hosts = coordinator, group_rank == 0
            if process.hosts:
                coordinator.window_s = process.window_s
        if global_rank != process.rank:
            text = "communicator rank does not map to the process global rank"
            raise failed("CommCreate", "invalid argument", text)
        if not process.coordinator.alive:
            raise failed("CommCreate", "RPC error", NOT_CONNECTED.format(call="registerGroup"))
        if process.agent is None:
            self._register(process, process.coordinator)
        return process

    def _register(self, process: Process, coordinator: Coordinator) -> None:
        deadline_s = float(self.sim.scheduler.env.now) + REGISTRATION_TIMEOUT_S
        holder = coordinator.holder(process.rank)
        while holder is not None:
            self._note_end(coordinator, holder)
            text = f"registration as rank {process.rank}, which another process of Mooncake holds"
            wait = Wait("decision", text, self.sim.sites.capture(2))
            wait.deadline_is_explicit = True
            left_s = deadline_s - float(self.sim.scheduler.env.now)
            if not self.sim.wait(holder.gone, wait, max(0.0, left_s)):
                self.sim.note("rank_taken", text, rank=process.rank)
                raise failed("CommCreate", "operation timed out", "timed out waiting for agent registration")
            holder = coordinator.holder(process.rank)
        process.agent = coordinator.register(process.rank)

    def _note_end(self, coordinator: Coordinator, holder: Agent) -> None:
        """A process that has returned keeps its registration for its peers, but not against its successor."""
        for process in self._processes.values():
            if process.agent is holder and process.context.ended:
                coordinator.end(holder, process.ended_s)
