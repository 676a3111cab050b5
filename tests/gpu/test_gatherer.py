"""The guarded gatherer on GPUs over real symmetric memory: processes that share one GPU, or one process a GPU.

Sharing a GPU (multicast off, gloo for control) works on one; the rest needs as many GPUs as ranks.  Multicast is tried
only if it is asked for: on a shared host a program that uses it can put GPUs out of service.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.refimpl.gather_bodies import GATHER_BODIES
from tests.unit.refimpl.rank_pool import Body, RankPool

Pools = Callable[[int], RankPool]
ROOT = Path(__file__).parents[2]
TORCHRUN_SCRIPT = ROOT / "tests" / "gpu" / "gather_under_torchrun.py"


@pytest.fixture(scope="module")
def ranks_on_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pools]:
    """From a world size to a pool of that many processes, multicast off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
        patch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        pools: dict[int, RankPool] = {}

        def of_size(world_size: int) -> RankPool:
            if world_size not in pools:
                for pool in pools.values():
                    pool.close()
                pools[world_size] = RankPool(world_size, tmp_path_factory.mktemp(f"symm{world_size}"))
            return pools[world_size]

        yield of_size
        for pool in pools.values():
            pool.close()


@pytest.mark.gpu(count=1)
@pytest.mark.parametrize("body", GATHER_BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_processes_that_share_one_gpu(world_size: int, body: Body, ranks_on_gpus: Pools) -> None:
    """Real rendezvous and peer stores; the ranks take turns on the device."""
    ranks_on_gpus(world_size).run(body, backend="gloo", device="cuda:0", timeout_s=180.0)


@pytest.mark.parametrize("body", GATHER_BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpu(count=n)) for n in (2, 4, 8)])
def test_one_process_a_gpu(world_size: int, body: Body, ranks_on_gpus: Pools) -> None:
    """Peer stores over NVLink or PCIe, NCCL as the group."""
    ranks_on_gpus(world_size).run(body, backend="nccl", device="cuda:{rank}", timeout_s=180.0)


def under_torchrun(processes: int, **environment: str) -> str:
    """What the script printed; it checks against NCCL, eager and in CUDA graphs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([*command, str(TORCHRUN_SCRIPT)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.gpu(count=2)
def test_parity_with_nccl_under_torchrun() -> None:
    """On all GPUs of the machine, multicast off."""
    count = torch.cuda.device_count()
    assert f"{count} ranks, peer stores: ok" in under_torchrun(count, TORCH_SYMM_MEM_DISABLE_MULTICAST="1")


@pytest.mark.gpu(count=2, multicast=True)
def test_parity_with_nccl_by_multicast() -> None:
    """The multimem path itself, where the hardware has it and the owner of the machine allows it."""
    count = torch.cuda.device_count()
    assert f"{count} ranks, multicast: ok" in under_torchrun(count, TORCH_SYMM_MEM_DISABLE_MULTICAST="0")
