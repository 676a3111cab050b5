"""A report for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.outcome import Outcome


def render_json(outcome: Outcome) -> str:
    """The outcome as one JSON document with sorted keys."""
    return json.dumps(outcome.to_dict(), indent=2, sort_keys=True, default=str) + "\n"
