"""Which schedules to try. A plan sees what has been tried, and says what to try next; the same for the same seed.

`random`   before each operation a rank falls behind with some chance, another one in each schedule
`pct`      random priorities and a few change points (`simulator.exploration.recipes.Pct`)
`dfs`      every schedule of up to `depth` delays that gives some conflict another order, fewest delays first. A trial
           whose conflicts have an order that was seen before is not taken further (`simulator.exploration.order`).
`in-order` only the run in order

The search in depth goes by the number of delays, so it is complete for one delay before it tries two. It is not
complete for delays that only matter together: one that changes no conflict alone is not tried before another one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from simulator.engine.errors import UsageError, require
from simulator.engine.lag import Recipe
from simulator.exploration.recipes import Given, Pct, RandomDelays
from simulator.exploration.schedule import Delay

if TYPE_CHECKING:
    from simulator.exploration.trial import Trial

HALVINGS_MAX = 8
"""The smallest chance of a random delay is one in two to the power of this."""


class Plan(Protocol):
    """What to try.

    Attributes:
        looks: it needs to know which operations conflict (`Trial.next_delays`, `Trial.fingerprint`).
    """

    looks: bool

    def next(self, done: Sequence[Trial], room: int) -> list[Recipe]:
        """The next schedules, `room` at most; none: there is nothing left to try. `done[0]` is the run in order."""


class InOrder:
    """Nothing else."""

    looks = False

    def next(self, done: Sequence[Trial], room: int) -> list[Recipe]:
        return []


class Sampling:
    """Schedules that are drawn one by one, each from a seed of its own."""

    looks = False

    def __init__(self, draw: Callable[[Trial, int], Recipe]) -> None:
        self._draw = draw

    def next(self, done: Sequence[Trial], room: int) -> list[Recipe]:
        return [self._draw(done[0], len(done) + index) for index in range(room)]


def random_plan(seed: int, depth: int) -> Plan:
    """`random`."""

    def draw(first: Trial, number: int) -> Recipe:
        halvings = random.Random(f"chance {seed} {number}").randint(1, HALVINGS_MAX)
        return RandomDelays(f"random {seed} {number}", 2.0**-halvings)

    return Sampling(draw)


def pct_plan(seed: int, depth: int) -> Plan:
    """`pct`."""
    return Sampling(lambda first, number: Pct(f"pct {seed} {number}", first.tasks, first.operations, depth))


class DepthFirst:
    """`dfs`. (Deep in the program, not in the number of delays.)"""

    looks = True

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._orders: dict[str, None] = {}
        self._tried: dict[frozenset[tuple[str, int]], None] = {}
        self._looked_at = 0
        self._waiting: deque[Recipe] = deque()

    def next(self, done: Sequence[Trial], room: int) -> list[Recipe]:
        while self._looked_at < len(done) and len(self._waiting) < room:
            trial = done[self._looked_at]
            self._looked_at += 1
            if trial.fingerprint not in self._orders and len(trial.delays) < self._depth:
                self._waiting += map(Given, self._longer(trial))
            self._orders[trial.fingerprint] = None
        return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def _longer(self, trial: Trial) -> list[tuple[Delay, ...]]:
        longer = []
        for delay in trial.next_delays:
            delays = (*trial.delays, delay)
            keys = frozenset(each.key for each in delays)
            if keys not in self._tried:
                self._tried[keys] = None
                longer.append(delays)
        return longer


_PLANS: dict[str, Callable[[int, int], Plan]] = {
    "random": random_plan,
    "pct": pct_plan,
    "dfs": lambda seed, depth: DepthFirst(depth),
    "in-order": lambda seed, depth: InOrder(),
}
POLICIES = tuple(_PLANS)


def plan_of(policy: str, *, seed: int, depth: int) -> Plan:
    """The plan of that name.

    Raises:
        UsageError: no such policy, or a depth below 1.
    """
    if policy not in _PLANS:
        raise UsageError(f"policy={policy!r}: give one of {', '.join(POLICIES)}")
    require(isinstance(depth, int) and depth >= 1, f"depth={depth!r}: give a whole number, 1 or more")
    return _PLANS[policy](seed, depth)
