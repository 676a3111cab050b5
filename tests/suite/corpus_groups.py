"""Corpus: creating groups, lists of ranks, wrong groups, stores and a second life of a group."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from tests.suite.corpus import filled, known

COUNTS_CALLS = TorchVersion(torch.__version__) >= "2.14"
"""From 2.14 on a local-sync name counts calls, which members and others make alike."""


@known("B01", "sgl-project/sglang#15805", 4, "mismatch race", (0, 1), also=(2, 3), real=False)
def each_half_makes_its_own_list(rank, world_size):
    """Two lists in one slot of the default group."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1] if rank < 2 else [2, 3])  # CULPRIT
    x = filled(float(rank))
    dist.all_reduce(x, group=group)
    return x.item()


@known("B01s", "sgl-project/sglang#15805", 4, "mismatch race", (0, 1), also=(2, 3), real=False)
def each_half_makes_its_own_list_later(rank, world_size):
    """Two lists in one slot; one rank of each half comes first."""
    dist.init_process_group("gloo")
    if rank in (1, 2):
        time.sleep(1.5)
    group = dist.new_group([0, 1] if rank < 2 else [2, 3])  # CULPRIT
    x = filled(float(rank))
    dist.all_reduce(x, group=group)
    return x.item()


@known("B01b", "sgl-project/sglang#15805", 4, "mismatch deadlock", (0, 1, 2, 3), real=False)
def each_half_makes_its_own_list_behind_a_barrier(rank, world_size):
    """Two lists in one slot, with torch's store barrier."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1] if rank < 2 else [2, 3])  # CULPRIT
    x = filled(float(rank))
    dist.all_reduce(x, group=group)
    return x.item()


@known("B02", "cornstarch-org/Cornstarch#76", 3, "deadlock", (0,), also=(1, 2))
def meshes_made_by_their_members(rank, world_size):
    """Only members make the groups of their mesh, so the counter that names groups differs afterwards."""
    dist.init_process_group("gloo")
    if rank == 0:
        dist.new_group([0])  # CULPRIT
    else:
        dist.new_group([1, 2])  # CULPRIT
        dist.new_group([1])
        dist.new_group([2])
    everybody = dist.new_group([0, 1, 2])  # CULPRIT
    x = filled(float(rank))
    dist.all_reduce(x, group=everybody)
    return x.item()


@known(
    "B03", "pytorch/pytorch#173608", 3, "" if COUNTS_CALLS else "deadlock", () if COUNTS_CALLS else (1,), also=(0, 2)
)
def local_name_with_a_count_in_it(rank, world_size):
    """The name of a local-sync group is salted by a count that members and others do not share."""
    dist.init_process_group("gloo")
    dist.new_group([0, world_size - 1])
    everybody = dist.new_group(list(range(world_size)), use_local_synchronization=True)  # CULPRIT
    dist.barrier(group=everybody)
    return "done"


@known("B05", "rwth-i6/returnn#1454", 2, "deadlock mismatch", (0, 1))
def one_loader_more(rank, world_size):
    """Rank 0 starts a loader more, whose group meets the next one of rank 1."""
    dist.init_process_group("gloo")

    def start_loader():
        return dist.new_group(backend="gloo")  # CULPRIT

    start_loader()
    if rank == 0:
        dist.barrier(group=start_loader())  # CULPRIT
    x = filled(1.0)
    dist.all_reduce(x, group=start_loader())  # CULPRIT
    return x.item()


@known("B06", "facebookresearch/param#183", 2, "deadlock", (0, 1))
def groups_made_in_their_own_order(rank, world_size):
    """Both groups have the same members, but the ranks make them in another order."""
    dist.init_process_group("gloo")
    names = ("a", "b") if rank == 0 else ("b", "a")
    groups = {name: dist.new_group([0, 1]) for name in names}
    x = filled(rank + 1.0)
    dist.all_reduce(x, group=groups["a"])  # CULPRIT
    dist.all_reduce(x, group=groups["b"])
    return x.item()


@known("B07", "pytorch/pytorch#176126", 4, "wrong_ranks", (0, 1, 2, 3), silent=True)
def position_in_an_unsorted_list(rank, world_size):
    """torch sorts the list, so the position in it is not the group rank."""
    dist.init_process_group("gloo")
    order = [3, 2, 1, 0]
    group = dist.new_group(order)  # CULPRIT
    parts = [filled(-1.0) for _ in order]
    dist.all_gather(parts, filled(float(rank)), group=group)
    return {owner: part.item() for owner, part in zip(order, parts, strict=True)}


@known("B09", "sgl-project/sglang#29567", 8, "deadlock wrong_ranks", (2, 6), also=(1, 5))
def offset_without_the_context_ranks(rank, world_size):
    """The peer's number leaves out that each data-parallel rank has two context-parallel ones."""
    dist.init_process_group("gloo")
    stage, rest = divmod(rank, 4)
    data, context = divmod(rest, 2)
    if context:
        return "idle"
    if stage == 0:
        dist.send(filled(float(rank)), dst=4 + data)  # CULPRIT
        return "sent"
    x = filled(-1.0)
    dist.recv(x, src=data)  # CULPRIT
    return x.item()


