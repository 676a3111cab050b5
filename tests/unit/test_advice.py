"""What a report says of ranks that raised or left, and of groups under several names."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simulator import Cluster, simulate
from simulator.analysis.findings import Certainty, Verdict

LIMITS = "docs/limits.md"


def _set_device(rank: int) -> None:
    torch.cuda.set_device(rank)


def _make_tensor(rank: int) -> None:
    torch.ones(1, device="cuda")


def _current(rank: int) -> None:
    torch.cuda.current_device()


def _stream(rank: int) -> None:
    torch.cuda.Stream()


@pytest.mark.parametrize("program", [_set_device, _make_tensor, _current, _stream])
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch with CUDA says it in other words")
def test_a_rank_that_wants_a_gpu_is_told_how_to_get_one(program: Any) -> None:
    (finding,) = simulate(program, 2).findings
    assert finding.kind is Verdict.EXCEPTION
    assert "--accelerator cuda" in finding.remedy
    assert 'accelerator="cuda"' in finding.remedy


def test_other_exceptions_get_no_such_hint() -> None:
    def program(rank: int) -> None:
        raise ValueError("no")

    (finding,) = simulate(program, 2).findings
    assert "accelerator" not in finding.remedy
    assert finding.certainty is Certainty.CAUSE


def test_who_has_gpus_and_hides_them_gets_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finding,) = simulate(_current, 2, accelerator="cuda").findings
    assert "--accelerator" not in finding.remedy


def _graph(rank: int) -> None:
    torch.cuda.CUDAGraph()


def _stop(rank: int) -> None:
    os.kill(os.getpid(), 19)


def _fork(rank: int) -> None:
    os.fork()


@pytest.mark.parametrize("program", [_graph, _stop, _fork])
def test_what_the_simulator_refuses_is_not_the_users_fault(program: Any) -> None:
    (finding,) = simulate(program, 2, accelerator="cuda").findings
    assert finding.kind is Verdict.EXCEPTION
    assert finding.certainty is Certainty.UNDECIDED
    assert LIMITS in finding.remedy
    assert "simulator does not model" in finding.cause


def test_an_exit_has_its_line() -> None:
    def program(rank: int) -> None:
        if rank == 1:
            os._exit(4)

    outcome = simulate(program, 2)
    (finding,) = outcome.findings
    assert "os._exit(4)" in finding.title
    (side,) = finding.sides
    assert side.site is not None
    assert side.site.line == program.__code__.co_firstlineno + 2


def test_memory_summary_and_its_numbers() -> None:
    def program(rank: int) -> tuple[Any, ...]:
        kept = torch.ones(1024, device="cuda")
        torch.ones(1024, device="cuda")
        stats = torch.cuda.memory_stats()
        torch.cuda.reset_peak_memory_stats()
        after = torch.cuda.memory_stats()["allocation.all.peak"]
        held = [stats[f"allocation.all.{part}"] for part in ("current", "peak", "allocated", "freed")]
        return held, after, stats["inactive_split_bytes.all.current"], torch.cuda.memory_summary(), len(kept)

    held, after, split, summary, _ = simulate(program, 1, accelerator="cuda").results[0]
    assert held == [1, 2, 2, 1]
    assert (after, split) == (1, 0)
    assert "Allocated memory" in summary
    assert "Oversize GPU segments" in summary


def _world(joins: bool) -> Any:
    from mooncake import pg  # type: ignore[import-not-found]

    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(4, joins))
    return pg


def _launched(rank: int) -> None:
    pg = _world(joins=False)
    dist.new_group([0, 1])
    if rank == 0:
        while not all(pg.get_peer_state(dist.group.WORLD, [2, 3])):
            time.sleep(0.1)
        pg.recover_ranks(dist.group.WORLD, [2, 3])
    while pg.get_active_ranks(dist.group.WORLD).sum() < 4:
        time.sleep(0.1)
    dist.new_group([0, 1, 2, 3])


def _joining(rank: int) -> None:
    pg = _world(joins=True)
    pg.join_group(dist.group.WORLD)
    dist.new_group([0, 1, 2, 3])


def test_groups_made_before_a_scale_up_are_named() -> None:
    outcome = Cluster().launch(_launched, ranks=2).join(_joining, ranks=2, rank_offset=2, at_s=1.0).run()
    finding = next(f for f in outcome.findings if f.kind is Verdict.DEADLOCK)
    assert "local-sync" not in finding.cause
    assert "ranks 0, 1 had made new_group([0, 1]) (" in finding.cause
    assert f"test_advice.py:{_launched.__code__.co_firstlineno + 2})" in finding.cause
    assert "before the default group grew to 4 ranks, and ranks 2, 3, which came then, have not" in finding.cause


def _alone(rank: int) -> None:
    _world(joins=True)
    dist.new_group([2, 3])


def _first(rank: int) -> None:
    _world(joins=False)
    time.sleep(5)


def test_a_group_without_description_has_one_label_in_title_and_cause() -> None:
    outcome = Cluster().launch(_first, ranks=2).join(_alone, ranks=2, rank_offset=2, at_s=1.0).run()
    finding = next(f for f in outcome.findings if "is collective over" in f.title)
    assert finding.title.startswith("new_group '#1' [2, 3]")
    assert "create group '#1' by" in finding.cause
    assert finding.group == "#1"
