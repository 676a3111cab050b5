"""The bodies on real gloo, in real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.refimpl import bodies
from tests.unit.refimpl.rank_pool import Body, RankPool

pytestmark = pytest.mark.gloo

Ranks = Callable[[int], RankPool]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("body", [*bodies.BODIES, *bodies.PROBES], ids=lambda body: body.__name__)
def test_body_holds_on_real_gloo(body: Body, world_size: int, gloo_ranks: Ranks) -> None:
    gloo_ranks(world_size).run(body)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_cohort_with_an_offset_needs_nobody_else(world_size: int, gloo_ranks: Ranks) -> None:
    """Creation synchronises among members only, so ranks that never call it are not waited for."""
    gloo_ranks(world_size).run(bodies.cohort_makes_its_groups_alone)


def test_a_body_that_fails_fails_the_test(gloo_ranks: Ranks) -> None:
    """A pool that swallowed errors would make the tests above worthless."""
    with pytest.raises(AssertionError, match=r"same_node_is_found failed on \d of 2 ranks"):
        gloo_ranks(2).run(bodies.same_node_is_found, node_of=[0, 1])
