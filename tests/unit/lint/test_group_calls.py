"""HC003: groups under a rank-dependent condition. HC004: groups in the order of a set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Found = Callable[..., list[tuple[str, int]]]
HEAD = "import os\nimport torch\nimport torch.distributed as dist\nfrom torch.distributed import new_group as ng\n"


@pytest.mark.parametrize(
    "body",
    [
        "    if rank == 0:\n        dist.new_group([0])",
        "    if dist.get_rank() in ranks:\n        torch.distributed.new_group(ranks)",
        "    if self.rank in ranks:\n        ng(ranks)",
        "    mine = rank in ranks\n    if mine:\n        dist.new_group(ranks)",
        "    me = dist.get_rank()\n    if me < 2:\n        dist.new_group([0, 1])",
        "    if rank not in ranks:\n        return\n    dist.new_group(ranks)",
        "    for ranks in lists:\n        if rank not in ranks:\n            continue\n        dist.new_group(ranks)",
        "    return [dist.new_group(r) for r in lists if rank in r]",
        "    return dist.new_group([0]) if rank == 0 else None",
        "    return rank == 0 and dist.new_group([0])",
        "    if int(os.environ['RANK']) == 0:\n        dist.new_group([0])",
        "    if rank == 0:\n        dist.new_group([0], use_local_synchronization=False)",
        "    def make(r):\n        return dist.new_group(r)\n    if rank in ranks:\n        make(ranks)",
        "    if world > 1:\n        pass\n    else:\n        while rank < 1:\n            dist.new_group([0])",
        "    if rank == 0:\n        dist.init_device_mesh('cpu', (2,))",
    ],
)
def test_groups_that_some_ranks_skip(body: str, found: Found) -> None:
    code = HEAD + "def f(self, rank, ranks, lists, world):\n" + body
    assert [code for code, _ in found(code)] == ["HC003"]


@pytest.mark.parametrize(
    "test",
    ["is_joiner", "self.recovered_rank", "rank_offset > 0", "rank_offset != 0", "not rank_offset == 0", "rank_offset"],
)
@pytest.mark.parametrize(
    "body", ["    if {}:\n        dist.new_group(x)", "    if not ({}):\n        return\n    ng(x)"]
)
def test_groups_that_only_joiners_make(test: str, body: str, violations: Callable[..., list]) -> None:
    """Those who were launched never come there, so the joiners' call is not made by all ranks."""
    (one,) = violations(HEAD + "def f(self, x, is_joiner, rank_offset):\n" + body.format(test))
    assert one.code == "HC003"
    assert "ranks that come later" in one.message
    assert "use_local_synchronization=True" in one.remedy


@pytest.mark.parametrize(
    ("case", "shown"), [("case 0:", "rank == 0"), ("case _ if rank < 2:", "rank < 2"), ("case 0 | 1:", "`rank`")]
)
def test_cases_of_a_rank(case: str, shown: str, violations: Callable[..., list]) -> None:
    code = HEAD + f"def f(rank):\n    match rank:\n        {case}\n            dist.new_group([0])\n"
    (one,) = violations(code)
    assert one.code == "HC003"
    assert shown in one.message


def test_the_case_that_takes_the_rest(found: Found) -> None:
    code = "def f(rank):\n    match rank:\n        case 0:\n            pass\n        case _:\n            ng([1])\n"
    assert [code for code, _ in found(HEAD + code)] == ["HC003"]


def test_each_group_of_joiners_is_told(found: Found) -> None:
    """Another call that only joiners make is no counterpart."""
    code = (
        HEAD
        + "def f(x, is_joiner, rank_offset):\n    if is_joiner:\n        ng(x)\n    if rank_offset:\n        ng(x)\n"
    )
    assert [code for code, _ in found(code)] == ["HC003", "HC003"]


def test_branches_with_other_groups_are_two_flaws(found: Found) -> None:
    """Each half calls in the same slot with its own list."""
    code = (
        HEAD
        + "def f(rank):\n    if rank < 2:\n        dist.new_group([0, 1])\n    else:\n        dist.new_group([2, 3])\n"
    )
    assert found(code) == [("HC003", 7), ("HC003", 9)]


