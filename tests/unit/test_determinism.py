"""Same program, same seed: the same bytes, whatever the hash seed, the carrier's timing or the run before."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from simulator import Outcome, simulate
from simulator.report.json import render_json
from simulator.scenarios.scale_up import scale_up
from simulator.scenarios.start_up import start_up

RUN = """
import hashlib, sys
from simulator.scenarios.scale_up import scale_up
from simulator.scenarios.start_up import start_up
from simulator.report.json import render_json
for outcome in (scale_up("before-repair"), scale_up(), start_up(guard=False)):
    text = outcome.report() + outcome.trace.to_text() + render_json(outcome)
    print(hashlib.sha256(text.encode()).hexdigest())
"""


def bytes_of(outcome: Outcome) -> bytes:
    return (outcome.report() + outcome.trace.to_text() + render_json(outcome)).encode()


def test_ten_runs_give_the_same_bytes() -> None:
    """Report, trace and JSON."""
    assert len({bytes_of(scale_up("before-repair")) for _ in range(10)}) == 1


def test_ten_runs_of_an_ok_scenario_give_the_same_bytes() -> None:
    """The long trace of a run in which everybody meets."""
    runs = {bytes_of(scale_up()) for _ in range(10)}
    assert len(runs) == 1
    assert len(runs.pop()) > 10_000


def test_three_hash_seeds_give_the_same_bytes() -> None:
    """No set order, no string hash gets into a result."""

    def digests(hash_seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True, check=True).stdout

    first = digests("0")
    assert len(first.split()) == 3
    assert digests("1") == first
    assert digests("4242") == first


def test_both_carriers_give_the_same_bytes() -> None:
    """A schedule belongs to the scheduler, not to threads."""
    assert bytes_of(start_up(guard=False)) == bytes_of(start_up(guard=False, carrier="greenlet"))


def draws(rank: int) -> list[float]:
    """What a rank gets from its three generators."""
    dist.init_process_group("gloo")
    return [random.random(), torch.rand(1).item()]


def test_random_numbers_follow_from_the_seed_and_the_rank() -> None:
    """The same again for the same seed, others for another, others on another rank."""
    first, again, other = (simulate(draws, 2, seed=seed).results for seed in (1, 1, 2))
    assert first == again
    assert first[0][0] != other[0][0]
    assert first[0][0] != first[1][0]
    assert first[0][1] != first[1][1]


def test_the_seed_stands_in_the_report_and_in_the_json() -> None:
    """Whoever sees a failure can run it again."""
    outcome = scale_up("before-repair", seed=7)
    assert "seed 7" in outcome.report()
    assert json.loads(render_json(outcome))["seed"] == 7


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_a_trace_has_a_version_and_one_line_an_event(ranks: int) -> None:
    """The format is an interface."""
    trace = simulate(draws, ranks).trace
    lines = trace.to_text().splitlines()
    assert lines[0] == "hangcheck-trace 1"
    assert len(lines) == len(trace) + 1
    assert (
        hashlib.sha256(trace.to_text().encode()).hexdigest()
        == hashlib.sha256(simulate(draws, ranks).trace.to_text().encode()).hexdigest()
    )
