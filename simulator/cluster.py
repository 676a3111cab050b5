"""What a user writes: a cluster of nodes, cohorts of ranks, and a run with an outcome.

    def work(rank: int) -> float:
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    outcome = simulate(work, 4)
    outcome.raise_if_bad()
    assert outcome.results == {0: 4.0, 1: 4.0, 2: 4.0, 3: 4.0}

Each rank's function is called as `fn(rank, *args)` with the environment that torchrun would give it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.analysis.diagnose import diagnose
from simulator.analysis.facts import RunFacts
from simulator.analysis.findings import Finding, Verdict, overall
from simulator.engine.carrier import CARRIERS
from simulator.engine.errors import HangcheckError, RankEnded, SimulatorFault, UsageError
from simulator.engine.scheduler import End, Limits, Policy, Scheduler, in_order
from simulator.engine.site import Frame, Stack
from simulator.engine.trace import Trace
from simulator.records import Blocked, RankRecord
from simulator.report.text import render
from simulator.torch_world.context import Node, RankContext
from simulator.torch_world.group_calls import PendingGroup
from simulator.torch_world.install import installed
from simulator.torch_world.probe import PROBES, ProbeWatch
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import Servers
from simulator.torch_world.switching import Switching

RankFunction = Callable[..., Any]
MASTER_PORT = 29500
FIRST_PID = 4000
RANKS_MAX = 1 << 16
STRIKES_MAX = 1_000
"""Time-outs that may strike in a row without anybody making progress, before the run counts as hung ..."""
STRIKES_PER_TASK = 4
"""... and so many more for each waiting task."""


class SimulationFailed(HangcheckError, AssertionError):
    """The code under test is bad; the message is the report, `outcome` has the data."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.report())
        self.outcome = outcome


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
    agent_store: tuple[str, int] | None = None
    """(host, port) of a TCPStore that a launcher keeps, as torchrun's agent does; None: rank 0 keeps it."""
    policy: Policy = in_order
    """Chooses among the ranks that are ready."""
    on_tick: Callable[[Scheduler], None] = lambda scheduler: None
    """Called about four times a second, from another thread: progress."""

    def __post_init__(self) -> None:
        _require(self.nodes >= 1, f"nodes={self.nodes}: a cluster has at least one node")
        _require(
            self.gpus_per_node is None or self.gpus_per_node >= 1,
            f"gpus_per_node={self.gpus_per_node}: give 1 or more, or leave it out",
        )
        _require(self.carrier in CARRIERS, f"carrier={self.carrier!r}: give one of {', '.join(CARRIERS)}")
        _require(self.on_hang in ("report", "timeout"), f"on_hang={self.on_hang!r}: give 'report' or 'timeout'")
        _require(
            self.probe_crash in ("first", "all", "none"),
            f"probe_crash={self.probe_crash!r}: give 'first', 'all' or 'none'",
        )


@dataclass(frozen=True, slots=True)
class Cohort:
    """Ranks that start together.

    Attributes:
        kind: `launch`, `scale` (new ranks behind the launched ones) or `recover` (in place of lost ones).
        world_size: as the environment of these ranks says.
    """

    name: str
    kind: str
    fn: RankFunction
    args: tuple[Any, ...]
    ranks: tuple[int, ...]
    world_size: int
    at_s: float
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        results: global rank to what its function returned, for the ranks that returned.
        ranks: global rank to how it fared.
        findings: what is wrong, the explanation first; warnings included.
        end: why the run ended.
        virtual_s: virtual seconds that passed.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    results: dict[int, Any]
    ranks: dict[int, RankRecord]
    trace: Trace
    seed: int
    end: End
    virtual_s: float
    replay: str

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.OK

    def report(self) -> str:
        """The findings as text, with seed and replay line."""
        return render(self)

    def raise_if_bad(self) -> Outcome:
        """Return this outcome if it is ok.

        Raises:
            SimulationFailed: with the report as its message.
        """
        if not self.ok:
            raise SimulationFailed(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": "hangcheck-outcome 1",
            "verdict": str(self.verdict),
            "seed": self.seed,
            "end": self.end.value,
            "virtual_s": self.virtual_s,
            "findings": [finding.to_dict() for finding in self.findings],
            "ranks": {
                str(rank): {
                    "cohort": record.cohort,
                    "status": record.status,
                    "error": record.error,
                    "traceback": record.traceback,
                    "exit_code": record.exit_code,
                }
                for rank, record in sorted(self.ranks.items())
            },
            "replay": self.replay,
        }


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UsageError(message)


