"""The bodies of all chapters on real gloo: simulated ranks return exactly what real ones return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.parity_bodies import CHAPTERS, Body, of_chapter, real_results, simulation
from tests.unit.refimpl.rank_pool import RankPool

pytestmark = [pytest.mark.gloo, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four processes; bodies for fewer ranks use the first ones."""
    ranks = RankPool(4, tmp_path_factory.mktemp("gloo"))
    yield ranks
    ranks.close()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_simulated_ranks_return_what_real_ranks_return(chapter: str, pool: RankPool, tmp_path: Any) -> None:
    """All bodies of a chapter in one test, because starting processes costs more than running them."""
    differing = {}
    for entry in of_chapter(chapter):
        for size in entry.sizes:
            real = real_results(entry, size, pool, str(tmp_path))
            if not _agree(entry, real, simulation(entry, size).results):
                differing[f"{entry.name} on {size} ranks"] = entry.differs
    assert differing == {name: reason for name, reason in differing.items() if reason}, f"{chapter}: see the keys"


def _agree(entry: Body, real: dict[int, Any], simulated: dict[int, Any]) -> bool:
    return repr(real) == repr(simulated)
