"""Global ranks and group ranks: where code takes the one for the other, and torch's error is caught.

Where a line fails on all ranks that come to it, the code is taken to ask on purpose.  Not seen: a group rank that is
also the global rank of another member, and ranks that the code computes wrongly on all members alike.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.distributed import distributed_c10d as c10d
from torch.distributed.nn import functional as differentiable

from simulator.engine.site import Stack
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def install_rank_numbers(patches: Patches, sim: Simulation) -> None:
    """Watch torch turn a root or a peer into a group rank."""
    _watch_roots(patches, sim)
    _watch_broadcast_gradients(patches, sim)


def _watch_roots(patches: Patches, sim: Simulation) -> None:
    """A rank that is not in the group is noted.

    `mended`: the caller gets another one of this group right. `right_on`: ranks on which the same line works.
    """
    real = c10d._canonicalize_group_rank
    refused: dict[tuple[int, str], list[dict[str, Any]]] = {}
    knows: set[tuple[int, str]] = set()
    right_on: dict[Stack, set[int]] = {}
    sim.at_begin += [refused.clear, knows.clear, right_on.clear]

    def _canonicalize_group_rank(
        group: Any, global_rank: int | None = None, group_rank: int | None = None, return_global: bool = False
    ) -> int:
        context = sim.here()
        if context is None or not hasattr(group, "comm"):  # a rank that is no member has no group at hand
            return real(group, global_rank, group_rank, return_global)
        key = (context.rank, group.group_name)
        try:
            found = real(group, global_rank, group_rank, return_global)
        except ValueError:
            if group_rank is None and global_rank is not None and global_rank not in group.comm.view.ranks:
                facts = _note_foreign(sim, group, global_rank, sys._getframe(1).f_code.co_name)
                facts["mended"] = key in knows
                facts["right_on"] = right_on.setdefault(sim.sites.capture(1)[:1], set())
                refused.setdefault(key, []).append(facts)
            raise
        knows.add(key)
        right_on.setdefault(sim.sites.capture(1)[:1], set()).add(context.rank)
        for facts in refused.pop(key, ()):
            facts["mended"] = True
        return found

    patches.set(c10d, "_canonicalize_group_rank", _canonicalize_group_rank)


def _note_foreign(sim: Simulation, group: Any, given: int, op: str) -> dict[str, Any]:
    sim.note(
        "foreign_rank",
        f"rank {given} is not in the group",
        stack=sim.sites.capture(2),
        group=group.comm.view,
        given=given,
        op=op,
        mended=False,
    )
    return sim.records.notes[-1].facts


def _watch_broadcast_gradients(patches: Patches, sim: Simulation) -> None:
    """torch.distributed.nn.functional.broadcast compares its root, a global rank, with the caller's group rank."""
    real: Any = differentiable._Broadcast.backward

    def backward(ctx: Any, grad_output: Any) -> Any:
        if sim.here() is not None and ctx.group is not None:
            is_root = c10d.get_group_rank(ctx.group, ctx.src) == ctx.rank
            if is_root is not (ctx.src == ctx.rank):
                _note_gradient(sim, ctx, is_root)
        return real(ctx, grad_output)

    patches.set(differentiable._Broadcast, "backward", staticmethod(backward))


def _note_gradient(sim: Simulation, ctx: Any, is_root: bool) -> None:
    group = ctx.group.comm.view
    sim.note(
        "root_gradient",
        "the gradient of a broadcast goes to the wrong rank",
        stack=sim.sites.capture(2),
        group=group,
        src=ctx.src,
        group_rank=ctx.rank,
        is_root=is_root,
    )
