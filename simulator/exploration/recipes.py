"""One schedule before it has been run: how the delays of a run are drawn. Torch-free, and the same for the same seed.

`Pct` is the scheduler of S. Burckhardt, P. Kothari, M. Musuvathi and S. Nagarakatte, "A Randomized Scheduler with
Probabilistic Guarantees of Finding Bugs", ASPLOS 2010: random priorities, and `depth` - 1 places at which the running
task's priority drops below all others. A bug that needs `depth` orderings among n tasks and k operations is hit with a
probability of at least 1 / (n * k ** (depth - 1)).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.lag import Delays, Recipe
from simulator.engine.operations import Operation
from simulator.exploration.schedule import Delay


@dataclass(frozen=True, slots=True)
class Given(Recipe):
    """These delays, those of them that the run comes to: as in a schedule that need not fit."""

    delays: tuple[Delay, ...] = ()

    def start(self) -> Delays:
        depths = {delay.key: depth for depth, delay in enumerate(self.delays, 1)}
        return lambda operation: depths.get(operation[:2], 0)


@dataclass(frozen=True, slots=True)
class RandomDelays(Recipe):
    """Before each operation the task falls behind with the probability `chance`."""

    seed: str
    chance: float

    def start(self) -> Delays:
        draw = random.Random(self.seed).random
        return lambda operation: int(draw() < self.chance)


@dataclass(frozen=True, slots=True)
class Pct(Recipe):
    """Random priorities and change points.

    Args:
        tasks: labels of the tasks, as a run in order has them; later ones get a random priority too.
        operations: how many operations such a run has.
        depth: change points, and one.
    """

    seed: str
    tasks: Sequence[str]
    operations: int
    depth: int

    def start(self) -> Delays:
        return _PctRun(self)


class _PctRun:
    def __init__(self, recipe: Pct) -> None:
        self._random = random.Random(recipe.seed)
        places = self._random.sample(range(len(recipe.tasks)), len(recipe.tasks))
        self._depths = dict(zip(recipe.tasks, places, strict=True))
        count = max(1, recipe.operations)
        self._changes = {self._random.randint(1, count) for _ in range(recipe.depth - 1)}
        self._count = 0

    def __call__(self, operation: Operation) -> int:
        if operation.number == 0:
            depth = self._depths.get(operation.task)
            return self._random.randint(0, len(self._depths)) if depth is None else depth
        self._count += 1
        return int(self._count in self._changes)
