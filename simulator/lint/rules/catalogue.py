"""All rules."""

from __future__ import annotations

from simulator.lint.ignores import INCOMPLETE, UNUSED
from simulator.lint.rules import group_calls, offset_lists, passing_on, probes, roots, settings
from simulator.lint.rules.rule import Rule
from simulator.lint.source import UNREADABLE

_OWN = (
    Rule(UNREADABLE, "unreadable", "a file cannot be read or parsed", "Nothing in it was checked."),
    Rule(
        INCOMPLETE,
        "ignore-without-reason",
        "a comment ignores without a code or a reason",
        "The next reader cannot tell whether it still holds.",
    ),
    Rule(UNUSED, "unused-ignore", "a comment ignores what is not there", "It would hide the next mistake."),
)
RULES: tuple[Rule, ...] = (
    passing_on.RULE,
    offset_lists.RULE,
    group_calls.CONDITIONS,
    group_calls.ORDER,
    roots.RULE,
    probes.RULE,
    settings.RULE,
    *_OWN,
)
