"""What ranks return is compared leaf by leaf, and a failing schedule is shrunk."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulator.exploration.schedule import Delay
from simulator.exploration.shrinking import Shrinker
from simulator.exploration.trial import Trial
from simulator.exploration.values import LEAVES_MAX, LISTED_MAX, differing, leaves

Pair = namedtuple("Pair", "left right")


@dataclass
class Row:
    size: int
    data: Any


def test_leaves_have_paths() -> None:
    assert leaves({0: {"loss": 0.5, "seen": [1, "two"]}, 1: None}) == {
        ":type": "dict", "0:type": "dict", "0.loss": 0.5, "0.seen:type": "list", "0.seen.0": 1, "0.seen.1": "two",
        "1": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({1, 2, 3}, {3, 2, 1}, []),
        ([1, 2], [2, 1], ["0", "1"]),
        ((1,), [1], [":type"]),
        (1, 1.0, [""]),
        (True, 1, [""]),
        (0.1 + 0.2, 0.3, []),
        (float("nan"), float("nan"), []),
        ("a", "b", [""]),
        (Row(1, [2]), Row(1, [3]), ["data.0"]),
        (Pair(1, 2), Pair(1, 3), ["1"]),
        (object(), object(), []),
        (object(), Row(1, 2), [":type", "size", "data"]),
        (torch.ones(2), torch.tensor([1.0, 1.0 + 1e-7]), []),
        (torch.ones(2), torch.tensor([1.0, 2.0]), ["[1]"]),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), [":type"]),
        (torch.ones(2, 1), torch.ones(1, 2), [":type"]),
        (np.arange(3), np.array([0, 1, 5]), ["[2]"]),
        (torch.zeros(LISTED_MAX + 1), torch.zeros(LISTED_MAX + 1), []),
        (torch.ones(LISTED_MAX + 1), torch.zeros(LISTED_MAX + 1), [":sum", ":sum of squares", ":weighted sum"]),
        (torch.arange(LISTED_MAX + 1), torch.arange(LISTED_MAX + 1) + 1, [":digest"]),
    ],
)  # fmt: skip
def test_results_are_compared_by_value(one: Any, other: Any, paths: list[str]) -> None:
    assert differing(leaves(one), leaves(other)) == paths


def test_a_result_without_end_has_a_bounded_number_of_leaves() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert len(leaves(endless)) < 20
    assert len(leaves(list(range(2 * LEAVES_MAX)))) == LEAVES_MAX


# -- shrinking ------------------------------------------------------------------------------------------------------

Delays = tuple[Delay, ...]
DELAYS = tuple(Delay(f"r{number}", 1, "set") for number in range(12))


def trial(delays: Delays) -> Trial:
    return Trial(0, "ok", "", delays, {})


def shrunk(needed: Callable[[frozenset[Delay]], bool], start: Delays, suggested: Delays = ()) -> Delays:
    shrinker = Shrinker(trial, lambda one: needed(frozenset(one.delays)))
    return shrinker.shrunk(trial(start), suggested).delays


@given(st.sets(st.sampled_from(DELAYS), min_size=1, max_size=3))
def test_what_is_not_needed_is_left_out(needed: set[Delay]) -> None:
    """If a set of delays is needed together, just that set is left."""
    assert set(shrunk(lambda delays: needed <= delays, DELAYS)) == needed


@given(st.sets(st.sampled_from(list(combinations(DELAYS, 2))), min_size=1, max_size=4))
def test_one_of_several_reasons_is_enough(reasons: set[tuple[Delay, Delay]]) -> None:
    """Nothing can be left out of what is left."""
    left = shrunk(lambda delays: any(set(pair) <= delays for pair in reasons), DELAYS)
    assert tuple(left) in reasons or tuple(reversed(left)) in reasons


def test_a_single_delay_that_the_run_in_order_suggests_is_tried() -> None:
    """It need not be part of the failing schedule."""
    other = Delay("r0", 9, "check")
    assert shrunk(lambda delays: other in delays or len(delays) > 4, DELAYS, (other,)) == (other,)


def test_a_schedule_without_delays_is_as_short_as_can_be() -> None:
    assert shrunk(lambda delays: True, ()) == ()
