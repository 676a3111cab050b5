"""Corpus: the repaired programs, and correct ones that public reports had under suspicion."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from tests.suite.corpus import filled, known


@known("B01f", "sgl-project/sglang#15805", 4)
def all_lists_on_all_ranks(rank, world_size):
    """Every rank makes both lists, in one order."""
    dist.init_process_group("gloo")
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    x = filled(float(rank))
    dist.all_reduce(x, group=groups[rank // 2])
    return x.item()


@known("B22f", "deepspeedai/DeepSpeed#8262", 2)
def votes_whether_to_go_on(rank, world_size):
    """All ranks leave the decode loop together."""
    dist.init_process_group("gloo")
    last, step = (2 if rank == 0 else 5), 0
    while True:
        tokens = [filled(0.0, 2), filled(0.0, 2)]
        dist.all_gather(tokens, filled(float(step), 2))
        step += 1
        alive = filled(float(step < last))
        dist.all_reduce(alive)
        if alive.item() == 0:
            break
    x = filled(1.0, 3)
    dist.all_reduce(x)
    return step


@known("B26f", "sgl-project/sglang#30760", 4)
def everybody_reduces(rank, world_size):
    """Ranks without a request bring a zero."""
    dist.init_process_group("gloo")
    ongoing = {"request 7"} if rank == 0 else set()
    x = filled(float(len(ongoing)))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    count = filled(0, 1, torch.int64)
    dist.broadcast(count, src=0)
    return x.item()


@known("B37f", "sgl-project/sglang#9154", 2)
def a_group_for_each_thread(rank, world_size):
    """The threads have a group each."""
    dist.init_process_group("gloo")
    results = {}

    def work(name, count, after_s, group):
        time.sleep(after_s)
        x = filled(float(count), count)
        dist.all_reduce(x, group=group)
        results[name] = x[0].item()

    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    threads = [
        threading.Thread(target=work, args=("prefetch", 3, 0.0 if rank == 0 else 0.3, groups[0])),
        threading.Thread(target=work, args=("input", 5, 0.15, groups[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results.items())


@known("B50f", "vllm-project/vllm#51986", 4)
def failed_probe_votes_too(rank, world_size):
    """The rank whose probe fails votes no."""
    dist.init_process_group("gloo")
    vote = filled(int(rank != 3), 1, torch.int32)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    count = filled(0, 1, torch.int64)
    dist.broadcast(count, src=0)
    return bool(vote.item())


@known("N01", "huggingface/accelerate#98", 2)
def main_rank_first(rank, world_size):
    """Barriers in different branches, which meet."""
    dist.init_process_group("gloo")
    if rank != 0:
        dist.barrier()
    time.sleep(0.1)
    if rank == 0:
        dist.barrier()
    x = filled(1.0)
    dist.all_reduce(x)
    return x.item()


@known("N03", "pytorch/pytorch#99931", 4)
def local_groups_made_by_their_members(rank, world_size):
    """Each half makes its own group, with local synchronisation."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)
    x = filled(float(rank))
    dist.all_reduce(x, group=group)
    return x.item()


@known("N05", "pytorch/pytorch#148976", 4)
def two_ranks_talk_before_a_barrier(rank, world_size):
    """Messages of a subset, then a barrier of all: DETAIL calls it a mismatch."""
    dist.init_process_group("gloo")
    dist.barrier()
    if rank in (1, 2):
        x = filled(0.0)
        ops = [dist.P2POp(dist.isend, filled(float(rank)), 3 - rank), dist.P2POp(dist.irecv, x, 3 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    dist.barrier()
    return "done"


@known("N07", "pytorch/pytorch#134314", 3)
def strangers_call_new_group_too(rank, world_size):
    """Ranks that are no members call new_group, and a collective on it, which only warns."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 2])
    if rank in (0, 2):
        dist.barrier(group=group)
    else:
        dist.all_reduce(filled(1.0), group=group)
    dist.barrier()
    return "done"


@known("N08", "pytorch/pytorch#109401", 2)
def both_post_their_sends_first(rank, world_size):
    """Large sends are posted on both sides before the receives."""
    dist.init_process_group("gloo")
    sent = dist.isend(filled(float(rank), 1 << 20), dst=1 - rank)
    x = filled(-1.0, 1 << 20)
    received = dist.irecv(x, src=1 - rank)
    sent.wait()
    received.wait()
    return x[0].item()


@known("N10", "pytorch/pytorch#162571", 3)
def mesh_made_by_its_members(rank, world_size):
    """Only members make the mesh, and no group comes after it."""
    from torch.distributed.device_mesh import DeviceMesh

    dist.init_process_group("gloo")
    x = filled(float(rank))
    if rank < 2:
        mesh = DeviceMesh("cpu", [0, 1])
        dist.all_reduce(x, group=mesh.get_group())
    dist.barrier()
    return x.item()


@known("N10w", "pytorch/pytorch#162571", 3, "deadlock", (2,), also=(0, 1))
def mesh_made_by_its_members_and_then_a_group(rank, world_size):
    """Only members make the mesh; the next group has another name for the others."""
    from torch.distributed.device_mesh import DeviceMesh

    dist.init_process_group("gloo")
    if rank < 2:
        DeviceMesh("cpu", [0, 1])  # CULPRIT
    everybody = dist.new_group([0, 1, 2])  # CULPRIT
    dist.barrier(group=everybody)
    return "done"


@known("N12", "-", 4)
def halves_at_their_own_pace(rank, world_size):
    """Disjoint groups, different numbers of calls."""
    dist.init_process_group("gloo")
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    for _ in range(5 if rank < 2 else 1):
        dist.all_reduce(filled(1.0), group=groups[rank // 2])
    dist.barrier()
    return "done"
