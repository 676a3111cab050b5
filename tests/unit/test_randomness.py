"""Random numbers: each rank has generators of its own, and a run can be repeated to the last digit."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import random as random_by_name
from typing import Any

import numpy as np
import pytest
import torch

from simulator import simulate


def _draws(rank: int) -> dict[str, Any]:
    """One number from each kind of generator that a program may use without a seed."""
    return {
        "random": random.random(),
        "by name": random_by_name(),
        "choice": random.choice(range(1 << 40)),
        "shuffle": random.sample(range(1000), 5),
        "bytes": random.randbytes(8),
        "numpy": float(np.random.rand()),
        "numpy normal": float(np.random.standard_normal()),
        "numpy ranf": float(np.random.ranf()),
        "numpy generator": float(np.random.default_rng().random()),
        "system": random.SystemRandom().random(),
        "torch": torch.rand(1).item(),
        "torch seed": torch.initial_seed(),
        "torch permutation": torch.randperm(100).tolist(),
    }


def test_a_run_can_be_repeated() -> None:
    """The same seed, the same numbers; another seed, other numbers."""
    first, again, other = (simulate(_draws, 3, seed=seed).raise_if_bad().results for seed in (1, 1, 2))
    assert first == again
    for kind, drawn in first[0].items():
        assert drawn != other[0][kind], kind


def test_no_two_ranks_draw_the_same() -> None:
    """As real processes that were not seeded: whoever forgets to seed must not be lucky here."""
    ranks = simulate(_draws, 3).raise_if_bad().results
    for kind in ranks[0]:
        assert len({str(ranks[rank][kind]) for rank in ranks}) == 3, kind


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (lambda: random.seed(5), lambda: random.random()),
        (lambda: np.random.seed(5), lambda: float(np.random.rand())),
        (lambda: torch.manual_seed(5), lambda: torch.rand(1).item()),
    ],
    ids=["random", "numpy", "torch"],
)
def test_a_seed_is_for_one_rank(seed: Callable[[], Any], draw: Callable[[], float]) -> None:
    """The same numbers as outside a simulation; other ranks, and the process, keep their sequences."""

    def body(rank: int) -> list[float]:
        import time

        if rank != 2:
            seed()
        drawn = []
        for _ in range(3):
            time.sleep(1)
            drawn.append(draw())
        return drawn

    seed()
    expected = [draw() for _ in range(3)]
    seed()
    results = simulate(body, 3).raise_if_bad().results
    assert results[0] == results[1] == expected != results[2]
    assert [draw() for _ in range(3)] == expected


def test_states_can_be_taken_and_set() -> None:
    """Checkpoints store them."""

    def body(rank: int) -> bool:
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        first = random.random(), np.random.rand(), torch.rand(1).item()
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        return first == (random.random(), np.random.rand(), torch.rand(1).item())

    assert simulate(body, 2).raise_if_bad().results == {0: True, 1: True}


def test_seeding_without_a_seed_can_be_repeated_too() -> None:
    """`random.seed()` would ask the system."""

    def body(rank: int) -> tuple[float, float]:
        random.seed()
        np.random.seed()
        return random.random(), float(np.random.rand())

    first, again = (simulate(body, 2).raise_if_bad().results for _ in range(2))
    assert first == again
    assert first[0] != first[1]


def test_generators_with_a_seed_are_as_outside() -> None:
    """They are objects of the program's own."""

    def body(rank: int) -> tuple[float, float, float, int]:
        return (
            random.Random(3).random(),
            np.random.default_rng(3).random(),
            torch.rand(1, generator=torch.Generator().manual_seed(3)).item(),
            torch.Generator().initial_seed(),
        )

    assert simulate(body, 1).raise_if_bad().results[0] == body(0)


def test_the_process_keeps_its_states() -> None:
    """Not one number is drawn from the generators of the process."""
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state(), torch.initial_seed()
    simulate(_draws, 3)
    assert random.getstate() == before[0]
    assert str(np.random.get_state()) == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.initial_seed() == before[3]
