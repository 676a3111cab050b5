"""Topology probes: which ones are reported, and which ones somebody needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.distributed as dist

from simulator import Verdict, simulate


def in_the_same_node_as(rank: int) -> None:
    """A probe, known by its name."""
    dist.barrier()


def create_from_process_group(rank: int) -> None:
    """Goes on to share memory with whom the probe finds."""
    in_the_same_node_as(rank)


def choose_a_kernel(rank: int) -> None:
    """Could have asked the number of nodes."""
    in_the_same_node_as(rank)


@pytest.mark.parametrize(
    ("caller", "nodes", "verdict"),
    [
        (choose_a_kernel, 1, Verdict.UNNEEDED_PROBE),
        (create_from_process_group, 1, Verdict.OK),
        (choose_a_kernel, 2, Verdict.OK),
    ],
)
def test_a_probe_on_one_node_is_unneeded_unless_memory_is_shared(
    caller: Callable[[int], None], nodes: int, verdict: Verdict
) -> None:
    """Queues over shared memory have to know who is on their node."""

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        caller(rank)

    assert simulate(body, 2, nodes=nodes).verdict is verdict