class Cluster:
    """Nodes, and the cohorts of ranks that run on them. Options: see `ClusterOptions`."""

    def __init__(self, options: ClusterOptions | None = None, **given: Any) -> None:
        try:
            self.options = options or ClusterOptions(**given)
        except TypeError as error:
            raise UsageError(f"{error}; the options are those of ClusterOptions") from None
        self.replay = ""
        self._cohorts: list[Cohort] = []

    def launch(
        self,
        fn: RankFunction,
        *,
        ranks: int,
        args: Sequence[Any] = (),
        env: Mapping[str, str] | None = None,
        world_size: int | None = None,
        at_s: float = 0.0,
    ) -> Cluster:
        """Start global ranks 0 to `ranks` - 1 at virtual time `at_s`, as torchrun would.

        Raises:
            UsageError: not a positive number of ranks, more than the nodes take, or ranks that are there already.
        """
        _require(ranks >= 1, f"ranks={ranks}: launch at least one rank")
        numbers = tuple(range(ranks))
        return self._add("launch", fn, numbers, ranks if world_size is None else world_size, args, env, at_s)

    def join(
        self,
        fn: RankFunction,
        *,
        ranks: int,
        rank_offset: int,
        args: Sequence[Any] = (),
        env: Mapping[str, str] | None = None,
        world_size: int | None = None,
        at_s: float = 0.0,
    ) -> Cluster:
        """A later cohort with the global ranks from `rank_offset` on (a scale-up).

        Raises:
            UsageError: an offset below 1, or one that overlaps ranks that are there already.
        """
        _require(ranks >= 1, f"ranks={ranks}: let at least one rank join")
        _require(
            rank_offset >= 1, f"rank_offset={rank_offset}: joiners come behind the launched ranks, so give 1 or more"
        )
        numbers = tuple(range(rank_offset, rank_offset + ranks))
        size = rank_offset + ranks if world_size is None else world_size
        return self._add("scale", fn, numbers, size, args, env, at_s)

    def recover(
        self,
        fn: RankFunction,
        *,
        ranks: Sequence[int],
        args: Sequence[Any] = (),
        env: Mapping[str, str] | None = None,
        world_size: int | None = None,
        at_s: float = 0.0,
    ) -> Cluster:
        """New processes in the slots of ranks that are gone by then; they replace them in the outcome."""
        size = max((max(c.ranks) + 1 for c in self._cohorts), default=0) if world_size is None else world_size
        _require(len(ranks) > 0, "ranks=[]: name the slots to fill")
        known = {rank for cohort in self._cohorts for rank in cohort.ranks}
        missing = [rank for rank in ranks if rank not in known]
        _require(not missing, f"ranks={list(ranks)}: {missing} were never launched, so there is nothing to recover")
        return self._add("recover", fn, tuple(ranks), size, args, env, at_s)

    def _add(
        self,
        kind: str,
        fn: RankFunction,
        ranks: tuple[int, ...],
        world_size: int,
        args: Sequence[Any],
        env: Mapping[str, str] | None,
        at_s: float,
    ) -> Cluster:
        _require(callable(fn), f"{fn!r} is not a function to run on a rank")
        _require(at_s >= 0, f"at_s={at_s}: a start time is 0 or later, in virtual seconds")
        _require(max(ranks) < RANKS_MAX, f"rank {max(ranks)}: at most {RANKS_MAX} ranks can be simulated")
        _require(
            world_size > max(ranks), f"world_size={world_size}: rank {max(ranks)} needs a world of {max(ranks) + 1}"
        )
        if kind != "recover":
            taken = sorted(set(ranks) & {rank for cohort in self._cohorts for rank in cohort.ranks})
            _require(
                not taken,
                f"ranks {_span(taken)} are live already: give rank_offset={self._first_free()} or higher",
            )
        capacity = None if self.options.gpus_per_node is None else self.options.gpus_per_node * self.options.nodes
        _require(
            capacity is None or max(ranks) < capacity,
            f"rank {max(ranks)} does not fit: {self.options.nodes} nodes x {self.options.gpus_per_node} GPUs take "
            f"ranks 0 to {(capacity or 0) - 1}",
        )
        name = kind if kind == "launch" else f"{kind}-{sum(c.kind == kind for c in self._cohorts) + 1}"
        self._cohorts.append(Cohort(name, kind, fn, tuple(args), ranks, world_size, at_s, dict(env or {})))
        return self

    def _first_free(self) -> int:
        return max((max(cohort.ranks) + 1 for cohort in self._cohorts), default=0)

    def run(self) -> Outcome:
        """Simulate all cohorts to the end.

        Raises:
            UsageError: nothing was launched.
            SimulatorFault: a bug of the simulator.
        """
        _require(bool(self._cohorts), "nothing to run: call launch() first")
        return _Run(self.options, self._cohorts, self.replay).outcome()


