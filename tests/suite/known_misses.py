"""Patterns of which the simulator does not yet say what their labels say, each with the reason.

A test compares this with what the simulator says: a pattern that fails has to stand here, and one that has become right
has to go.
"""

from __future__ import annotations

KNOWN_MISSES: dict[str, str] = {
    "corpus-B07": "a list that is wrong in the same way on all ranks",
    "corpus-B40s": "messages of one size and tag in each other's place",
}
