"""Violations as annotations of GitHub Actions: workflow commands on stdout, one a line."""

from __future__ import annotations

from simulator.lint.run import Result
from simulator.lint.violations import Certainty, Violation

_COMMANDS = {Certainty.CAUSE: "error", Certainty.SUSPECT: "warning"}
_IN_TEXT = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY = {**_IN_TEXT, ":": "%3A", ",": "%2C"}


def render_github(result: Result) -> str:
    """One command for each violation."""
    return "".join(_annotation(one) for one in result.violations)


def _annotation(one: Violation) -> str:
    span = one.span
    properties = {"file": one.path, "line": span.line, "endLine": span.end_line, "title": f"hangcheck {one.code}"}
    if span.line == span.end_line:
        properties |= {"col": span.column, "endColumn": span.end_column}
    shown = ",".join(f"{name}={_escaped(str(value), _IN_PROPERTY)}" for name, value in properties.items())
    text = _escaped(f"{one.path}:{span.line}:{span.column} {one.code} {one.message}; {one.remedy}", _IN_TEXT)
    return f"::{_COMMANDS[one.certainty]} {shown}::{text}\n"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(character, character) for character in text)
