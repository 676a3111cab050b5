"""All scenarios, by name."""

from __future__ import annotations

from importlib import import_module

from tests.parity_mooncake.scenario import Scenario

MODULES = (
    "elastic", "growth", "capacity", "replacement", "subgroups", "collectives", "failures", "leaving", "deactivation",
    "breadth",
)  # fmt: skip


def scenarios() -> dict[str, Scenario]:
    """In the order of the modules."""
    found: dict[str, Scenario] = {}
    for name in MODULES:
        found.update(import_module(f"tests.parity_mooncake.{name}").table.scenarios)
    return found
