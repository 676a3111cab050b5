"""What a rule is, and how it makes violations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.violations import Certainty, Violation, span_of

Check = Callable[[Module, LintOptions], Iterator["Flaw"]]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A violation before it is given a place: the expression, what is wrong, what to write."""

    node: ast.expr
    message: str
    remedy: str
    certainty: Certainty = Certainty.CAUSE


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: in a few words, with dashes.
        summary: one sentence.
        why: what happens if it is broken.
        check: finds its flaws in one file; None if it needs the whole tree or belongs to the linter itself.
        words: a file that has none of them cannot break the rule.
        on: whether it is looked for by default.
    """

    code: str
    name: str
    summary: str
    why: str
    check: Check | None = None
    words: Callable[[LintOptions], tuple[str, ...]] = lambda options: ()
    on: bool = True


def violations(rule: Rule, module: Module, options: LintOptions) -> Iterator[Violation]:
    """What one rule finds in one file."""
    if rule.check is None:
        return
    for flaw in rule.check(module, options):
        yield Violation(
            path=module.source.path, span=span_of(flaw.node, module.source.lines), code=rule.code,
            message=flaw.message, remedy=flaw.remedy, certainty=flaw.certainty,
            source=module.source.line(flaw.node.lineno),
        )  # fmt: skip
