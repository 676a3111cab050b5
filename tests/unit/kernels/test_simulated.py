"""The gatherer's kernel itself, on simulated ranks: the bodies that run on GPUs, with checked data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from refimpl.distributed import MultimemAllGatherer, ParallelLayout, get_tp_group
from refimpl.kernels.reference import all_gather_last_dim
from simulator import Outcome, Verdict, simulate
from tests.unit.refimpl import gather_bodies
from tests.unit.refimpl.bodies import running
from tests.unit.refimpl.gather_bodies import GATHER_BODIES
from tests.unit.refimpl.rank_pool import Body


def run(body: Body, ranks: int, *, backend: str = "nccl", **options: Any) -> Outcome:
    """`body` on simulated ranks of one node."""

    def rank_main(rank: int) -> None:
        body(rank, ranks, "env://", backend=backend)

    return simulate(rank_main, ranks, **options)


@pytest.mark.parametrize("multicast", [True, False], ids=["multicast", "peer stores"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("body", GATHER_BODIES, ids=lambda body: body.__name__)
def test_body_holds_under_simulation(body: Body, ranks: int, multicast: bool) -> None:
    """By both transports: right data, no finding, so no race either."""
    outcome = run(body, ranks, multicast=multicast)
    assert outcome.verdict is Verdict.OK and not outcome.findings, outcome.report()


@pytest.mark.parametrize("multicast", [True, False], ids=["multicast", "peer stores"])
@pytest.mark.parametrize("ranks", [3, 8])
def test_calls_follow_each_other_on_more_ranks(ranks: int, multicast: bool) -> None:
    """The number of ranks need not be a power of two."""
    outcome = run(gather_bodies.calls_follow_each_other, ranks, multicast=multicast)
    assert outcome.verdict is Verdict.OK and not outcome.findings, outcome.report()


def gather_on_two_nodes(rank: int, nnodes: int) -> tuple[bool, bool]:
    """Whether multimem is used for a group of four ranks, two on each node, and whether the data is right."""
    with running(rank, "env://", ParallelLayout(tp=4), backend="nccl"):
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=4, nnodes=lambda: nnodes)
        shards = gather_bodies.shards_of(4, (4, 16), torch.float32, 1, torch.device("cpu"))
        right = gather_bodies.same_bits(gather(shards[rank]), all_gather_last_dim(shards))
        return gather.multimem_enabled, right


def test_a_group_that_spans_nodes_takes_the_fallback() -> None:
    """The probe turns multimem off before any memory is allocated."""
    outcome = simulate(gather_on_two_nodes, 4, args=(2,), nodes=2, gpus_per_node=2)
    assert outcome.verdict is Verdict.OK, outcome.report()
    assert set(outcome.results.values()) == {(False, True)}


def test_settings_that_hide_the_second_node_are_found_out() -> None:
    """Told of one node the gatherer asks no probe; the rendezvous then fails on all ranks, which fall back together.

    The failed rendezvous is a finding: settings and deployment do not agree.
    """
    outcome = simulate(gather_on_two_nodes, 4, args=(1,), nodes=2, gpus_per_node=2)
    assert set(outcome.results.values()) == {(False, True)}, outcome.report()
    assert any("node" in finding.title for finding in outcome.findings)
