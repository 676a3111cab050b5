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

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator.analysis.facts import listed
from simulator.cohort import Cohort, RankFunction
from simulator.engine.errors import UsageError, require
from simulator.faults import Fault, FaultFunction
from simulator.options import ClusterOptions
from simulator.outcome import Outcome, SimulationFailed
from simulator.run import Run
from simulator.torch_world.alone import refuse_second_simulation
from simulator.torch_world.stage import Stage, open_stage

RANKS_MAX = 1 << 16

__all__ = ["Cluster", "ClusterOptions", "Outcome", "SimulationFailed", "simulate"]


class Cluster:
    """Nodes, and the cohorts of ranks that run on them. Options: see `ClusterOptions`."""

    def __init__(self, options: ClusterOptions | None = None, **given: Any) -> None:
        require(
            options is None or not given, f"{', '.join(given)}: give either ClusterOptions or single options, not both"
        )
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
        require(_whole(ranks) and ranks >= 1, f"ranks={ranks!r}: launch at least one rank")
        _require_few(ranks)
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
        require(_whole(ranks) and ranks >= 1, f"ranks={ranks!r}: let at least one rank join")
        require(
            _whole(rank_offset) and rank_offset >= 1,
            f"rank_offset={rank_offset!r}: joiners come behind the launched ranks, so give 1 or more",
        )
        _require_few(rank_offset + ranks)
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
        slots = ranks if isinstance(ranks, list | tuple | range) else ()
        require(len(slots) > 0, f"ranks={ranks!r}: name the slots to fill, as a list")
        whole = all(_whole(rank) for rank in slots) and len(set(slots)) == len(slots)
        require(whole, f"ranks={list(slots)!r}: give whole numbers, each once")
        known = {rank for cohort in self._cohorts for rank in cohort.ranks}
        missing = [rank for rank in ranks if rank not in known]
        require(not missing, f"ranks={list(ranks)}: {missing} were never launched, so there is nothing to recover")
        return self._add("recover", fn, tuple(ranks), size, args, env, at_s)

    def fault(self, fault: str | Fault | FaultFunction) -> Cluster:
        """Inject a fault, such as `kill rank=2 at=all_reduce#3` (see `simulator.faults`).

        Raises:
            UsageError: there is no such fault.
        """
        self.options = replace(self.options, faults=(*self.options.faults, fault))
        return self

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
        _check_function(fn)
        finite = isinstance(at_s, int | float) and 0 <= at_s < float("inf")
        require(finite, f"at_s={at_s!r}: a start time is 0 or later, in virtual seconds")
        require(isinstance(args, list | tuple), f"args={args!r}: give a list or tuple of arguments")
        texts = all(isinstance(key, str) and isinstance(value, str) for key, value in dict(env or {}).items())
        require(texts, f"env={env!r}: give texts by name")
        require(_whole(world_size), f"world_size={world_size!r}: give a whole number")
        require(
            world_size > max(ranks), f"world_size={world_size}: rank {max(ranks)} needs a world of {max(ranks) + 1}"
        )
        if kind != "recover":
            taken = sorted(set(ranks) & {rank for cohort in self._cohorts for rank in cohort.ranks})
            require(
                not taken,
                f"{listed(taken)} {'is' if len(taken) == 1 else 'are'} live already: "
                f"give rank_offset={self._first_free()} or higher",
            )
        capacity = None if self.options.gpus_per_node is None else self.options.gpus_per_node * self.options.nodes
        require(
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
        refuse_second_simulation()
        with open_stage(self.ranks) as stage:
            return self.run_on(stage)

    def run_on(self, stage: Stage, **how: Any) -> Outcome:
        """As `run`, on a stage that the caller keeps open for many runs. `how`: see `Run`."""
        require(bool(self._cohorts), "nothing to run: call launch() first")
        return Run(stage, self.options, self._cohorts, self.replay, **how).outcome()

    @property
    def ranks(self) -> int:
        """How many processes it starts in all."""
        return sum(len(cohort.ranks) for cohort in self._cohorts)


def _require_few(ranks: int) -> None:
    require(ranks <= RANKS_MAX, f"rank {ranks - 1}: at most {RANKS_MAX} ranks can be simulated")


def _check_function(fn: object) -> None:
    require(callable(fn), f"{type(fn).__name__} {fn!r:.80} is not a function to run on a rank")
    lazy = inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
    name = getattr(fn, "__qualname__", repr(fn))
    require(
        not lazy, f"{name} only makes a coroutine or generator when it is called: give a plain function that runs it"
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def simulate(fn: RankFunction, ranks: int, *, args: Sequence[Any] = (), **options: Any) -> Outcome:
    """Run `fn(rank, *args)` on `ranks` simulated ranks. Options: see `ClusterOptions`."""
    return Cluster(**options).launch(fn, ranks=ranks, args=args).run()
