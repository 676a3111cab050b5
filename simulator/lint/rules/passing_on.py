"""HC001: a parameter of the function that is not passed on to a group constructor which accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.lint.linking import Link
from simulator.lint.options import LintOptions
from simulator.lint.rules.rule import Rule
from simulator.lint.signatures import Interface, OpenCall
from simulator.lint.violations import Certainty, Violation

RULE = Rule(
    "HC001",
    "parameter-not-passed-on",
    "a group constructor accepts a parameter of the function around it, and the call leaves it out",
    "The group is made as for a plain launch: a joiner gets the ranks of others, or waits for ranks that never come.",
    words=lambda options: options.parameters,
)


def forgotten(interfaces: Iterable[Interface], options: LintOptions) -> Iterator[Violation]:
    """All calls of the tree that leave such a parameter out."""
    known = list(interfaces)
    link = Link(known, dict(options.constructors))
    for interface in known:
        for call in interface.calls:
            missing = _missing(call, link)
            if missing:
                yield _violation(call, missing)


def _missing(call: OpenCall, link: Link) -> list[str]:
    """Parameters that every function that the call may mean accepts, and that do not come by position."""
    signatures = link.signatures(call.means)
    return [
        name
        for name in call.missing
        if signatures and all(name in one.keywords and name not in one.positional[: call.given] for one in signatures)
    ]


def _violation(call: OpenCall, missing: list[str]) -> Violation:
    names = ", ".join(missing)
    written = ", ".join(f"{name}={name}" for name in missing)
    return Violation(
        path=call.path, span=call.span, code=RULE.code, certainty=Certainty.CAUSE, source=call.source,
        message=f"{call.shown}() accepts {names}, and {call.function}() does not pass on its own",
        remedy=f"write {written}, or say by name what else is meant",
    )  # fmt: skip
