"""Process groups of ranks with simulated GPUs: which tensors a backend takes, and which GPU a rank brings."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simulator import simulate


def local_device():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("backend", ["nccl", "gloo", "cpu:gloo,cuda:nccl", None])
def test_collectives_move_the_data_of_gpus(backend):
    """All-reduce, objects, messages and batches, on their own GPU each."""

    def work(rank):
        device = local_device()
        dist.init_process_group(backend)
        x, other, objects = torch.full((2,), rank, device=device), torch.empty(2, device=device), [None, None]
        dist.all_reduce(x)
        dist.all_gather_object(objects, {"x": x})
        one = x.float() + rank
        batch = [dist.P2POp(dist.isend, one, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        dist.barrier(device_ids=[device.index])
        devices = [str(each["x"].device) for each in objects]
        result = x.tolist(), other.tolist(), str(x.device), devices
        dist.destroy_process_group()
        return result

    outcome = simulate(work, 2, accelerator="cuda")
    outcome.raise_if_bad()
    both = ["cuda:0", "cuda:1"]
    assert outcome.results == {0: ([1, 1], [2.0, 2.0], "cuda:0", both), 1: ([1, 1], [1.0, 1.0], "cuda:1", both)}


def test_a_mixed_group_takes_tensors_of_both():
    """gloo takes those of the host, nccl those of the GPUs."""

    def work(rank):
        device = local_device()
        dist.init_process_group("cpu:gloo,cuda:nccl")
        host, gpu = torch.ones(1), torch.ones(1, device=device)
        dist.all_reduce(host)
        dist.all_reduce(gpu)
        return host.item(), gpu.item()

    outcome = simulate(work, 2, accelerator="cuda")
    assert (outcome.verdict, outcome.results) == ("ok", {0: (2.0, 2.0), 1: (2.0, 2.0)})


def test_nccl_refuses_tensors_of_the_host():
    """With GPUs it says what torch says; without them nccl goes on to take CPU tensors."""

    def work(rank):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1))

    refused = simulate(work, 2, accelerator="cuda")
    assert refused.verdict == "exception"
    assert refused.ranks[0].error == "RuntimeError: No backend type associated with device type cpu"
    assert simulate(work, 2).ok


def test_a_forgotten_set_device_is_found():
    """All ranks on cuda:0 are two on one GPU for NCCL; the finding names the missing call."""

    def work(rank):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"))

    outcome = simulate(work, 3, accelerator="cuda")
    finding = outcome.findings[0]
    assert (outcome.verdict, len(outcome.findings)) == ("wrong_device", 1)
    assert finding.title == "ranks 0-2 share GPU 0 of node0 in group 'WORLD'"
    assert finding.cause == (
        "ranks 0-2 never called torch.cuda.set_device, so 'cuda' is cuda:0; NCCL refuses two ranks on one GPU"
    )
    assert "LOCAL_RANK" in finding.remedy
    assert "Duplicate GPU detected : rank " in outcome.ranks[2].traceback


def test_two_ranks_that_chose_one_gpu_are_found():
    """Ranks 1 and 2 chose the same device; rank 0 is only stranded."""

    def work(rank):
        torch.cuda.set_device(min(rank, 1))
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(1, device="cuda"))

    finding = simulate(work, 3, accelerator="cuda").findings[0]
    assert (finding.kind, finding.title) == ("wrong_device", "ranks 1, 2 share GPU 1 of node0 in group 'WORLD'")
    assert finding.remedy == "let each rank of a node use a GPU of its own"


def test_one_index_on_two_nodes_is_right():
    """cuda:0 of two nodes, or of two ranks that see one device each, are different GPUs."""

    def across(rank):
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        return x.item()

    def hidden(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        return across(rank)

    assert simulate(across, 2, accelerator="cuda", nodes=2).results == {0: 2.0, 1: 2.0}
    assert simulate(hidden, 2, accelerator="cuda").results == {0: 2.0, 1: 2.0}


def test_distributed_data_parallel_on_gpus():
    """device_ids, buckets and gradients work; both ranks end with the same parameters."""

    def work(rank):
        device = local_device()
        dist.init_process_group("nccl", device_id=device)
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(3, 2).cuda(), device_ids=[device.index])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.full((1, 3), float(rank + 1), device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        weight = model.module.weight
        return str(weight.device), weight.detach().cpu().tolist()

    outcome = simulate(work, 2, accelerator="cuda")
    outcome.raise_if_bad()
    assert [outcome.results[rank][0] for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert outcome.results[0][1] == outcome.results[1][1]


def test_meshes_and_dtensors_on_gpus():
    """init_device_mesh("cuda"), a redistribution, and a matrix product of sharded tensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def work(rank):
        device = local_device()
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.ones(4, 4, device=device), mesh, [Shard(0)])
        product = (x @ x.redistribute(placements=[Replicate()])).full_tensor()
        return x.device.type, str(product.device), product.sum().item()

    assert simulate(work, 2, accelerator="cuda").results == {r: ("cuda", f"cuda:{r}", 64.0) for r in range(2)}


def test_symmetric_memory_is_on_the_gpu_of_the_rank_that_looks():
    """A buffer of a peer counts as being on the own GPU, as torch's does."""
    import torch.distributed._symmetric_memory as symmetric

    def work(rank):
        device = local_device()
        dist.init_process_group("nccl", device_id=device)
        mine = symmetric.empty(4, device=device, dtype=torch.float32)
        handle = symmetric.rendezvous(mine, dist.group.WORLD)
        mine.fill_(rank + 1)
        handle.barrier()
        peer = handle.get_buffer(1 - rank, (4,), torch.float32)
        total = peer + torch.ones(4, device=device)
        handle.barrier()
        return str(mine.device), str(peer.device), total.tolist()[0]

    results = simulate(work, 2, accelerator="cuda").results
    assert results == {0: ("cuda:0", "cuda:0", 3.0), 1: ("cuda:1", "cuda:1", 2.0)}


def test_the_command_line_has_the_option(tmp_path, capfd):
    """`hangcheck run --accelerator cuda` gives each rank of a node a GPU."""
    from simulator.cli import main

    script = tmp_path / "gpus.py"
    script.write_text("import torch\nprint('seen', torch.cuda.device_count(), torch.ones(1, device='cuda').device)\n")
    assert main(["run", "--accelerator", "cuda", "--nproc-per-node", "2", str(script)]) == 0
    assert capfd.readouterr().out.count("seen 2 cuda:0") == 2
