"""Topology probes: seen by the name of the function that runs them, and crashed where the real one crashed.

Two of the frameworks ask `in_the_same_node_as` whether ranks share a host: shared memory, a broadcast, a barrier and an
all_reduce on the CPU group. On a deployment of one node the answer is known, and on a single-node Mooncake EP set-up
the all_reduce ended the process with SIGSEGV. The cause lies in native code that is not simulated, so the crash is a
model: it strikes where the report says, whatever would really happen with another version.

A queue over shared memory has to know who shares its node, and SGLang and vLLM make such queues at each start, on
Mooncake too: a probe below one of `NEEDED_BY` is neither reported nor crashed.
"""

from __future__ import annotations

from simulator.engine.errors import RankEnded
from simulator.engine.site import Stack
from simulator.torch_world.simulation import Simulation

PROBES = ("in_the_same_node_as",)
NEEDED_BY = (
    "create_from_process_group",
    "create_from_process_group_single_reader",
    "dispatch_custom_allreduce",
    "_node_count",
)
"""Functions that go on to share memory with whom the probe finds, or that count the nodes at the start of a world."""
CRASHES_IN = "all_reduce"
SIGSEGV = 11


class ProbeWatch:
    """Called at every collective and shared-memory call with the user's stack.

    Args:
        probes: names of functions that probe the topology.
        crash: `first` (the first rank to reach the probe's all_reduce dies), `all`, or `none`.
    """

    def __init__(self, sim: Simulation, *, probes: tuple[str, ...] = PROBES, crash: str = "first") -> None:
        self._sim = sim
        self._probes = frozenset(probes)
        self._crash = crash
        self._seen: dict[tuple[int, str], None] = {}
        self._crashed = False

    def __call__(self, op: str, stack: Stack) -> None:
        if len(self._sim.nodes) != 1:
            return
        for depth, frame in enumerate(stack):
            if frame.function.rsplit(".", 1)[-1] in self._probes:
                if not any(above.function.rsplit(".", 1)[-1] in NEEDED_BY for above in stack[depth:]):
                    self._on_probe(op, stack[depth:])
                return

    def _on_probe(self, op: str, stack: Stack) -> None:
        context = self._sim.must_be_here("a probe")
        caller = stack[1:] or stack
        if (context.rank, str(caller[0])) not in self._seen:
            self._seen[context.rank, str(caller[0])] = None
            self._sim.note("probe", f"topology probe {stack[0].function}", stack=caller, nodes=len(self._sim.nodes))
        strikes = self._crash == "all" or (self._crash == "first" and not self._crashed)
        if op == CRASHES_IN and strikes and self._has_mooncake():
            self._crashed = True
            text = f"{stack[0].function}: {op} on the CPU group of a single-node Mooncake set-up (modelled SIGSEGV)"
            self._sim.note("crash", text, stack=stack)
            self._sim.end_rank(context, RankEnded("crash", -SIGSEGV))

    def _has_mooncake(self) -> bool:
        context = self._sim.must_be_here("a probe")
        return any("mooncake" in group.model.name for group in context.groups)
