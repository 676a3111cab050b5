"""The parallel layout as pure rank arithmetic: which global ranks form which sub-group.

    >>> layout = ParallelLayout(tp=4, pp=2, moe_ep=2)
    >>> layout.rank_lists("tp")
    ((0, 1, 2, 3), (4, 5, 6, 7))
    >>> layout.rank_lists("moe_ep", rank_offset=8)
    ((8, 10), (9, 11), (12, 14), (13, 15))

A rank number is a mixed-radix number, and a sub-group is what one digit of it runs through.  From the fastest digit:

    tp, inside one pipeline stage     seen by attention as   attn_tp, attn_cp, attn_dp
                                      seen by experts as     moe_tp, moe_ep, moe_dp
                                      seen by decoding as    dcp, tp / dcp
    pp, the pipeline stages
    replicas of the whole model       slowest; no sub-group runs through them

`SUB_GROUPS` is the only list of sub-groups.  Initialisation, creation plans, tests and mutants are driven by it, so a
row added there is created, reachable through `get_group` and tested with no other change.

Source for order, names and aliases: `initialize_model_parallel` of SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NewType

Rank = NewType("Rank", int)
"""A global rank: the number of a process in the default process group."""

RankLists = tuple[tuple[Rank, ...], ...]
"""One inner tuple per process group, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Widths of one launch cohort.  All widths count ranks; `attn_tp` and `moe_tp` are what is left of `tp`.

    Raises: ValueError, in one line, when the widths do not fit each other.
    """

    tp: int = 1
    """Tensor parallel ranks of one pipeline stage."""
    pp: int = 1
    """Pipeline stages."""
    replicas: int = 1
    """Copies of the whole model side by side in one world, each with tp * pp ranks of its own."""
    attn_dp: int = 1
    """Attention replicas inside `tp`, each with requests of its own."""
    attn_cp: int = 1
    """Ranks of one attention replica that share a sequence (context parallel)."""
    moe_ep: int = 1
    """Ranks that share the experts of a layer out between them."""
    moe_dp: int = 1
    """Replicas of the experts inside `tp`."""
    dcp: int = 1
    """Neighbouring ranks of `tp` that share the KV cache out while decoding; 1 is off and creates no group."""
    shared_experts_tp: int = 1
    """Tensor parallel width of shared experts, a divisor of `attn_tp`; 1 is off and creates no group."""
    pdmux: bool = False
    """Duplicate the tp group, so that prefill and decode lanes of one rank do not share a communicator."""
    self_pp: bool = True
    """Give each rank a pipeline group of its own, for draft models that do not span the stages."""

    def __post_init__(self) -> None:
        for width in fields(self):
            value = getattr(self, width.name)
            if type(width.default) is int and (type(value) is not int or value < 1):
                raise ValueError(f"{width.name} is {value!r}; give a whole number of at least 1")
        self._check_divides("tp", self.tp, "attn_dp * attn_cp", self.attn_dp * self.attn_cp)
        self._check_divides("tp", self.tp, "moe_ep * moe_dp", self.moe_ep * self.moe_dp)
        self._check_divides("tp", self.tp, "dcp", self.dcp)
        self._check_divides("attn_tp", self.attn_tp, "shared_experts_tp", self.shared_experts_tp)

    @staticmethod
    def _check_divides(whole_name: str, whole: int, part_name: str, part: int) -> None:
        if whole % part:
            divisors = ", ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            raise ValueError(f"{part_name} is {part} and does not divide {whole_name}={whole}; give one of {divisors}")

    @property
    def attn_tp(self) -> int:
        """Tensor parallel width of one attention replica."""
        return self.tp // (self.attn_dp * self.attn_cp)

    @property
    def moe_tp(self) -> int:
        """Tensor parallel width of one expert."""
        return self.tp // (self.moe_ep * self.moe_dp)

    @property
    def world_size(self) -> int:
        """Ranks of this launch cohort, not of the deployment that it may join."""
        return self.tp * self.pp * self.replicas

    def rank_lists(self, name: str, rank_offset: int = 0) -> RankLists:
        """Rank lists of sub-group `name`, all shifted by `rank_offset`, the first global rank of this cohort.

        An alias answers with the lists of the sub-group that it stands for.
        Raises: KeyError when this layout has no sub-group of that name.
        """
        return _rank_lists(self, name, rank_offset)

    def alias_of(self, name: str) -> str | None:
        """The created sub-group that `name` stands for in this layout; itself if created; None if there is none."""
        return self.resolved().get(name)

    def resolved(self) -> dict[str, str]:
        """From the name of each present sub-group to the created one that serves it."""
        return dict(_resolved(self))

    def created(self) -> tuple[str, ...]:
        """Names of the sub-groups that get process groups of their own, in creation order."""
        return tuple(name for name, target in self.resolved().items() if name == target)


def _blocks(layout: ParallelLayout, width: int) -> RankLists:
    """Runs of `width` neighbouring ranks; widths divide tp, so no run crosses a pipeline stage."""
    starts = range(0, layout.world_size, width)
    return tuple(tuple(map(Rank, range(start, start + width))) for start in starts)


def _strided(layout: ParallelLayout, width: int, stride: int) -> RankLists:
    """`width` ranks that are `stride` apart; width * stride divides tp, or is one replica of the model."""
    block = width * stride
    return tuple(
        tuple(map(Rank, range(first, start + block, stride)))
        for start in range(0, layout.world_size, block)
        for first in range(start, start + stride)
    )


def _never_alias(_layout: ParallelLayout) -> str | None:
    return None


def _always(_layout: ParallelLayout) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """One kind of sub-group: a row of `SUB_GROUPS`."""

    name: str
    """Name in plans, group descriptions and the accessor `get_<name>_group`."""
    doc: str
    """What its ranks have in common, in one line."""
    lists: Callable[[ParallelLayout], RankLists]
    """Rank lists at offset 0; together they hold each rank of the cohort once."""
    present: Callable[[ParallelLayout], bool] = _always
    """False where the layout has no such sub-group."""
    alias: Callable[[ParallelLayout], str | None] = _never_alias
    """Name of an earlier row whose groups serve this one too, or None to create groups."""
    duplicate_of: str | None = None
    """Row with the same rank lists that this one repeats on purpose, in communicators of its own."""


SUB_GROUPS: tuple[SubGroup, ...] = (
    SubGroup(name="tp", doc="ranks of one pipeline stage", lists=lambda x: _blocks(x, x.tp)),
    SubGroup(
        name="pdmux_prefill_tp",
        doc="the tp group once more, for the prefill lane",
        lists=lambda x: _blocks(x, x.tp),
        present=lambda x: x.pdmux,
        duplicate_of="tp",
    ),
    SubGroup(
        name="dcp",
        doc="neighbours that share one KV cache out while decoding",
        lists=lambda x: _blocks(x, x.dcp),
        present=lambda x: x.dcp > 1,
    ),
    SubGroup(
        name="attn_cp",
        doc="ranks of one attention replica that hold the same heads of other tokens",
        lists=lambda x: _strided(x, x.attn_cp, x.attn_tp),
        alias=lambda x: "tp" if x.attn_cp == x.tp else None,
    ),
    SubGroup(
        name="attn_tp",
        doc="ranks that hold the heads of the same tokens",
        lists=lambda x: _blocks(x, x.attn_tp),
        alias=lambda x: "tp" if x.attn_tp == x.tp else None,
    ),
    SubGroup(
        name="shared_experts_tp",
        doc="ranks that hold one copy of the shared experts",
        lists=lambda x: _blocks(x, x.shared_experts_tp),
        present=lambda x: x.shared_experts_tp > 1,
        alias=lambda x: "attn_tp" if x.shared_experts_tp == x.attn_tp else None,
    ),
    SubGroup(
        # With fewer expert replicas than context ranks, the context partners have to share their tokens before the
        # experts run, so the group that gathers over replicas is the context group.
        name="moe_dp",
        doc="ranks that hold the same part of the same experts for other tokens",
        lists=lambda x: _strided(x, x.moe_dp, x.moe_tp * x.moe_ep),
        alias=lambda x: "attn_cp" if x.attn_cp > x.moe_dp else "tp" if x.moe_dp == x.tp else None,
    ),
    SubGroup(
        name="moe_ep",
        doc="ranks that hold the same part of other experts",
        lists=lambda x: _strided(x, x.moe_ep, x.moe_tp),
        alias=lambda x: "tp" if x.moe_ep == x.tp else None,
    ),
    SubGroup(
        name="moe_tp",
        doc="ranks that hold the parts of the same experts",
        lists=lambda x: _blocks(x, x.moe_tp),
        alias=lambda x: "tp" if x.moe_tp == x.tp else None,
    ),
    SubGroup(name="pp", doc="ranks at the same place of each pipeline stage", lists=lambda x: _strided(x, x.pp, x.tp)),
    SubGroup(
        name="self_pp",
        doc="each rank alone: the pipeline of a model that has one stage",
        lists=lambda x: _blocks(x, 1),
        present=lambda x: x.self_pp,
    ),
)


@lru_cache(maxsize=256)
def _resolved(layout: ParallelLayout) -> dict[str, str]:
    """From the name of each present sub-group to the created one that serves it.  Shared: read only."""
    resolved: dict[str, str] = {}
    for row in SUB_GROUPS:
        if row.present(layout):
            target = row.alias(layout)
            resolved[row.name] = row.name if target is None else resolved[target]
    return resolved


@lru_cache(maxsize=4096)
def _rank_lists(layout: ParallelLayout, name: str, rank_offset: int) -> RankLists:
    target = _resolved(layout).get(name)
    if target is None:
        present = ", ".join(_resolved(layout))
        raise KeyError(f"this layout has no sub-group {name!r}; it has {present}")
    row = next(row for row in SUB_GROUPS if row.name == target)
    return tuple(tuple(Rank(rank + rank_offset) for rank in ranks) for ranks in row.lists(layout))
