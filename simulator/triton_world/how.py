"""How memory is accessed: order, scope, by whom (PTX ISA, "Memory Consistency Model")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class How:
    """Order and scope of an access.

    Attributes:
        order: `weak`, `relaxed`, `acquire`, `release` or `acq_rel`.
        scope: `cta`, `gpu` or `sys`; empty if weak.
        by_one_lane: a known thread makes it, see `simulator.memory_records.Access`.
    """

    order: str = "weak"
    scope: str = ""
    by_one_lane: bool = False

    @property
    def is_strong(self) -> bool:
        """A loop that looks with it again and again is taken to wait."""
        return self.order != "weak"
