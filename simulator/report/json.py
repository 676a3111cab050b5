"""A report for machines."""

from __future__ import annotations

import json
from typing import Any, Protocol


class Reported(Protocol):
    """An outcome, or an exploration."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""


def render_json(outcome: Reported) -> str:
    """The outcome as one JSON document with sorted keys."""
    return json.dumps(outcome.to_dict(), indent=2, sort_keys=True, default=str) + "\n"
