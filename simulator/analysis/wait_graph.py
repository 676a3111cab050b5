"""Which wait explains the others: the end of a chain of waits, not the wait that most ranks share.

Waits are nodes; one node leads to another if a rank that it waits for is stuck there. A wait explains itself if nobody
can ever end it (a rank that it needs is gone), or if all that it leads to leads back to it (a cycle). Who waits for a
key may be waiting for any rank that is stuck elsewhere, since no wait says who would set it.

Not modelled: what a rank would do after its wait, and so which rank would have set a key.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence

from simulator.analysis.facts import keys_of, waits_for
from simulator.records import Blocked, KeyWait

Node = Hashable


def explaining(part: Sequence[Blocked]) -> list[Blocked]:
    """The waits of `part` that explain the rest, those for ranks before those for keys."""
    graph = _Graph(part)
    roots = [wait for wait in part if graph.explains_itself(wait)] or list(part)
    certain = [wait for wait in roots if not _is_open(wait)]
    return certain or roots


def is_dead(wait: Blocked, part: Sequence[Blocked]) -> bool:
    """Some rank that it waits for is gone, or stuck in nothing that its peers could end."""
    return _lacks(wait, {other.rank for other in part})


def cycle_from(head: Blocked, part: Sequence[Blocked]) -> list[Blocked]:
    """A cycle of waits to which `head` leads: each waits for the next one's rank, the last for the first's."""
    by_rank = {b.rank: b for b in reversed(part)}
    by_rank[head.rank] = head
    path, seen = [head.rank], {head.rank: 0}
    while True:
        ahead = [rank for rank in waits_for(by_rank[path[-1]]) if rank in by_rank]
        if not ahead:
            return []
        if ahead[0] in seen:
            return [by_rank[rank] for rank in path[seen[ahead[0]] :]]
        seen[ahead[0]] = len(path)
        path.append(ahead[0])


def shared_by(part: Sequence[Blocked]) -> dict[Node, int]:
    """How many tasks share a wait, by its node."""
    counts: dict[Node, int] = {}
    for wait in part:
        counts[node_of(wait)] = counts.get(node_of(wait), 0) + 1
    return counts


def node_of(wait: Blocked) -> Node:
    """The same for all who wait for the same thing."""
    return ("keys", keys_of(wait)) if keys_of(wait) else ("what", id(wait.what) if wait.what is not None else id(wait))


def store_barrier_name(wait: Blocked) -> str:
    """torch's name of the group whose barrier this is (TORCH_DIST_INIT_BARRIER=1), or nothing."""
    for key in keys_of(wait):
        _, found, rest = key.partition("store_based_barrier_key:")
        if found:
            return rest.removesuffix(":last_worker")
    return ""


def _lacks(wait: Blocked, stuck: Container[int]) -> bool:
    return any(rank not in stuck for rank in waits_for(wait))


def _is_open(wait: Blocked) -> bool:
    """It does not say for whom it waits."""
    reason = isinstance(wait.what, KeyWait) and wait.what.reason
    return not waits_for(wait) and not reason and not store_barrier_name(wait)


class _Graph:
    """The waits of one part, and which lead to which."""

    def __init__(self, part: Sequence[Blocked]) -> None:
        self._nodes: dict[int, list[Node]] = {}
        self._ahead: dict[Node, list[Node]] = {}
        self._reached: dict[Node, frozenset[Node]] = {}
        ranks: dict[Node, list[int]] = {}
        for wait in part:
            self._nodes.setdefault(wait.rank, []).append(node_of(wait))
            ranks.setdefault(node_of(wait), []).append(wait.rank)
        for wait in part:
            if node_of(wait) not in self._ahead:
                self._ahead[node_of(wait)] = self._next(wait, ranks[node_of(wait)])

    def _next(self, wait: Blocked, mine: Sequence[int]) -> list[Node]:
        wanted = waits_for(wait) or (tuple(self._nodes) if _is_open(wait) else ())
        own = set(mine)
        return list(dict.fromkeys(node for rank in wanted if rank not in own for node in self._nodes.get(rank, ())))

    def explains_itself(self, wait: Blocked) -> bool:
        """See the module."""
        node = node_of(wait)
        return _lacks(wait, self._nodes) or all(node in self._reach(other) for other in self._reach(node))

    def _reach(self, node: Node) -> frozenset[Node]:
        if node not in self._reached:
            found: dict[Node, None] = {}
            todo = list(self._ahead[node])
            while todo:
                other = todo.pop()
                if other not in found:
                    found[other] = None
                    todo += self._ahead[other]
            self._reached[node] = frozenset(found)
        return self._reached[node]
