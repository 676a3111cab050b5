"""Ranks that start together, and where they run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RankFunction = Callable[..., Any]
MASTER_PORT = 29500


@dataclass(frozen=True, slots=True)
class Cohort:
    """Ranks that start together.

    Attributes:
        kind: `launch`, `scale` (new ranks behind the launched ones) or `recover` (in place of lost ones).
        world_size: as the environment of these ranks says.
    """

    name: str
    kind: str
    fn: RankFunction
    args: tuple[Any, ...]
    ranks: tuple[int, ...]
    world_size: int
    at_s: float
    env: dict[str, str]

    @property
    def encoded_env(self) -> dict[bytes, bytes]:
        """`env` as os.environ keeps it."""
        return {os.fsencode(key): os.fsencode(value) for key, value in self.env.items()}


def together(cohort: Cohort) -> range:
    """Launches and scale-ups have consecutive ranks; who recovers belongs to those it recovers with."""
    return range(cohort.world_size) if cohort.kind == "recover" else range(min(cohort.ranks), max(cohort.ranks) + 1)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which ranks of a cohort share a node: node number to its ranks, in order."""

    per_node: int
    nodes: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, cohort: Cohort, per_node: int) -> Placement:
        """Ranks fill the nodes one after another."""
        nodes: dict[int, list[int]] = {}
        for rank in cohort.ranks:
            nodes.setdefault(rank // per_node, []).append(rank)
        return cls(per_node, {node: tuple(ranks) for node, ranks in nodes.items()})

    def environment(self, cohort: Cohort, rank: int) -> dict[bytes, bytes]:
        """What torchrun sets for a rank, then the cohort's own values."""
        node = rank // self.per_node
        neighbours = self.nodes[node]
        given = {
            b"RANK": rank,
            b"LOCAL_RANK": neighbours.index(rank),
            b"WORLD_SIZE": cohort.world_size,
            b"LOCAL_WORLD_SIZE": len(neighbours),
            b"GROUP_RANK": list(self.nodes).index(node),
            b"GROUP_WORLD_SIZE": len(self.nodes),
            b"ROLE_RANK": rank,
            b"ROLE_WORLD_SIZE": cohort.world_size,
            b"MASTER_PORT": MASTER_PORT,
        }
        numbers = {key: b"%d" % value for key, value in given.items()}
        return {**numbers, b"ROLE_NAME": b"default", b"MASTER_ADDR": b"node0", **cohort.encoded_env}
