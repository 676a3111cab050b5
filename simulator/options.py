"""How a cluster is simulated: every knob, with its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.engine.carrier import CARRIERS
from simulator.engine.errors import require
from simulator.engine.lag import Delays, Recipe
from simulator.engine.scheduler import Limits, Policy, Scheduler, in_order
from simulator.faults import Fault, FaultFunction, fault_of
from simulator.torch_world.probe import PROBES

NEVER_ISOLATED = ("__main__", "builtins", "sys", "os", "threading", "time", "torch", "numpy", "simulator")
"""Modules that hold the process together, or C state that exists once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """How a cluster is simulated."""

    nodes: int = 1
    """Hosts."""
    gpus_per_node: int | None = None
    """Ranks that one host takes; None: as many as the ranks need, spread evenly."""
    seed: int = 0
    """Of everything random, including the ranks' own `random` and `numpy.random`."""
    carrier: str = "thread"
    """`thread`, or `greenlet` for programs that block from Python frames only."""
    limits: Limits = field(default_factory=Limits)
    """Bounds of the run."""
    on_hang: str = "report"
    """`report`: end the run when nothing can move; `timeout`: let the time-outs strike, in virtual time, and go on."""
    isolate: tuple[str, ...] = ()
    """Modules (names or patterns such as `pkg.state`, `pkg.*`) of which each rank gets an instance of its own."""
    probe_functions: tuple[str, ...] = PROBES
    """Functions that probe the topology."""
    probe_crash: str = "first"
    """Who dies in a probe on a single-node Mooncake set-up: `first`, `all` or `none`."""
    multicast: bool = True
    """The devices of a node can be written to all at once (NVLink multicast): symmetric memory has such addresses."""
    accelerator: str | None = None
    """`cuda`: torch.cuda and torch.accelerator answer as on nodes with GPUs, and `device="cuda"` works."""
    mooncake_ranks_max: int = 64
    """Ranks that a deployment of Mooncake can have: 64 in the versions that were measured; more shows how it scales."""
    agent_store: tuple[str, int] | None = None
    """(host, port) of a TCPStore that a launcher keeps, as torchrun's agent does; None: rank 0 keeps it."""
    policy: Policy = in_order
    """Chooses among the ranks that are ready."""
    delays: Recipe | Delays | None = None
    """A schedule: says before which operations a rank falls behind. `policy` is not asked then."""
    faults: tuple[str | Fault | FaultFunction, ...] = ()
    """Faults to inject, as texts (`kill rank=2 at=all_reduce#3`) or functions; see `simulator.faults`."""
    faults_stop_at_s: float | None = None
    """No fault strikes from this virtual time on, and progress must follow; None: faults do not stop."""
    until_s: float | None = None
    """The run ends at this virtual time, if it goes on so long; None: it goes on to its end."""
    on_tick: Callable[[Scheduler], None] = lambda scheduler: None
    """Called about four times a second, from another thread: progress."""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "seed"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole or (value is None and name == "gpus_per_node"), f"{name}={value!r}: give a whole number")
        require(isinstance(self.limits, Limits), f"limits={self.limits!r}: give Limits(spin_wall_s=..., ...)")
        require(
            not isinstance(self.isolate, str) and all(isinstance(name, str) for name in self.isolate),
            f"isolate={self.isolate!r}: give a sequence of module names, such as ('pkg.state',)",
        )
        for pattern in self.isolate:
            top = pattern.partition(".")[0]
            fits = top.isidentifier() and top not in NEVER_ISOLATED
            require(fits, f"isolate {pattern!r}: name a module of your own; {', '.join(NEVER_ISOLATED)} stay shared")
        most = self.mooncake_ranks_max
        fits = isinstance(most, int) and not isinstance(most, bool) and most >= 1
        require(fits, f"mooncake_ranks_max={most!r}: give 1 or more")
        require(self.seed >= 0, f"seed={self.seed}: give 0 or more")
        require(self.delays is None or self.policy is in_order, "give either a policy or delays, not both")
        fits = self.delays is None or isinstance(self.delays, Recipe) or callable(self.delays)
        require(fits, f"delays={self.delays!r}: give a schedule, a function, or None")
        several = isinstance(self.faults, list | tuple)
        require(several, f"faults={self.faults!r}: give a list of faults, such as ['kill rank=2 at=2.5s']")
        for fault in self.faults:
            fault_of(fault)
        for name in ("faults_stop_at_s", "until_s"):
            stop = getattr(self, name)
            fits = stop is None or (isinstance(stop, int | float) and not isinstance(stop, bool) and stop >= 0)
            require(fits, f"{name}={stop!r}: give a number of virtual seconds, 0 or more, or None")
        require(isinstance(self.multicast, bool), f"multicast={self.multicast!r}: give True or False")
        require(self.accelerator in (None, "cuda"), f"accelerator={self.accelerator!r}: give 'cuda', or leave it out")
        require(
            self.accelerator is None or self.carrier == "thread",
            f"accelerator={self.accelerator!r}: a rank with GPUs needs a thread of its own; give carrier='thread'",
        )
        for name in ("policy", "on_tick"):
            require(callable(getattr(self, name)), f"{name}={getattr(self, name)!r}: give a function")
        require(self.nodes >= 1, f"nodes={self.nodes}: a cluster has at least one node")
        require(
            self.gpus_per_node is None or self.gpus_per_node >= 1,
            f"gpus_per_node={self.gpus_per_node}: give 1 or more, or leave it out",
        )
        require(self.carrier in CARRIERS, f"carrier={self.carrier!r}: give one of {', '.join(CARRIERS)}")
        require(self.on_hang in ("report", "timeout"), f"on_hang={self.on_hang!r}: give 'report' or 'timeout'")
        require(
            self.probe_crash in ("first", "all", "none"),
            f"probe_crash={self.probe_crash!r}: give 'first', 'all' or 'none'",
        )