@known("B11", "vllm-project/vllm#3401", 4, "deadlock mismatch", (0, 1, 2, 3))
def tensor_broadcast_without_its_group(rank, world_size):
    """The metadata goes to the group, the tensor to WORLD."""
    dist.init_process_group("gloo")
    group = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    source = rank // 2 * 2
    metadata = [("key", 3)] if rank == source else [None]
    dist.broadcast_object_list(metadata, src=source, group=group)
    x = filled(float(rank), 3)
    dist.broadcast(x, src=source)  # CULPRIT
    return x.tolist()


@known("B12", "vllm-project/vllm#45917", 4, "deadlock", (0, 1), also=(2, 3))
def workspace_on_world_by_default(rank, world_size):
    """A helper whose group is WORLD by default is called by the ranks of one group only."""
    dist.init_process_group("gloo")
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]

    def make_workspace(group=None):
        handles = [None] * dist.get_world_size(group)
        dist.all_gather_object(handles, ("handle", rank), group=group)  # CULPRIT
        return len(handles)

    if rank >= 2:
        dist.barrier(group=groups[1])
        return "no warm-up here"
    return make_workspace()


@known("B14", "flashinfer-ai/flashinfer#3418", 4, "wrong_ranks exception", (2, 3), silent=True)
def group_rank_as_source(rank, world_size):
    """A group rank stands where torch wants a global one; the error is swallowed."""
    dist.init_process_group("gloo")
    group = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    objects = ["workspace" if dist.get_rank(group) == 0 else None]
    try:
        dist.broadcast_object_list(objects, src=0, group=group)  # CULPRIT
    except ValueError:
        return None
    return objects[0]


@known("B17", "pytorch/pytorch#130515", 2, "wrong_ranks", (1,), silent=True)
def gradient_of_a_broadcast(rank, world_size):
    """torch's backward of a broadcast compares a group rank with the global source: the gradient is zero."""
    import torch.distributed.nn.functional as functional

    dist.init_process_group("gloo")
    group = dist.new_group([1])
    if rank == 0:
        return "no member"
    x = torch.ones(2, requires_grad=True)
    functional.broadcast(x, src=1, group=group).sum().backward()  # CULPRIT
    return x.grad.tolist()


@known("B43c", "pytorch/pytorch#55967", 2, "race deadlock", (0, 1), explore=True, real=False)
def second_life_on_the_old_keys(rank, world_size):
    """The default group is made anew while the keys of the first one are still there."""
    store, _, _ = next(dist.rendezvous("env://"))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 1:
        time.sleep(1.5)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)  # CULPRIT
    x = filled(float(rank))
    dist.all_reduce(x)
    return x.item()


@known("B45", "flashinfer-ai/flashinfer#4075", 8, "race", (), also=(0, 1, 2, 3, 4, 6), explore=True, silent=True)
def prefix_of_two_groups(rank, world_size):
    """The key prefix of a group is its lowest rank and its size: two groups share it."""
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()

    def meet(ranks):
        mine = dist.PrefixStore(f"ep/{min(ranks)}x{len(ranks)}", store)
        mine.set(str(ranks.index(rank)), str(rank))  # CULPRIT
        return [int(mine.get(str(place))) for place in range(len(ranks))]  # CULPRIT

    first = meet([0, 1, 2, 3]) if rank < 4 else []
    second = meet([0, 2, 4, 6]) if rank % 2 == 0 else []
    return first, second


@known("B51", "pytorch/pytorch#196082", 3, "deadlock", (0, 1), also=(2,))
def sequence_of_the_process(rank, world_size):
    """Rounds of a rendezvous are counted in the process, not in the group."""
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    rounds = [0]

    def meet(ranks):
        number = rounds[0]
        rounds[0] += 1
        store.set(f"memory/{number}/{rank}", "handle")
        store.wait([f"memory/{number}/{peer}" for peer in ranks])  # CULPRIT

    if rank < 2:
        meet([0, 1])
    dist.barrier()
    meet([0, 1, 2])
    return "done"
