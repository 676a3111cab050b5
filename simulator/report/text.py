"""A report as text: aligned rows, the explanation first, seed and replay line last."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simulator.analysis.facts import listed
from simulator.analysis.findings import Finding, Side
from simulator.report.faults import render_faults

if TYPE_CHECKING:
    from simulator.outcome import Outcome

_WIDTH = 118
_DOING = 72
_MOST = 12


def render(outcome: Outcome) -> str:
    """The whole report of one run."""
    bad = [f for f in outcome.findings if not f.warning]
    warnings = [f for f in outcome.findings if f.warning]
    told = f", {_count(len(warnings), 'warning')}" if warnings else ""
    head = f"hangcheck: {outcome.verdict} ({_count(len(bad), 'finding')}{told}, {_count(len(outcome.ranks), 'rank')}"
    head += f", seed {outcome.seed}, {outcome.virtual_s:g} s of virtual time)"
    blocks = [head]
    if outcome.faults:
        blocks.append(render_faults(outcome.faults, outcome.faults_end_s))
    if outcome.end.name == "UNTIL":
        blocks.append("\n".join([f"ended at {outcome.virtual_s:g} s, as asked:", *side_rows(outcome.standing)]))
    shown = [*bad, *warnings][:_MOST]
    blocks += [render_finding(finding) for finding in shown]
    left = len(outcome.findings) - len(shown)
    if left:
        blocks.append(f"... and {_count(left, 'more finding')} (all of them with --json)")
    if outcome.replay and outcome.findings:
        blocks.append(f"replay: {outcome.replay}")
    return "\n\n".join(blocks) + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render_finding(finding: Finding) -> str:
    """One finding."""
    tag = f"{finding.kind}" + (" (warning)" if finding.warning else "")
    lines = _wrapped(f"{tag}: ", f"{finding.title}", indent="")
    lines += side_rows(finding.sides)
    lines += _wrapped("  cause:   ", finding.cause)
    lines += _wrapped("  remedy:  ", finding.remedy)
    other = "torch" if finding.level == "contract" else "real"
    if finding.at_other_level:
        lines += _wrapped(f"  {other + ':':<9}", finding.at_other_level)
    lines.append(f"  level:   {finding.level}    certainty: {finding.certainty}")
    return "\n".join(lines)


def _wrapped(label: str, text: str, indent: str = "           ") -> list[str]:
    return _lines(label + text, indent or "  ") if text else []


def _lines(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def side_rows(sides: Iterable[Side]) -> list[str]:
    """Role, ranks, what they do, where (below, if that is long); then the callers, unless the row above has them."""
    shown = list(sides)
    if not shown:
        return []
    role_width = max(len(side.role) for side in shown) + 1
    rank_width = min(max(len(listed(side.ranks)) for side in shown), 28)
    doing_width = min(max(len(side.doing) for side in shown), _DOING)
    lines, above = [], ""
    for side in shown:
        place = side.site.place if side.site is not None else ""
        head = f"  {side.role + ':':<{role_width}} {listed(side.ranks):<{rank_width}}  "
        if len(side.doing) > _DOING and len(head) + len(side.doing) + len(place) > _WIDTH:
            lines += _lines(head + side.doing, " " * len(head))
            lines += [f"{'':<{len(head)}}at {place}"] if place else []
        else:
            lines.append(f"{head}{side.doing:<{doing_width}}  {place}".rstrip())
        callers = "\n".join(f"{'':<{len(head)}}from {frame}" for frame in side.stack[1:3])
        if callers and callers != above:
            lines.append(callers)
        above = callers
    return lines
