"""HC002: rank lists compared with a global rank before the offset is in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Found = Callable[..., list[tuple[str, int]]]
HEAD = "import torch.distributed as dist\n"


@pytest.mark.parametrize(
    "body",
    [
        "    lists = [list(range(s, s + 2)) for s in range(0, n, 2)]\n    rank = dist.get_rank()\n"
        "    mine = next(l for l in lists if rank in l)\n",
        "    ranks = list(range(n))\n    return ranks.index(dist.get_rank())\n",
        "    if dist.get_rank() not in range(n):\n        return None\n",
        "    self.rank = dist.get_rank()\n    for ranks in groups:\n        if self.rank in ranks:\n            pass\n"
        "    groups = [[r + rank_offset for r in ranks] for ranks in groups]\n",
    ],
)
def test_early_comparisons(body: str, found: Found) -> None:
    assert [code for code, _ in found(HEAD + "def f(self, n, groups, rank_offset=0):\n" + body)] == ["HC002"]


@pytest.mark.parametrize(
    "body",
    [
        "    groups = [[r + rank_offset for r in ranks] for ranks in groups]\n    self.rank = dist.get_rank()\n"
        "    for ranks in groups:\n        if self.rank in ranks:\n            pass\n",
        "    ranks = [r + rank_offset for r in range(n)]\n    return ranks.index(dist.get_rank())\n",
        "    ranks = list(range(rank_offset, rank_offset + n))\n    return dist.get_rank() in ranks\n",
        "    rank = dist.get_rank() - rank_offset\n    return rank in range(n)\n",
        "    if rank_offset == 0:\n        return dist.get_rank() in range(n)\n",
        "    return dist.get_rank(groups) in range(n)\n",
        "    return dist.get_rank() in groups\n",
        "    return n in range(8)\n",
    ],
)
def test_what_looks_early_and_is_not(body: str, found: Found) -> None:
    """Shifted before, a rank within the cohort, no offset here, or a list whose origin is out of sight."""
    assert found(HEAD + "def f(self, n, groups, rank_offset=0):\n" + body) == []


def test_without_an_offset_ranks_count_from_zero(found: Found) -> None:
    assert found(HEAD + "def f(n):\n    return dist.get_rank() in range(n)\n") == []