@pytest.mark.parametrize(
    "body",
    [
        "    for ranks in lists:\n        g = dist.new_group(ranks)\n        if rank in ranks:\n            m = g",
        "    if rank in ranks:\n        dist.new_group(ranks, use_local_synchronization=True)",
        "    if rank in ranks:\n        dist.new_group(ranks, use_local_synchronization=local)",
        "    if rank in ranks:\n        self.g = dist.new_group(ranks)\n    else:\n        dist.new_group(ranks)",
        "    if world > 1:\n        dist.new_group(ranks)",
        "    if rank >= world:\n        raise ValueError\n    dist.new_group(ranks)",
        "    assert rank in ranks\n    dist.new_group(ranks)",
        "    if rank is None:\n        return\n    dist.new_group(ranks)",
        "    if rank == -1:\n        return\n    dist.new_group(ranks)",
        "    for rank in range(world):\n        if rank == 0:\n            dist.new_group([0])",
        "    if rank == 0:\n        self.new_group(ranks)",
        "    if rank == 0:\n        print('hello')\n    dist.new_group(ranks)",
        "    match rank:\n        case 0:\n            ng([0])\n        case _:\n            ng([0])",
        "    match world:\n        case 1:\n            dist.new_group([0])",
        "    if recovered_rank:\n        return dist.new_group(ranks, pg_options=1)\n    return dist.new_group(ranks)",
        "    if rank_offset > 0:\n        dist.new_group(ranks, use_local_synchronization=True)",
        "    dist.new_group(ranks, use_local_synchronization=rank_offset > 0)",
        "    if not recovered_rank:\n        dist.new_group(ranks)",
        "    if rank_offset == 0:\n        dist.new_group(ranks)",
    ],
)
def test_what_looks_conditional_and_is_not(body: str, found: Found) -> None:
    """All ranks call, only members meet, or the condition is the same on all ranks."""
    assert found(HEAD + "def f(self, rank, ranks, lists, world, local, recovered_rank, rank_offset):\n" + body) == []


def test_the_message_names_condition_and_remedy(violations: Callable[..., list]) -> None:
    (one,) = violations(HEAD + "def f(rank):\n    if rank > 0:\n        return\n    dist.new_group([0])\n")
    assert one.message == (
        "new_group() is not reached by ranks for which `rank > 0` (rank differs between ranks), and all ranks have to "
        "call it, members or not"
    )
    assert "use_local_synchronization=True" in one.remedy


@pytest.mark.parametrize(
    "body",
    [
        "    for r in {(0, 1), (2, 3)}:\n        dist.new_group(r)",
        "    for r in set(lists):\n        dist.new_group(list(r))",
        "    todo = set(lists)\n    for r in todo:\n        dist.new_group(r)",
        "    for r in list(frozenset(lists)):\n        dist.new_group(r)",
        "    return [dist.new_group(r) for r in {tuple(x) for x in lists}]",
        "    for r in set(lists) - {()}:\n        dist.new_group(r)",
        "    for i, r in enumerate(typed):\n        dist.new_group(r)",
        "    for a in lists:\n        for r in typed:\n            dist.new_group(r)",
    ],
)
def test_groups_in_the_order_of_a_set(body: str, found: Found) -> None:
    code = HEAD + "def f(lists, typed: set[tuple[int, ...]]):\n" + body
    assert [code for code, _ in found(code)] == ["HC004"]


@pytest.mark.parametrize(
    "body",
    [
        "    for r in sorted(set(lists)):\n        dist.new_group(r)",
        "    todo = set(lists)\n    todo = sorted(todo)\n    for r in todo:\n        dist.new_group(r)",
        "    dist.new_group(list({0, 1}))",
        "    for r in lists:\n        dist.new_group(set(r))",
        "    for r in dict.fromkeys(lists):\n        dist.new_group(r)",
        "    for r in set(lists):\n        print(r)\n    dist.new_group([0])",
    ],
)
def test_what_looks_unordered_and_is_not(body: str, found: Found) -> None:
    """torch sorts the ranks of a group itself."""
    assert found(HEAD + "def f(lists):\n" + body) == []
