"""One run of a program under one schedule, and what is kept of it: plain data, since it may come from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from simulator.engine.lag import Recipe
from simulator.engine.operations import Operation
from simulator.exploration.order import order_of
from simulator.exploration.program import MakeCluster, Program
from simulator.exploration.schedule import Delay
from simulator.exploration.values import Leaves, leaves
from simulator.outcome import Outcome
from simulator.torch_world.alone import one_after_another
from simulator.torch_world.stage import Stage, open_stage


@dataclass(frozen=True, slots=True)
class Trial:
    """What one schedule gave.

    Attributes:
        number: of the schedule; 0 is the run in order.
        verdict: of the run.
        title: of its first finding.
        delays: where tasks fell behind.
        results: what the ranks returned.
        tasks: labels of its tasks.
        operations: how many operations were announced.
        next_delays: delays that lead to an order of conflicts which no shorter schedule gives.
        faults: that were injected, each with why it never struck, or nothing if it did.
        fingerprint: equal for trials in which all conflicts have the same order.
    """

    number: int
    verdict: str
    title: str
    delays: tuple[Delay, ...]
    results: Leaves
    tasks: tuple[str, ...] = ()
    operations: int = 0
    next_delays: tuple[Delay, ...] = ()
    fingerprint: str = ""
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"


Numbered = tuple[int, Recipe]
"""Number of a schedule, and the schedule."""


def run_chunk(program: Program, numbered: Sequence[Numbered], look: bool) -> list[Trial]:
    """Trials, in this process or wherever they were sent. `look`: at the order of conflicts, for the search in depth.

    Other threads of the process may have the same task (those of a Dask worker): one after the other.
    """
    with one_after_another(), on_stage(program) as runner:
        return [runner.trial(number, recipe, look=look) for number, recipe in numbered]


class Runner:
    """Runs one program again and again on one stage."""

    def __init__(self, make: MakeCluster, stage: Stage) -> None:
        self._make = make
        self._stage = stage

    def outcome(self, recipe: Recipe, *, replay: str = "", **how: Any) -> Outcome:
        """The whole outcome; what the ranks print is dropped.

        Args:
            how: see `simulator.run.Run`.
        """
        cluster = self._make()
        cluster.replay = replay
        with _quiet():
            return cluster.run_on(self._stage, delays=recipe, **how)

    def trial(self, number: int, recipe: Recipe, *, look: bool = False, shifted: bool = False) -> Trial:
        """What is kept of it."""
        return trial_of(number, self.outcome(recipe, keeps_stacks=look, shifted=shifted), look=look)


@contextmanager
def on_stage(program: Program) -> Iterator[Runner]:
    """The program, ready to run."""
    with program.ready() as make, open_stage(program.ranks, many_runs=True) as stage:
        yield Runner(make, stage)


def trial_of(number: int, outcome: Outcome, *, look: bool) -> Trial:
    """The trial that an outcome stands for."""
    assert outcome.lag is not None
    log = outcome.lag.log.entries
    bad = next((finding for finding in outcome.findings if not finding.warning), None)
    delays = tuple(Delay.before(operation) for operation in outcome.lag.fallen)
    operations = [entry for entry in log if isinstance(entry, Operation)]
    order = order_of(log) if look else None
    return Trial(
        number,
        str(outcome.verdict),
        "" if bad is None else bad.title,
        delays,
        leaves(outcome.results),
        tuple(outcome.lag.tasks),
        len(operations),
        () if order is None else order.next_delays(delays),
        "" if order is None else order.fingerprint,
        tuple((fault.text, fault.why_not) for fault in outcome.faults),
    )


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def _quiet() -> Iterator[None]:
    with redirect_stdout(_Nowhere()), redirect_stderr(_Nowhere()):
        yield
