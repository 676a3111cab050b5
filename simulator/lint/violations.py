"""What a violation is: a place, a rule's code, and what to write there instead."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Certainty(StrEnum):
    """How sure the linter is."""

    CAUSE = "cause"
    """The code breaks the rule, whatever happens at run time."""
    SUSPECT = "suspect"
    """It breaks the rule unless something holds that the source does not show."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of source. Lines and columns count from 1, columns in characters; the end column is the one behind."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that should be written otherwise.

    Attributes:
        path: as shown, with forward slashes.
        message: what is wrong, one sentence without a full stop.
        remedy: what to write.
        source: the first line of the span, as it stands in the file.
    """

    path: str
    span: Span
    code: str
    message: str
    remedy: str
    certainty: Certainty
    source: str = ""

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        """Violations are shown by file, place and code."""
        return self.path, self.span.line, self.span.column, self.code, self.message


def span_of(node: ast.expr | ast.stmt, lines: Sequence[str]) -> Span:
    """The span of a node; Python counts its columns in bytes of UTF-8."""
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return Span(
        node.lineno, _characters(lines, node.lineno, node.col_offset), end_line, _characters(lines, end_line, end)
    )


def _characters(lines: Sequence[str], line: int, offset: int) -> int:
    text = lines[line - 1] if line <= len(lines) else ""
    return 1 + len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "replace"))
