"""Violations for people: `file:line:column CODE message`, the line, what to write."""

from __future__ import annotations

from simulator.lint.run import Result
from simulator.lint.violations import Certainty, Violation


def render_text(result: Result) -> str:
    """All violations, and a line with their number."""
    blocks = [_block(one) for one in result.violations]
    return "".join([*blocks, _summary(result)])


def _block(one: Violation) -> str:
    lines = [f"{one.path}:{one.span.line}:{one.span.column} {one.code} {one.message}"]
    if one.source.strip():
        lines.append(f"  line:  {one.source.strip()}")
    lines.append(f"  write: {one.remedy}")
    if one.certainty is not Certainty.CAUSE:
        lines.append(f"  sure:  {one.certainty}")
    return "\n".join(lines) + "\n\n"


def _summary(result: Result) -> str:
    found, files = len(result.violations), result.files
    noted = f", {result.passed_over} of them without a word of any rule" if result.passed_over else ""
    return (
        f"hangcheck lint: {found or 'no'} violation{'' if found == 1 else 's'} "
        f"in {files} file{'' if files == 1 else 's'}{noted}\n"
    )
