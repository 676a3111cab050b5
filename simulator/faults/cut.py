"""A node that nobody reaches, until its network heals.

Kernels send again what gets lost, so it gets through, in its order. A collective whose ranks lie on both sides
completes when the cut heals, and a message arrives then. A request to a store across the cut gets through with the
first try after that: up to twice as long (see `requests`). Connections that wait do not notice; the time-outs of groups
strike as they would; that of a request to a store raises when its cancellation gets through. Not modelled, for
collectives and messages: the pause until a kernel tries again, and that it gives a connection up (after 924.6 s).
"""

from __future__ import annotations

from simulator.faults.injection import Injection
from simulator.faults.values import Node, Seconds


def cut(injection: Injection, *, node: Node, since: Seconds | None = None, until: Seconds | None = None) -> None:
    """Nothing gets through between a node and the others (collectives, messages, stores), until it heals."""
    injection.check_node(node)
    injection.unless_struck(lambda: f"nothing was sent between node {node} and the others meanwhile")
    injection.cut(node, injection.window(since, until))
