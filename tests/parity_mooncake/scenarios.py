"""All scenarios, by name."""

from __future__ import annotations

from importlib import import_module

from tests.parity_mooncake.scenario import Scenario

MODULES = ("elastic", "subgroups", "collectives", "growth", "failures", "breadth")


def scenarios() -> dict[str, Scenario]:
    """In the order of the modules."""
    found: dict[str, Scenario] = {}
    for name in MODULES:
        found.update(import_module(f"tests.parity_mooncake.{name}").table.scenarios)
    return found
