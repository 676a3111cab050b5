"""One simulation, from its start to its outcome."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from simulator.analysis.diagnose import diagnose
from simulator.analysis.early_exits import as_if_they_had_stayed
from simulator.analysis.facts import RunFacts, grouped
from simulator.analysis.findings import Finding, Side, overall
from simulator.cohort import Cohort, Placement, together
from simulator.device import leave_device
from simulator.engine.errors import RankEnded, SimulatorFault, UsageError
from simulator.engine.lag import Delays, Recipe
from simulator.engine.scheduler import End, Scheduler
from simulator.engine.site import Frame, Stack
from simulator.faults import fault_of
from simulator.faults.faults import Faults
from simulator.options import ClusterOptions
from simulator.outcome import Outcome
from simulator.records import Blocked, RankRecord
from simulator.report.text import side_rows
from simulator.torch_world.context import Node, RankContext
from simulator.torch_world.fault_port import FaultPort
from simulator.torch_world.gpu.install import give_gpus
from simulator.torch_world.group_calls import PendingGroup
from simulator.torch_world.half_imports import forget_half_imports
from simulator.torch_world.in_flight import leave
from simulator.torch_world.probe import ProbeWatch
from simulator.torch_world.process import leave_process
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.stage import Stage
from simulator.torch_world.switching import Switching

FIRST_PID = 4000
SHIFT = 1_000
"""How far pids are shifted in a shifted run; its clocks start later, and each look at them costs a microsecond."""
SEEDS_PER_RUN = 1 << 16
STRIKES_MAX = 1_000
"""Time-outs that may strike in a row without anybody making progress, before the run counts as hung ..."""
STRIKES_PER_TASK = 4
"""... and so many more for each waiting task."""


class Run:
    """One simulation from start to outcome.

    Args:
        stage: where it runs.
        replay: the command that runs it again, or nothing.
        delays: in place of those of the options.
        keeps_stacks: the log of operations has their stacks.
        shifted: with another clock and other pids. What differs then was measured, not computed.
    """

    def __init__(
        self,
        stage: Stage,
        options: ClusterOptions,
        cohorts: Sequence[Cohort],
        replay: str,
        *,
        delays: Recipe | Delays | None = None,
        keeps_stacks: bool = True,
        shifted: bool = False,
    ) -> None:
        self._shift = SHIFT if shifted else 0
        self._options = options
        self._cohorts = cohorts
        self._replay = replay
        ranks = max(max(cohort.ranks) for cohort in cohorts) + 1
        self._per_node = options.gpus_per_node or -(-ranks // options.nodes)
        nodes = tuple(Node(number, self._per_node) for number in range(options.nodes))
        self._switching = Switching(shared_thread=options.carrier == "greenlet", isolate=options.isolate)
        given = options.delays if delays is None else delays
        self._delays: Delays | None = given.start() if isinstance(given, Recipe) else given
        self._scheduler = Scheduler(
            carrier=options.carrier,
            limits=options.limits,
            policy=options.policy,
            delays=self._delays,
            keeps_stacks=keeps_stacks,
            on_switch=self._switching,
            on_quiescent=self._quiescent,
            on_tick=options.on_tick,
            beside=stage.beside,
            until_s=float("inf") if options.until_s is None else options.until_s,
        )
        self._sim, self._servers = stage.sim, stage.servers
        self._sim.begin(self._scheduler, nodes)
        self._sim.multicast = options.multicast
        self._sim.mooncake_ranks_max = options.mooncake_ranks_max
        if options.accelerator is not None:
            stage.gpus.install()
        self._sim.clock_tick_s = self._shift * 1e-9
        self._sim.has_joiners = any(cohort.kind != "launch" for cohort in cohorts)
        self._sim.probe_watch = ProbeWatch(self._sim, probes=options.probe_functions, crash=options.probe_crash)
        if options.agent_store is not None:
            self._servers.provide(*options.agent_store)
        self._outer = dict(os.environ._data)  # type: ignore[attr-defined]
        self._faults = self._sim.faults = self._injected() if options.faults else None
        self._modules = frozenset(sys.modules)
        self._results: dict[int, Any] = {}
        self._refused: UsageError | None = None
        self._seen_progress = -1
        self._strikes = 0

    def _injected(self) -> Faults:
        ranks = dict.fromkeys(rank for cohort in self._cohorts for rank in cohort.ranks)
        port = FaultPort(self._sim, self._servers, ranks, self._per_node, self._over, self._respawn)
        asked = [fault_of(given) for given in self._options.faults]
        end_s = self._options.faults_stop_at_s
        return Faults(port, asked, self._sim.records, seed=self._options.seed, end_s=end_s)

    def outcome(self) -> Outcome:
        """Run to the end, and say what came of it.

        Raises:
            UsageError: what was asked for cannot be, as only the run could tell.
            SimulatorFault: a bug of the simulator.
        """
        try:
            self._spawn()
            end = self._scheduler.run()
            virtual_s = float(self._scheduler.env.now if end is not End.UNTIL else self._options.until_s or 0.0)
            if self._faults is not None:
                self._faults.settle()
            findings = self._diagnose(end)
            self._sim.trace.seal()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._where()) from None
        finally:
            self._scheduler.drain()
            forget_half_imports(self._modules)
            self._sim.sites.forget()
            self._sim.release_memory()
            self._release_groups()
        if isinstance(self._scheduler.fault, UsageError):
            raise self._scheduler.fault
        if self._scheduler.fault is not None:
            raise SimulatorFault(f"the simulator failed: {self._scheduler.fault!r}") from self._scheduler.fault
        if self._refused is not None:
            raise self._refused
        check = getattr(self._delays, "check", None)
        if check is not None:
            check()
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
            self._scheduler.lag,
            tuple(self._sim.records.faults),
            self._options.faults_stop_at_s,
            self._standing(),
        )

    def _where(self) -> str:
        """Where the ranks are, for somebody who has interrupted the run."""
        self._sim.records.final = self._blocked()
        sides = [replace(s, doing="runs") if s.doing == "never entered" else s for s in self._standing()]
        lines = [f"interrupted at {float(self._scheduler.env.now):g} s of virtual time", *side_rows(sides)]
        return "\n".join(lines)

    def _standing(self) -> tuple[Side, ...]:
        """Where the ranks are that have not ended."""
        going = [record.rank for record in self._sim.records.ranks.values() if record.status == "stuck"]
        return tuple(grouped("going on", going, self._sim.records, self._sim.records.final))

    def _release_groups(self) -> None:
        for context in self._sim.contexts.values():
            for group in context.groups:
                group.release()

    def _diagnose(self, end: End) -> tuple[Finding, ...]:
        blocked = () if end is End.FINISHED else self._blocked()
        self._sim.records.final = as_if_they_had_stayed(blocked, self._sim.records)
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
        for cohort in self._cohorts:
            placement, at_s = Placement.of(cohort, self._per_node), cohort.at_s
            for rank in cohort.ranks:
                start_s = at_s if self._faults is None else self._faults.start_s(rank, cohort.name, at_s)
                if start_s is not None:
                    self._spawn_rank(cohort, placement, rank, start_s)

    def _respawn(self, context: RankContext, at_s: float) -> None:
        """A new process of a rank that a fault has killed: the same function, everything else anew."""
        cohort = next(cohort for cohort in self._cohorts if cohort.name == context.cohort)
        self._spawn_rank(cohort, Placement.of(cohort, self._per_node), context.rank, at_s, again=True)

    def _spawn_rank(self, cohort: Cohort, placement: Placement, rank: int, at_s: float, *, again: bool = False) -> None:
        node = self._sim.nodes[min(rank // self._per_node, len(self._sim.nodes) - 1)]
        context = RankContext(
            rank=rank,
            local_rank=rank % self._per_node,
            cohort=cohort.name,
            node=node,
            env={**self._outer, **placement.environment(cohort, rank)},
            pid=FIRST_PID + self._shift + len(self._scheduler.tasks),
            parent_pid=FIRST_PID + self._shift - 1 - node.number,
            clock_skew_s=self._shift * 0.625,
            seed=self._options.seed * SEEDS_PER_RUN + rank,
            joins=again or cohort.kind != "launch",
            cohort_ranks=together(cohort),
            call=PendingGroup(),
            outsiders=range(min(cohort.ranks)) if cohort.kind == "scale" else None,
        )
        if self._options.accelerator is not None:
            give_gpus(self._sim, context)
        task = self._scheduler.spawn(f"r{rank}", context, lambda: self._body(cohort, context, at_s), at_s=at_s)
        context.tasks.append(task)
        if cohort.kind != "recover" and not again:
            self._sim.contexts[rank] = context
            self._sim.records.ranks[rank] = RankRecord(rank, cohort.name, start_s=at_s)

    def _body(self, cohort: Cohort, context: RankContext, at_s: float) -> None:
        rank = context.rank
        if cohort.kind == "recover" and not self._sim.contexts[rank].ended:
            self._refused = UsageError(
                f"rank {rank} is still alive at {at_s:g} s: let it end before a new process recovers its slot"
            )
            self._scheduler.stop()
            return
        self._sim.contexts[rank] = context
        record = self._sim.records.ranks[rank] = RankRecord(rank, cohort.name, start_s=at_s)
        record.has_gpus = context.gpus is not None
        self._sim.log("start", cohort.name)
        try:
            error = self._main(cohort, context, record)
            if self._scheduler.over:
                return  # it is being unwound, and stays what it was when the run ended
            leave_process(self._sim, context, error)
            if error is None:
                leave(self._sim, context)
            record.status = record.status if error is not None else "ok"
        except RankEnded as ended:
            if self._scheduler.over:
                return
            _note_end(record, ended)
        self._over(context, record)

    def _main(self, cohort: Cohort, context: RankContext, record: RankRecord) -> BaseException | None:
        """The rank's function; what it raised, if anything."""
        try:
            value = self._switching.modules.prepare(cohort.fn)(context.rank, *cohort.args)
            leave_device(context)
            if not self._scheduler.over:
                self._results[context.rank] = value
        except RankEnded:
            raise
        except BaseException as error:
            if not self._scheduler.over:
                self._note_error(record, error)
            return error
        return None

    def _note_error(self, record: RankRecord, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            _note_exit(record, error, self._sim)
        else:
            self._sim.sites.trim(error)
            _note_exception(record, error, self._sim)

    def _is_last(self, context: RankContext) -> bool:
        others = [
            task for task in self._scheduler.tasks if task.owner is not context and task.owner.tasks[:1] == [task]
        ]
        return not any(task.alive for task in others)

    def _over(self, context: RankContext, record: RankRecord) -> None:
        """The rank's process is gone: its servers, its connections, its daemon threads."""
        record.end_s = float(self._scheduler.env.now)
        self._sim.trace.add(self._scheduler.env.now, context.rank, "end", record.status)
        context.ended = True
        if self._faults is not None and self._is_last(context):
            self._scheduler.stop(End.FINISHED)  # nobody is left for faults to strike
        for task in context.tasks[1:]:
            if record.status != "ok" or task.daemon:
                self._scheduler.end_task(task, RankEnded("killed"))
        why = "" if record.status == "ok" else record.error or record.status
        for tell in self._sim.at_rank_end:
            tell(context, why)
        if record.status == "ok":
            return
        self._servers.rank_ended(context.rank)
        for group in context.groups:
            if group.model.notices_death:
                group.comm.lose(context.rank, f"the process ended: {record.error or record.status}")

    # -- quiescence --------------------------------------------------------------------------------------------------

    def _quiescent(self) -> bool:
        """Only time-outs are left. True: let the earliest one strike, unless some rank can go on all the same.

        A time-out that the user named at the call may be meant, so it strikes; those of whole groups do so on demand
        only. Loops that wait, time out and wait again come to an end here.
        """
        if self._sim.let_leave():
            return True
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
            Blocked(t.owner.rank, t.name, t.wait.kind, t.wait.text, t.wait.stack, t.wait.what, t.wait.read_at)
            for t in self._scheduler.tasks
            if t.alive and t.wait is not None
        ) + tuple(self._devices())

    def _devices(self) -> Iterator[Blocked]:
        """Devices that wait while their host waits for something else."""
        waited_for = [task.wait.what for task in self._scheduler.tasks if task.alive and task.wait is not None]
        for context in self._sim.contexts.values():
            op = None if context.device is None or context.ended else context.device.first_open()
            if op is not None:
                wait = op.awaited()[1]
                if not any(what is wait.what for what in waited_for):
                    yield Blocked(context.rank, "device", wait.kind, wait.text, wait.stack, wait.what)


def _note_end(record: RankRecord, ended: RankEnded) -> None:
    record.status, record.exit_code = ended.how, ended.code
    record.stack = ended.stack or record.stack
    if ended.how == "exit":
        record.status = "exit" if ended.code else "ok"
        record.error = f"os._exit({ended.code})" if ended.code else ""


def _note_exit(record: RankRecord, error: SystemExit, sim: Simulation) -> None:
    record.stack = _stack_of(error, sim)
    code = error.code
    record.exit_code = code if isinstance(code, int) else int(code is not None)
    record.status = "ok" if record.exit_code == 0 else "exit"
    record.error = f"sys.exit({code!r})" if record.exit_code else ""


def _note_exception(record: RankRecord, error: BaseException, sim: Simulation) -> None:
    record.status, record.exit_code = "exception", 1
    record.error_type = type(error).__name__
    first = _text_of(error).strip().splitlines()
    record.error = f"{record.error_type}: {first[0]}" if first else record.error_type
    record.traceback = "".join(traceback.format_exception(error))
    record.stack = _stack_of(error, sim)


def _text_of(error: BaseException) -> str:
    """str(error), even if the exception's own `__str__` fails."""
    try:
        return str(error)
    except BaseException:
        return "<unprintable>"


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
