"""HC005: a rank within a group where torch wants a global one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Found = Callable[..., list[tuple[str, int]]]
HEAD = "import torch.distributed as dist\nfrom torch.distributed import broadcast\n"
DEF = "def f(self, x, group, group_rank, world_group):\n"


@pytest.mark.parametrize(
    "body",
    [
        "dist.broadcast(x, src=group_rank, group=group)",
        "dist.broadcast(x, group_rank, group)",
        "broadcast(x, src=self.rank_in_group, group=self.device_group)",
        "dist.reduce(x, dst=dist.get_rank(group), group=group)",
        "dist.send(x, (self.rank_in_group + 1) % 4, group=group)",
        "me = dist.get_rank(group=group)\n    dist.gather(x, dst=me, group=group)",
        "dist.broadcast(x, src=group.rank(), group=group)",
        "me = group.rank()\n    dist.reduce(x, dst=me, group=group)",
        "dist.P2POp(dist.isend, x, group_rank, group)",
        "dist.recv(x, dist.get_group_rank(group, 3), group)",
        "dist.scatter_object_list(x, x, src=group_rank if x else 0, group=group)",
    ],
)
def test_group_ranks_as_roots(body: str, found: Found) -> None:
    assert [code for code, _ in found(HEAD + DEF + "    " + body + "\n")] == ["HC005"]


@pytest.mark.parametrize(
    "body",
    [
        "dist.broadcast(x, src=self.ranks[group_rank], group=group)",
        "dist.broadcast(x, src=dist.get_global_rank(group, group_rank), group=group)",
        "dist.broadcast(x, group_src=group_rank, group=group)",
        "dist.broadcast(x, src=group_rank)",
        "dist.broadcast(x, src=group_rank, group=None)",
        "dist.broadcast(x, src=group_rank, group=dist.group.WORLD)",
        "dist.broadcast(x, src=group_rank, group=world_group.device_group)",
        "dist.broadcast(x, src=dist.get_rank(), group=group)",
        "group_rank = dist.get_global_rank(group, 0)\n    dist.broadcast(x, src=group_rank, group=group)",
        "self.broadcast(x, src=group_rank, group=group)",
        "group.broadcast(x, src=self.rank_in_group)",
        "dist.broadcast(x, src=0, group=group)",
        "dist.broadcast(x, src=self.rank(), group=group)",
        "dist.broadcast(x, src=world_group.rank(), group=world_group)",
    ],
)
def test_what_looks_like_a_group_rank_and_is_none(body: str, found: Found) -> None:
    """Translated, on the default group, or a method that counts within its group."""
    assert found(HEAD + DEF + "    " + body + "\n") == []


def test_the_remedy_can_be_pasted(violations: Callable[..., list]) -> None:
    (one,) = violations(HEAD + DEF + "    dist.broadcast(x, src=group_rank, group=group)\n")
    assert one.remedy == "write group_src=group_rank, or src=dist.get_global_rank(group, group_rank)"
