"""The bodies that run on real gloo (tests/unit/refimpl) run unchanged on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulator import Cluster
from tests.unit.refimpl import bodies

Body = Callable[..., None]
STORE = "tcp://node0:29511"


def run(body: Body, ranks: int, nodes: int = 1, **options: Any) -> None:
    """Run a body on simulated ranks; its asserts count."""
    cluster = Cluster(nodes=nodes).launch(lambda rank: body(rank, ranks, STORE, **options), ranks=ranks)
    cluster.run().raise_if_bad()


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mooncake", "mooncake-cpu"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("body", bodies.BODIES, ids=lambda body: body.__name__)
def test_body_holds_under_simulation(body: Body, ranks: int, backend: str) -> None:
    """The same code, the same asserts, on each simulated backend."""
    run(body, ranks, backend=backend)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_cohort_with_an_offset_needs_nobody_else_under_simulation(ranks: int) -> None:
    """Local synchronisation, as on real gloo."""
    run(bodies.cohort_makes_its_groups_alone, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_on_two_nodes_see_that_they_are_apart(ranks: int) -> None:
    """Shared memory is visible on its own node only."""
    node_of = [rank // (ranks // 2) for rank in range(ranks)]
    run(bodies.same_node_is_found, ranks, nodes=2, node_of=node_of)
