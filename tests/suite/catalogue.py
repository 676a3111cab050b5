"""All programs of the suite, in a fixed order: every pattern with each backend and some seeds, and the corpus."""

from __future__ import annotations

from types import ModuleType

from tests.suite import calls, calls_right, frameworks, invalid, leaks, lifecycle, messages, parameters, shared, threads
from tests.suite.corpus import corpus
from tests.suite.label import Case
from tests.suite.pick import Pattern
from tests.suite.random_faults import random_cases

MODULES = (invalid, leaks, lifecycle, threads, messages, parameters, calls, calls_right, shared, frameworks)
SEEDS = 2
"""Instances of each pattern with each of its backends."""
RANDOM_FOR_EACH = 6
"""Random programs of each fault, for each of these."""


def patterns() -> list[Pattern]:
    """All patterns, module by module, in the order of their texts."""
    return [found for module in MODULES for found in _of(module)]


def _of(module: ModuleType) -> list[Pattern]:
    return [value for value in vars(module).values() if isinstance(value, Pattern)]


def generated(seeds: int = SEEDS) -> list[Case]:
    """The programs of all patterns."""
    return [
        case
        for pattern in patterns()
        for backend in pattern.backends
        for seed in range(seeds)
        for case in pattern.cases(backend, seed)
    ]


def suite(seeds: int = SEEDS) -> list[Case]:
    """The generated programs, random ones with one fault, and those after public bug reports."""
    return [*generated(seeds), *random_cases(RANDOM_FOR_EACH * seeds), *corpus()]
