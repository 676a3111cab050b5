"""What the trials of an exploration say: the verdict, and for a race its two outcomes and the two events that swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.engine.operations import Operation
from simulator.exploration.recipes import Given
from simulator.exploration.schedule import Delay, Schedule
from simulator.exploration.shrinking import Shrinker
from simulator.exploration.swap import Swap, contested_receive, swapped
from simulator.exploration.trial import Runner, Trial
from simulator.exploration.values import Leaves, differing
from simulator.exploration.wording import noun, rank_of, who
from simulator.outcome import Outcome

_SHOWN = 3
"""Results that differ and are named."""


class Judgement(NamedTuple):
    """The answer; see `Exploration`."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    schedule: Schedule
    outcome: Outcome


class Contrast(NamedTuple):
    """A trial that ended otherwise than the run in order, and how to know another one like it."""

    trial: Trial
    alike: Callable[[Trial], bool]
    times: int


class Judge:
    """Judges trials, running some schedules again.

    Args:
        trials: all of them, the run in order first.
        volatile: results that are other ones in each run, in any order.
        command: runs the program in order.
        replay: runs the failing schedule again.
    """

    def __init__(
        self, runner: Runner, trials: Sequence[Trial], volatile: frozenset[str], *, command: str, replay: str
    ) -> None:
        self._runner = runner
        self._trials = trials
        self._volatile = volatile
        self._command = command
        self._replay = replay

    def judgement(self) -> Judgement:
        """The verdict, and why."""
        contrast = self._contrast()
        if contrast is None:
            outcome = self._outcome(())
            return Judgement(outcome.verdict, outcome.findings, self._schedule(()), outcome)
        shrinker = Shrinker(lambda delays: self._runner.trial(-1, Given(delays)), contrast.alike)
        delays = shrinker.shrunk(contrast.trial, self._trials[0].next_delays).delays
        race = self._race(contrast, delays)
        failing = delays if self._trials[0].ok else ()
        return Judgement(Verdict.RACE, (race,), self._schedule(failing), self._outcome(failing))

    def _schedule(self, delays: tuple[Delay, ...]) -> Schedule:
        return Schedule(delays, self._command)

    def _outcome(self, delays: tuple[Delay, ...]) -> Outcome:
        return self._runner.outcome(Given(delays), replay=self._replay if delays else self._command)

    # -- does the outcome depend on the schedule? --------------------------------------------------------------------

    def _contrast(self) -> Contrast | None:
        """Ok against bad counts first; then other results. Two bad outcomes are one bad program."""
        first = self._trials[0]
        if first.verdict == Verdict.RACE:
            return None
        other = next((trial for trial in self._trials[1:] if trial.ok != first.ok), None)
        if other is not None:
            return self._like(lambda trial: trial.verdict == other.verdict)
        if not first.ok:
            return None
        return self._like(lambda trial: trial.ok and bool(self._differing(trial.results)))

    def _like(self, alike: Callable[[Trial], bool]) -> Contrast | None:
        found = [trial for trial in self._trials[1:] if alike(trial)]
        return Contrast(found[0], alike, len(found)) if found else None

    def _differing(self, results: Leaves) -> list[str]:
        return [path for path in differing(self._trials[0].results, results) if path not in self._volatile]

    # -- the finding -------------------------------------------------------------------------------------------------

    def _race(self, contrast: Contrast, delays: tuple[Delay, ...]) -> Finding:
        usual, other = self._runner.outcome(Given(delays[:-1])), self._runner.outcome(Given(delays))
        swap = None
        if usual.lag is not None and other.lag is not None:
            swap = swapped(usual.lag.log.entries, other.lag.log.entries, delays[-1].key if delays else None)
        taker = None
        if swap is not None and other.lag is not None:
            taker = contested_receive(other.lag.log.entries, swap.first)
        delayed = other.lag.fallen if other.lag is not None else []
        in_order, otherwise = self._ends(contrast)
        certain = self._trials[0].ok != contrast.trial.ok
        return Finding(
            kind=Verdict.RACE,
            level=Level.TORCH,
            certainty=Certainty.CAUSE if certain else Certainty.SUSPECT,
            title=_title(swap, delayed, taker),
            sides=(*_takes(taker), *_sides(swap), *map(_late, delayed)),
            cause=f"in order the run ends with {in_order}; with the delay, with {otherwise} "
            f"({contrast.times} of {len(self._trials)} schedules)",
            remedy=_receiver_remedy()
            if taker is not None
            else _remedy(swap if self._trials[0].ok or swap is None else Swap(swap.then, swap.first), certain),
        )

    def _ends(self, contrast: Contrast) -> tuple[str, str]:
        first, other = self._trials[0], contrast.trial
        if first.ok != other.ok:
            return _end(first), _end(other)
        paths = self._differing(other.results)[:_SHOWN]
        mine = ", ".join(f"{path} = {first.results.get(path)!r}" for path in paths)
        theirs = ", ".join(f"{path} = {other.results.get(path)!r}" for path in paths)
        return f"the results {mine}", f"the results {theirs}"


def _end(trial: Trial) -> str:
    return f"{trial.verdict} ({trial.title})" if trial.title else trial.verdict


def _title(swap: Swap | None, delayed: Sequence[Operation], taker: Operation | None) -> str:
    if swap is not None and taker is not None:
        return f"the outcome depends on which message {_deed(taker)} takes: {_deed(swap.first)} or {_deed(swap.then)}"
    if swap is not None:
        return f"the outcome depends on whether {_deed(swap.first)} comes before {_deed(swap.then)}"
    names = " and ".join(f"{who(operation.task)} is slow before its {noun(operation)}" for operation in delayed)
    return f"the outcome depends on whether {names}"


def _deed(operation: Operation) -> str:
    place = f" ({operation.stack[0].place})" if operation.stack else ""
    name = who(operation.task)
    deed = f"the {noun(operation)} of {name}" if "'" in name else f"{name}'s {noun(operation)}"
    return deed + place


def _sides(swap: Swap | None) -> tuple[Side, ...]:
    if swap is None:
        return ()
    return tuple(
        Side(role, (rank_of(operation.task),), noun(operation), operation.stack)
        for role, operation in (("first", swap.first), ("then", swap.then))
    )


def _takes(taker: Operation | None) -> tuple[Side, ...]:
    if taker is None:
        return ()
    return (Side("takes", (rank_of(taker.task),), noun(taker), taker.stack),)


def _late(operation: Operation) -> Side:
    return Side("delayed", (rank_of(operation.task),), f"before its {noun(operation)}", operation.stack)


def _receiver_remedy() -> str:
    return (
        "receive from each rank by its number (src=), or put what comes where the number that recv returns says; a "
        "sleep orders nothing"
    )


def _remedy(bad: Swap | None, certain: bool) -> str:
    """`bad`: the order of the two events that leads to the bad outcome."""
    if bad is None:
        return "let the ranks decide together (one decides, and broadcasts it), not each by its own clock"
    if rank_of(bad.first.task) == rank_of(bad.then.task):
        return "order the threads with an event, a queue or a join; let all of them take locks in one order"
    wait = f"let {who(bad.first.task)} wait for {who(bad.then.task)}" if certain else "order the two events"
    return f"{wait}: a barrier, a receive, or a wait for a key that is set after it; a sleep orders nothing"