def _span(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


class _Run:
    """One simulation from start to outcome."""

    def __init__(self, options: ClusterOptions, cohorts: Sequence[Cohort], replay: str) -> None:
        self._options = options
        self._cohorts = cohorts
        self._replay = replay
        ranks = max(max(cohort.ranks) for cohort in cohorts) + 1
        self._per_node = options.gpus_per_node or -(-ranks // options.nodes)
        nodes = tuple(Node(number, self._per_node) for number in range(options.nodes))
        self._switching = Switching(shared_thread=options.carrier == "greenlet", isolate=options.isolate)
        self._scheduler = Scheduler(
            carrier=options.carrier,
            limits=options.limits,
            policy=options.policy,
            on_switch=self._switching,
            on_quiescent=self._quiescent,
            on_tick=options.on_tick,
        )
        self._sim = Simulation(self._scheduler, nodes)
        self._sim.probe_watch = ProbeWatch(self._sim, probes=options.probe_functions, crash=options.probe_crash)
        self._servers = Servers(self._sim)
        if options.agent_store is not None:
            self._servers.provide(*options.agent_store)
        self._results: dict[int, Any] = {}
        self._seen_progress = -1
        self._strikes = 0

    def outcome(self) -> Outcome:
        self._spawn()
        with installed(self._sim, self._servers):
            try:
                end = self._scheduler.run()
                virtual_s = float(self._scheduler.env.now)
                findings = self._diagnose(end)
                self._sim.trace.seal()
            finally:
                self._scheduler.drain()
                self._sim.sites.forget()
        if self._scheduler.fault is not None:
            raise SimulatorFault(f"the simulator failed: {self._scheduler.fault!r}") from self._scheduler.fault
        records = self._sim.records.ranks
        return Outcome(
            overall(findings),
            findings,
            dict(sorted(self._results.items())),
            dict(sorted(records.items())),
            self._sim.trace,
            self._options.seed,
            end,
            virtual_s,
            self._replay,
        )

    def _diagnose(self, end: End) -> tuple[Finding, ...]:
        self._sim.records.final = () if end is End.FINISHED else self._blocked()
        import torch

        spinner = self._scheduler.spinner
        stuck_at: Stack = () if spinner is None else self._sim.sites.of_frame(spinner[1])
        facts = RunFacts(
            end=end.name,
            torch_version=torch.__version__.split("+")[0],
            cohorts={cohort.name: (cohort.kind, cohort.ranks) for cohort in self._cohorts},
            nodes=self._options.nodes,
            spinner=None if spinner is None else (spinner[0].owner.rank, stuck_at),
            init_barrier={
                rank: context.env.get(b"TORCH_DIST_INIT_BARRIER") == b"1"
                for rank, context in self._sim.contexts.items()
            },
            end_s=float(self._scheduler.env.now),
            spin_wall_s=self._options.limits.spin_wall_s,
            idle_steps_max=self._options.limits.idle_steps_max,
        )
        return diagnose(self._sim.records, facts)

    # -- ranks -----------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        outer = dict(os.environ._data)  # type: ignore[attr-defined]
        for cohort in self._cohorts:
            placement = Placement.of(cohort, self._per_node)
            for rank in cohort.ranks:
                env = {**outer, **placement.environment(cohort, rank)}
                self._spawn_rank(cohort, rank, env)

    def _spawn_rank(self, cohort: Cohort, rank: int, env: dict[bytes, bytes]) -> None:
        node = self._sim.nodes[min(rank // self._per_node, len(self._sim.nodes) - 1)]
        context = RankContext(
            rank=rank,
            local_rank=rank % self._per_node,
            cohort=cohort.name,
            node=node,
            env=env,
            pid=FIRST_PID + len(self._scheduler.tasks),
            parent_pid=FIRST_PID - 1 - node.number,
            seed=self._options.seed * RANKS_MAX + rank,
            joins=cohort.kind != "launch",
            cohort_ranks=_cohort_ranks(cohort),
            call=PendingGroup(),
            outsiders=range(min(cohort.ranks)) if cohort.kind == "scale" else None,
        )
        task = self._scheduler.spawn(f"r{rank}", context, lambda: self._body(cohort, context), at_s=cohort.at_s)
        context.tasks.append(task)
        if cohort.kind != "recover":
            self._sim.contexts[rank] = context
            self._sim.records.ranks[rank] = RankRecord(rank, cohort.name, start_s=cohort.at_s)

    def _body(self, cohort: Cohort, context: RankContext) -> None:
        rank = context.rank
        self._sim.contexts[rank] = context
        record = self._sim.records.ranks[rank] = RankRecord(rank, cohort.name, start_s=cohort.at_s)
        self._sim.log("start", cohort.name)
        try:
            self._results[rank] = cohort.fn(rank, *cohort.args)
            record.status = "ok"
        except RankEnded as ended:
            record.status, record.exit_code = ended.how, ended.code
            if ended.how == "exit" and ended.code == 0:
                record.status = "ok"
        except SystemExit as error:
            _note_exit(record, error)
        except BaseException as error:
            _note_exception(record, error, self._sim)
        self._over(context, record)

    def _over(self, context: RankContext, record: RankRecord) -> None:
        """The rank's process is gone: its servers, its connections, its daemon threads."""
        if self._scheduler.end is not End.FINISHED:
            return
        record.end_s = float(self._scheduler.env.now)
        self._sim.log("end", record.status)
        context.ended = True
        for task in context.tasks[1:]:
            if record.status != "ok" or task.daemon:
                self._scheduler.end_task(task, RankEnded("killed"))
        if record.status == "ok":
            return
        self._servers.rank_ended(context.rank)
        for group in context.groups:
            if group.model.notices_death:
                group.comm.lose(context.rank, f"the process ended: {record.error or record.status}")

    # -- quiescence --------------------------------------------------------------------------------------------------

    def _quiescent(self) -> bool:
        """Only time-outs are left. True: let the earliest one strike.

        A time-out that the user named at the call may be meant, so it strikes; those of whole groups do so on demand
        only. Loops that wait, time out and wait again come to an end here.
        """
        tasks = [task for task in self._scheduler.tasks if task.alive and task.wait is not None]
        if self._scheduler.earliest_deadline_task() is None:
            return False
        explicit = any(task.wait is not None and task.wait.deadline_is_explicit for task in tasks)
        if not explicit and self._options.on_hang == "report":
            return False
        if self._scheduler.progress_count != self._seen_progress:
            self._seen_progress, self._strikes = self._scheduler.progress_count, 0
            self._sim.records.stalls.append((self._scheduler.env.now, self._blocked()))
        self._strikes += 1
        return self._strikes <= STRIKES_MAX + STRIKES_PER_TASK * len(tasks)

    def _blocked(self) -> tuple[Blocked, ...]:
        return tuple(
            Blocked(t.owner.rank, t.name, t.wait.kind, t.wait.text, t.wait.stack, t.wait.what,
                    t.wait.deadline_is_explicit)
            for t in self._scheduler.tasks if t.alive and t.wait is not None
        )  # fmt: skip


def _cohort_ranks(cohort: Cohort) -> range:
    """Launches and scale-ups have consecutive ranks; who recovers belongs to those it recovers with."""
    return range(cohort.world_size) if cohort.kind == "recover" else range(min(cohort.ranks), max(cohort.ranks) + 1)


def _note_exit(record: RankRecord, error: SystemExit) -> None:
    code = error.code
    record.exit_code = code if isinstance(code, int) else int(code is not None)
    record.status = "ok" if record.exit_code == 0 else "exit"
    record.error = f"sys.exit({code!r})" if record.exit_code else ""


def _note_exception(record: RankRecord, error: BaseException, sim: Simulation) -> None:
    record.status, record.exit_code = "exception", 1
    record.error_type = type(error).__name__
    first = str(error).strip().splitlines()
    record.error = f"{record.error_type}: {first[0]}" if first else record.error_type
    record.traceback = "".join(traceback.format_exception(error))
    record.stack = _stack_of(error, sim)


def _stack_of(error: BaseException, sim: Simulation) -> Stack:
    """The user frames of an exception, innermost first; of code that does not compile, the line that does not."""
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if sim.sites.is_user(frame.f_code)
    ]
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append(Frame(error.filename, error.lineno or 0, "<module>"))
    return tuple(reversed(frames))


@dataclass(frozen=True, slots=True)
class Placement:
    """Which ranks of a cohort share a node: node number to its ranks, in order."""

    per_node: int
    nodes: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, cohort: Cohort, per_node: int) -> Placement:
        """Ranks fill the nodes one after another."""
        nodes: dict[int, list[int]] = {}
        for rank in cohort.ranks:
            nodes.setdefault(rank // per_node, []).append(rank)
        return cls(per_node, {node: tuple(ranks) for node, ranks in nodes.items()})

    def environment(self, cohort: Cohort, rank: int) -> dict[bytes, bytes]:
        """What torchrun sets for a rank, then the cohort's own values."""
        node = rank // self.per_node
        neighbours = self.nodes[node]
        given = {
            "RANK": rank,
            "LOCAL_RANK": neighbours.index(rank),
            "WORLD_SIZE": cohort.world_size,
            "LOCAL_WORLD_SIZE": len(neighbours),
            "GROUP_RANK": list(self.nodes).index(node),
            "GROUP_WORLD_SIZE": len(self.nodes),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": cohort.world_size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "node0",
            "MASTER_PORT": MASTER_PORT,
            **cohort.env,
        }
        return {os.fsencode(key): os.fsencode(str(value)) for key, value in given.items()}


def simulate(fn: RankFunction, ranks: int, *, args: Sequence[Any] = (), **options: Any) -> Outcome:
    """Run `fn(rank, *args)` on `ranks` simulated ranks. Options: see `ClusterOptions`."""
    return Cluster(**options).launch(fn, ranks=ranks, args=args).run()
