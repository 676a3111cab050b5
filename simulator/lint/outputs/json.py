"""Violations as one JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from simulator.lint.run import Result
from simulator.lint.violations import Violation

FORMAT = "hangcheck-lint 1"


def render_json(result: Result) -> str:
    """One document, keys sorted."""
    document = {
        "format": FORMAT,
        "files": result.files,
        "passed_over": result.passed_over,
        "violations": [_violation(one) for one in result.violations],
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _violation(one: Violation) -> dict[str, Any]:
    return {
        "path": one.path,
        **asdict(one.span),
        "code": one.code,
        "message": one.message,
        "remedy": one.remedy,
        "certainty": str(one.certainty),
        "source": one.source,
    }
