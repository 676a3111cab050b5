"""torch's own process-wide and thread-wide state: what one rank sets, no other sees, nor the process afterwards."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from simulator import simulate
from simulator.engine.scheduler import Limits


def _enter(mode: Any) -> None:
    """For as long as the thread lives."""
    mode.__enter__()
    vars(threading.current_thread()).setdefault("modes", []).append(mode)


def _device_made() -> str:
    return str(torch.empty(1).device)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype, torch.float64),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled, False),
    "default device": (lambda: torch.set_default_device("meta"), _device_made, "meta"),
    "inference mode": (lambda: _enter(torch.inference_mode()), torch.is_inference_mode_enabled, True),
    "autocast": (lambda: _enter(torch.autocast("cpu")), lambda: torch.is_autocast_enabled("cpu"), True),
    "seed": (lambda: torch.manual_seed(77), torch.initial_seed, 77),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_one_ranks_own(name: str) -> None:
    """Set on rank 0, kept over its waits, not seen by rank 1 or by the process."""
    put, get, expected = SETTINGS[name]
    outside = get()

    def body(rank: int) -> list[Any]:
        if rank == 0:
            put()
        seen = []
        for _ in range(2):
            time.sleep(1)
            seen.append(get())
        return seen

    results = simulate(body, 2).raise_if_bad().results
    assert results[0] == [expected] * 2
    assert expected not in results[1]
    assert get() == outside != expected


def test_settings_of_the_kernels_are_put_back() -> None:
    """All ranks share them; the process gets back its own."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()

    def body(rank: int) -> None:
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)

    seen: list[int] = []
    simulate(lambda rank: seen.append(torch.get_num_threads()), 1)
    simulate(body, 2)
    assert seen == [before[0]]
    after = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    assert after == before


def test_grad_mode_is_a_ranks_own_over_collectives() -> None:
    """`no_grad` around a collective on one rank; the other trains on."""

    def body(rank: int) -> bool:
        dist.init_process_group("gloo")
        weight = torch.ones(1, requires_grad=True)
        with torch.set_grad_enabled(rank == 1):
            loss = weight * 2
            dist.all_reduce(loss.detach())
            return (loss * 2).requires_grad

    assert simulate(body, 2).raise_if_bad().results == {0: False, 1: True}


def test_each_rank_has_a_world_of_its_own() -> None:
    """Groups, names and counters; the process has none of them afterwards."""

    def body(rank: int) -> tuple[int, int, bool]:
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        if rank == 0:
            dist.new_group([0], use_local_synchronization=True)
        dist.barrier()
        return dist.get_rank(), len(c10d._world.pg_names), c10d.GroupMember.WORLD is dist.group.WORLD

    assert simulate(body, 2).raise_if_bad().results == {0: (0, 2, True), 1: (1, 1, True)}
    assert not dist.is_initialized()
    assert dist.group.WORLD is None
    assert c10d._world.pg_names == {}


def test_an_isolated_module_may_wait_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank imports its own instance, and the import meets the other ranks."""
    source = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier(); RANK = dist.get_rank()"
    (tmp_path / "hangcheck_meets_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    def body(rank: int) -> int:
        return importlib.import_module("hangcheck_meets_at_import").RANK

    outcome = simulate(body, 3, isolate=["hangcheck_meets_at_import"], limits=Limits(spin_wall_s=1))
    assert outcome.raise_if_bad().results == {0: 0, 1: 1, 2: 2}


def test_default_dtype_is_a_ranks_own_in_its_threads() -> None:
    """A thread of the rank sees what its main thread has set."""

    def body(rank: int) -> list[torch.dtype]:
        torch.set_default_dtype((torch.float64, torch.float16)[rank])
        seen: list[torch.dtype] = []
        thread = threading.Thread(target=lambda: (time.sleep(1), seen.append(torch.get_default_dtype())))
        thread.start()
        thread.join()
        return seen

    assert simulate(body, 2).raise_if_bad().results == {0: [torch.float64], 1: [torch.float16]}
