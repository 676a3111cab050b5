"""Files to violations: each file is examined by itself, in several processes if there is much; then calls are linked.

A file that has no word of any rule cannot break one. It is parsed all the same, so that its syntax errors show, unless
the tree is large.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from simulator.lint.files import files_below
from simulator.lint.ignores import IGNORE_WORD, Ignore, ignores_in, silence
from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.rules.catalogue import RULES
from simulator.lint.rules.passing_on import RULE as PASSING_ON
from simulator.lint.rules.passing_on import forgotten
from simulator.lint.rules.rule import Rule, violations
from simulator.lint.signatures import NOTHING, Interface, interface_of
from simulator.lint.source import UNREADABLE, Source, parse, read_bytes, too_deep
from simulator.lint.violations import Violation

_LARGE_BYTES = 8_000_000
"""From here on several processes are worth their start, and parsing what cannot break a rule takes too long."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What one file comes to."""

    violations: tuple[Violation, ...]
    ignores: tuple[Ignore, ...] = ()
    interface: Interface = NOTHING
    passed_over: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a run comes to: violations in order, and how many files were read."""

    violations: tuple[Violation, ...]
    files: int
    passed_over: int = 0
    """Of these, how many have no word of any rule and were not parsed."""


def known_codes() -> dict[str, bool]:
    """All codes, each with whether it is on by default."""
    return {rule.code: rule.on for rule in RULES}


def lint(paths: Sequence[str], options: LintOptions, *, jobs: int | None = None, parse_all: bool = False) -> Result:
    """Lint files and folders.

    jobs: processes; None: one for each CPU if there is much to read.
    parse_all: parse files that cannot break a rule in large trees too.

    Raises:
        UsageError: a path or a code that there is not.
    """
    codes = options.codes(known_codes())
    linted = files_below(paths, options)
    only_signatures = {
        file: name
        for file, name in files_below([str(options.root / path) for path in options.signature_paths], options).items()
        if file not in linted
    }
    work = [*linted.items(), *only_signatures.items()]
    large = sum(_size(file) for file, _ in work) > _LARGE_BYTES
    examine_one = partial(examine, options=options, codes=codes, thorough=parse_all or not large)
    examined = _examine_all(work, examine_one, jobs or (_cpus() if large else 1))
    found = [one for result in examined[: len(linted)] for one in result.violations]
    if PASSING_ON.code in codes:
        shown = set(linted.values())
        passed = forgotten([result.interface for result in examined], options)
        found += [one for one in passed if one.path in shown]
    ignores = [one for result in examined[: len(linted)] for one in result.ignores]
    kept = silence(found, ignores, known_codes().keys(), codes)
    files = {name: file for file, name in linted.items()}
    wanted = [one for one in kept if not one.code.startswith(options.ignored_in(files[one.path]))]
    passed_over = sum(result.passed_over for result in examined[: len(linted)])
    return Result(tuple(sorted(wanted, key=lambda one: one.order)), len(linted), passed_over)


def _examine_all(work: Sequence[tuple[Path, str]], examine_one: partial[Examined], jobs: int) -> list[Examined]:
    if jobs == 1:
        return [examine_one(item) for item in work]
    with ProcessPoolExecutor(jobs, get_context("spawn"), gc.disable) as pool:
        return list(pool.map(examine_one, work, chunksize=32))


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def examine(item: tuple[Path, str], *, options: LintOptions, codes: frozenset[str], thorough: bool) -> Examined:
    """What one file comes to by itself; one that cannot break a rule is parsed only if `thorough`."""
    words = {word.encode() for rule in RULES for word in rule.words(options)} | {IGNORE_WORD.encode()}
    data = read_bytes(*item)
    if not thorough and isinstance(data, bytes) and not any(word in data for word in words):
        return Examined((), passed_over=True)
    source = parse(data, *item) if isinstance(data, bytes) else data
    if isinstance(source, Violation):
        return Examined((source,) if source.code in codes else ())
    rules = [rule for rule in RULES if any(word in source.text for word in rule.words(options))]
    if not rules:
        return Examined((), ignores_in(source))
    try:
        return _examine(source, options, [rule for rule in rules if rule.code in codes])
    except RecursionError:
        return Examined((too_deep(source.path),) if UNREADABLE in codes else (), ignores_in(source))


def _examine(source: Source, options: LintOptions, rules: Sequence[Rule]) -> Examined:
    module = Module(source)
    found = [one for rule in RULES if rule in rules for one in violations(rule, module, options)]
    interface = interface_of(module, options.parameters) if PASSING_ON in rules else NOTHING
    return Examined(tuple(found), ignores_in(source), interface)
