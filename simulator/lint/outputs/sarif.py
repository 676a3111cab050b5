"""Violations as SARIF 2.1.0, the OASIS format that code scanning reads. Columns count in code points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simulator.lint.rules.catalogue import RULES
from simulator.lint.rules.rule import Rule
from simulator.lint.run import Result
from simulator.lint.violations import Certainty, Violation

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Certainty.CAUSE: "error", Certainty.SUSPECT: "warning"}


def render_sarif(result: Result) -> str:
    """One log with one run."""
    driver = {"name": "hangcheck", "rules": [_rule(rule) for rule in RULES]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one) for one in result.violations],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, sort_keys=True) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"enabled": rule.on},
    }


def _result(one: Violation) -> dict[str, Any]:
    codes = [rule.code for rule in RULES]
    region = {
        "startLine": one.span.line,
        "startColumn": one.span.column,
        "endLine": one.span.end_line,
        "endColumn": one.span.end_column,
    }
    location = {"artifactLocation": {"uri": _uri(one.path)}, "region": region}
    return {
        "ruleId": one.code,
        "ruleIndex": codes.index(one.code),
        "level": _LEVELS[one.certainty],
        "message": {"text": f"{one.message}. Remedy: {one.remedy}"},
        "locations": [{"physicalLocation": location}],
    }


def _uri(path: str) -> str:
    return Path(path).as_uri() if Path(path).is_absolute() else quote(path)
