"""Where faults act on a simulation: the end of a process, lost time, stores that cannot be reached.

A process that is killed leaves nothing behind: what it had posted and nobody had met is gone, what it had entered
waits for it for good (or, where the backend notices, its peers get an error), the stores that it served end. Not
modelled: what of its part in a collective had already reached its peers, and the half of a group's creation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch.distributed as dist

from simulator.engine.scheduler import End, Task, Wait
from simulator.engine.site import Stack
from simulator.records import KeyWait, RankRecord
from simulator.torch_world.context import RankContext
from simulator.torch_world.servers import Servers
from simulator.torch_world.signals import SIGKILL
from simulator.torch_world.simulation import Simulation


class FaultPort:
    """See `simulator.faults.port`.

    Args:
        ranks: all that any cohort has.
        per_node: ranks of one node.
        over: called with a process that has ended, for what follows from it.
        respawn: called with a process and a virtual time, at which its successor starts.
    """

    def __init__(
        self,
        sim: Simulation,
        servers: Servers,
        ranks: Collection[int],
        per_node: int,
        over: Callable[[RankContext, RankRecord], None],
        respawn: Callable[[RankContext, float], None],
    ) -> None:
        self.ranks = ranks
        self._sim, self._servers, self._per_node = sim, servers, per_node
        self._over, self._respawn = over, respawn

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return float(self._sim.scheduler.env.now)

    @property
    def nodes(self) -> int:
        return len(self._sim.nodes)

    def here(self) -> int | None:
        task = self._sim.scheduler.here()
        return None if task is None or self._sim.scheduler.over or task.ending is not None else task.owner.rank

    def node_of(self, rank: int) -> int:
        return min(rank // self._per_node, len(self._sim.nodes) - 1)

    def state_of(self, rank: int) -> str:
        context, record = self._sim.contexts.get(rank), self._sim.records.ranks.get(rank)
        if context is None or record is None:
            return f"rank {rank} never started"
        if context.ended or record.status != "stuck" or not context.tasks[0].alive:
            return f"rank {rank} had ended by then, at {record.end_s or 0.0:g} s"
        return "" if context.tasks[0].thread_id else f"rank {rank} had not started by then, {self.now_s:g} s"

    def doing(self, rank: int) -> tuple[str, Stack]:
        task = self._sim.contexts[rank].tasks[0]
        if task.wait is not None:
            return f"while in {task.wait.text}", task.wait.stack
        return "while it ran", self.stack()

    def stack(self) -> Stack:
        return self._sim.sites.capture(1) if self._sim.scheduler.here() is not None else ()

    def log(self, rank: int, fault: str, text: str) -> None:
        self._sim.trace.add(self._sim.scheduler.env.now, rank, "fault", f"[{fault}]", text)

    def kinds_of_events(self, start: int) -> list[str]:
        return self._sim.trace.kinds_from(start)

    # -- time --------------------------------------------------------------------------------------------------------

    def later(self, at_s: float, action: Callable[[], None]) -> None:
        env = self._sim.scheduler.env
        env.timeout(max(0.0, at_s - env.now)).callbacks.append(lambda _: action())

    def sleep(self, seconds: float, fault: str) -> None:
        self._sim.scheduler.sleep(seconds, Wait("sleep", f"the fault [{fault}]", self.stack()))

    def wait_for_ever(self, text: str, keys: Sequence[str], store: str, fault: str) -> None:
        what = KeyWait(tuple(keys), store, f"the fault [{fault}] keeps the {store} out of its reach")
        self._sim.wait(self._sim.scheduler.event(), Wait("store", text, self.stack(), what))

    def give_up(self) -> None:
        self._sim.scheduler.stop(End.STOPPED)
        self._sim.scheduler.sleep(0.0)

    # -- processes ---------------------------------------------------------------------------------------------------

    def kill(self, rank: int, fault: str, stack: Stack) -> None:
        context, scheduler = self._sim.contexts[rank], self._sim.scheduler
        record = self._sim.records.ranks[rank]
        record.status, record.exit_code, record.fault, record.stack = "killed", -SIGKILL, fault, stack
        context.ended = True
        mine = scheduler.current if scheduler.current in context.tasks else None
        for task in context.tasks:
            if task is not mine:
                scheduler.freeze(task)
        self._forget(context)
        self._over(context, record)
        if mine is not None:
            scheduler.freeze(mine)

    def _forget(self, context: RankContext) -> None:
        """What only this process could have brought to an end."""
        if context.device is not None:
            context.device.die()
        for group in context.groups:
            group.comm.forget(context.rank)

    def interrupt(self, rank: int, fault: str, error: Exception) -> None:
        self._sim.records.ranks[rank].fault = fault
        task: Task = self._sim.contexts[rank].tasks[0]
        if self._sim.scheduler.current is not None and self._sim.scheduler.current.owner.rank == rank:
            raise error
        self._sim.scheduler.interrupt(task, error)

    def restart(self, rank: int, after_s: float) -> None:
        self._respawn(self._sim.contexts[rank], self.now_s + after_s)

    # -- stores ------------------------------------------------------------------------------------------------------

    def refuse_connection(self) -> Exception:
        return dist.DistNetworkError("Connection timed out")

    def end_stores(self) -> int:
        return self._servers.end_all()
