"""The layout against plain arithmetic on the digits of a rank, over all small layouts and many random ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl.distributed.layout import SUB_GROUPS, ParallelLayout, SubGroup

ROWS = {row.name: row for row in SUB_GROUPS}

# What the members of a list have in common: the rank without the digit that runs through the list.
# Inside a stage, t is the place of the rank; a division drops the digits below, a remainder those above.
IN_COMMON: dict[str, Callable[[ParallelLayout, int], object]] = {
    "tp": lambda x, r: r // x.tp,
    "pdmux_prefill_tp": lambda x, r: r // x.tp,
    "dcp": lambda x, r: r // x.dcp,
    "attn_cp": lambda x, r: (r // (x.attn_tp * x.attn_cp), r % x.attn_tp),
    "attn_tp": lambda x, r: r // x.attn_tp,
    "shared_experts_tp": lambda x, r: r // x.shared_experts_tp,
    "moe_dp": lambda x, r: (r // x.tp, r % (x.moe_tp * x.moe_ep)),
    "moe_ep": lambda x, r: (r // (x.moe_tp * x.moe_ep), r % x.moe_tp),
    "moe_tp": lambda x, r: r // x.moe_tp,
    "pp": lambda x, r: (r // (x.tp * x.pp), r % x.tp),
    "self_pp": lambda x, r: r,
}


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def small_layouts() -> Iterator[ParallelLayout]:
    """Each pair of an attention split and an expert split of up to 8 ranks, in some numbers of stages and replicas."""
    for tp, (pp, replicas) in itertools.product((1, 2, 3, 4, 6, 8), ((1, 1), (2, 1), (3, 2))):
        splits = [(a, b) for a in divisors(tp) for b in divisors(tp // a)]
        for (attn_dp, attn_cp), (moe_ep, moe_dp) in itertools.product(splits, splits):
            attn_tp = tp // (attn_dp * attn_cp)
            yield ParallelLayout(
                tp=tp, pp=pp, replicas=replicas, attn_dp=attn_dp, attn_cp=attn_cp, moe_ep=moe_ep, moe_dp=moe_dp,
                dcp=divisors(tp)[-1 if moe_ep > 1 else len(divisors(tp)) // 2],
                shared_experts_tp=divisors(attn_tp)[len(divisors(attn_tp)) // 2],
                pdmux=moe_dp > 1, self_pp=attn_dp == 1,
            )  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    def divisor(n: int) -> int:
        return draw(st.sampled_from(divisors(n)))

    tp = draw(st.integers(1, 48))
    attn_dp, moe_ep = divisor(tp), divisor(tp)
    attn_cp, moe_dp = divisor(tp // attn_dp), divisor(tp // moe_ep)
    return ParallelLayout(
        tp=tp, pp=draw(st.integers(1, 5)), replicas=draw(st.integers(1, 3)),
        attn_dp=attn_dp, attn_cp=attn_cp, moe_ep=moe_ep, moe_dp=moe_dp,
        dcp=divisor(tp), shared_experts_tp=divisor(tp // attn_dp // attn_cp),
        pdmux=draw(st.booleans()), self_pp=draw(st.booleans()),
    )  # fmt: skip


def check_layout(layout: ParallelLayout, rank_offset: int) -> None:
    """All properties of one layout, for each row of the table that it has."""
    resolved = layout.resolved()
    assert list(resolved) == [row.name for row in SUB_GROUPS if row.name in resolved], "creation order is table order"
    assert layout.created() == tuple(name for name in resolved if resolved[name] == name)
    for name, target in resolved.items():
        lists = layout.rank_lists(name)
        check_partition(layout, ROWS[target], lists)
        assert lists == layout.rank_lists(target)
        shifted = layout.rank_lists(name, rank_offset)
        assert shifted == tuple(tuple(rank + rank_offset for rank in ranks) for ranks in lists)


def check_partition(layout: ParallelLayout, row: SubGroup, lists: tuple[tuple[int, ...], ...]) -> None:
    everyone = sorted(rank for ranks in lists for rank in ranks)
    assert everyone == list(range(layout.world_size)), f"{row.name} holds each rank of the cohort once"
    assert all(list(ranks) == sorted(ranks) for ranks in lists), f"{row.name} lists are ascending"
    common = IN_COMMON[row.name]
    by_digits: dict[object, list[int]] = {}
    for rank in range(layout.world_size):
        by_digits.setdefault(common(layout, rank), []).append(rank)
    assert sorted(by_digits.values()) == sorted(map(list, lists)), f"{row.name} is what the digits say"
    if row.duplicate_of:
        assert lists == layout.rank_lists(row.duplicate_of)


def test_each_row_of_the_table_has_an_oracle_here() -> None:
    """A sub-group that is added to the table without a line in IN_COMMON fails this test by name."""
    assert list(IN_COMMON) == [row.name for row in SUB_GROUPS]


def test_all_small_layouts_split_the_ranks_as_their_digits_say() -> None:
    checked = 0
    for layout in small_layouts():
        check_layout(layout, rank_offset=layout.world_size)
        checked += 1
    assert checked > 400


@settings(deadline=None)
@given(layout=layouts(), rank_offset=st.integers(0, 1000))
def test_random_layouts_split_the_ranks_as_their_digits_say(layout: ParallelLayout, rank_offset: int) -> None:
    check_layout(layout, rank_offset)
    assert layout.attn_tp * layout.attn_cp * layout.attn_dp == layout.tp
    assert layout.moe_tp * layout.moe_ep * layout.moe_dp == layout.tp
    assert layout.world_size == layout.tp * layout.pp * layout.replicas


def test_attention_and_expert_groups_of_eight_ranks() -> None:
    """The example of SGLang's own documentation: context 2, expert replicas 2, experts 4, on 8 ranks."""
    layout = ParallelLayout(tp=8, attn_cp=2, moe_dp=2, moe_ep=4)
    assert layout.rank_lists("attn_cp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.rank_lists("attn_tp") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert layout.rank_lists("moe_ep") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert layout.rank_lists("moe_dp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.created() == ("tp", "attn_cp", "attn_tp", "moe_dp", "moe_ep", "moe_tp", "pp", "self_pp")


def test_no_sub_group_runs_through_replicas() -> None:
    """Two copies of the same model share a world and nothing else."""
    layout = ParallelLayout(tp=2, pp=2, replicas=2)
    assert layout.rank_lists("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.rank_lists("pp") == ((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize(
    ("layout", "name", "served_by"),
    [
        (ParallelLayout(tp=4), "attn_tp", "tp"),
        (ParallelLayout(tp=4), "moe_tp", "tp"),
        (ParallelLayout(tp=4), "moe_ep", "moe_ep"),
        (ParallelLayout(tp=4, moe_ep=4), "moe_ep", "tp"),
        (ParallelLayout(tp=4, moe_dp=4), "moe_dp", "tp"),
        (ParallelLayout(tp=4, attn_cp=4), "attn_cp", "tp"),
        (ParallelLayout(tp=4, attn_cp=4), "moe_dp", "tp"),
        (ParallelLayout(tp=4, attn_cp=2), "moe_dp", "attn_cp"),
        (ParallelLayout(tp=4, attn_cp=2, moe_dp=2), "moe_dp", "moe_dp"),
        (ParallelLayout(tp=4, attn_dp=2, shared_experts_tp=2), "shared_experts_tp", "attn_tp"),
        (ParallelLayout(tp=4, shared_experts_tp=4), "shared_experts_tp", "tp"),
        (ParallelLayout(tp=4), "dcp", None),
        (ParallelLayout(tp=4), "pdmux_prefill_tp", None),
        (ParallelLayout(tp=4, self_pp=False), "self_pp", None),
        (ParallelLayout(), "pp", "pp"),
    ],
)
def test_a_group_that_would_equal_another_is_served_by_it(
    layout: ParallelLayout, name: str, served_by: str | None
) -> None:
    assert layout.alias_of(name) == served_by


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ({"tp": 0}, "tp is 0; give a whole number of at least 1"),
        ({"pp": -1}, "pp is -1; give a whole number of at least 1"),
        ({"tp": 2.0}, "tp is 2.0; give a whole number of at least 1"),
        ({"tp": True}, "tp is True; give a whole number of at least 1"),
        (
            {"tp": 8, "attn_dp": 2, "attn_cp": 3},
            "attn_dp * attn_cp is 6 and does not divide tp=8; give one of 1, 2, 4, 8",
        ),
        ({"tp": 6, "moe_ep": 4}, "moe_ep * moe_dp is 4 and does not divide tp=6; give one of 1, 2, 3, 6"),
        ({"tp": 4, "dcp": 3}, "dcp is 3 and does not divide tp=4; give one of 1, 2, 4"),
        (
            {"tp": 4, "attn_dp": 2, "shared_experts_tp": 4},
            "shared_experts_tp is 4 and does not divide attn_tp=2; give one of 1, 2",
        ),
    ],
)
def test_widths_that_do_not_fit_are_refused_in_one_line(widths: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ParallelLayout(**widths)
    assert str(caught.value) == message


def test_a_missing_sub_group_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError) as caught:
        ParallelLayout(tp=2).rank_lists("dcp")
    assert caught.value.args == (
        "this layout has no sub-group 'dcp'; it has tp, attn_cp, attn_tp, moe_dp, moe_ep, moe_tp, pp, self_pp",
    )
