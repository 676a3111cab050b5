"""Bodies on sub-groups, device meshes, functional collectives, and what is built on them. Run by `test_meshes.py`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn
from torch.distributed.device_mesh import init_device_mesh

from tests.unit.parity_bodies import TORCH, body, caught, numbers, plain


def total(rank: int, group: Any) -> Any:
    """The sum of the members' ranks, or None outside."""
    if group is None or group == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor, group=group)
    return tensor.item()


# -- sub-groups ----------------------------------------------------------------------------------------------------


@body()
def ranks_of_groups(rank: int, world_size: int) -> Any:
    """A list in any order: torch sorts it, so the position is not the group rank."""
    backwards = dist.new_group(list(reversed(range(world_size))))
    evens = dist.new_group(list(range(0, world_size, 2)), group_desc="evens")
    member = rank % 2 == 0
    return {
        "ranks": dist.get_process_group_ranks(backwards),
        "rank": dist.get_rank(backwards),
        "size": dist.get_world_size(backwards),
        "global 0": dist.get_global_rank(backwards, 0),
        "group of last": dist.get_group_rank(backwards, world_size - 1),
        "rank outside": dist.get_rank(evens),
        "size outside": dist.get_world_size(evens),
        "desc": evens.group_desc if member else None,
        "name": evens.group_name if member else None,
        "world": dist.get_process_group_ranks(None),
        "wrong global": caught(dist.get_global_rank, backwards, world_size),
        "wrong group": caught(dist.get_group_rank, backwards, world_size),
        "backend": dist.get_backend(backwards),
    }


@body(sizes=(4,))
def roots_in_sub_groups_are_global_ranks(rank: int, world_size: int) -> Any:
    group = dist.new_group([1, 3])
    tensor = numbers(rank)
    if rank not in (1, 3):
        return caught(dist.broadcast, tensor, src=1, group=group), plain(tensor)
    wrong = caught(dist.broadcast, tensor, src=0, group=group)
    dist.broadcast(tensor, src=3, group=group)
    again = numbers(rank)
    dist.broadcast(again, group_src=0, group=group)
    gathered = [torch.zeros(3), torch.zeros(3)] if rank == 3 else None
    dist.gather(tensor + rank, gathered, dst=3, group=group)
    return wrong, plain(tensor), plain(again), plain(gathered)


@body(sizes=(4,))
def groups_of_several_sizes(rank: int, world_size: int) -> Any:
    lists = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 1, 2], [3]]
    groups = [dist.new_group(ranks) for ranks in lists]
    return [total(rank, group) for group in groups]


@body(sizes=(4,))
def groups_with_local_synchronization(rank: int, world_size: int) -> Any:
    mine = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True, group_desc="local")
    return total(rank, group), dist.get_process_group_ranks(group)


@body()
def new_group_with_wrong_arguments(rank: int, world_size: int) -> Any:
    return {
        "too many": caught(dist.new_group, list(range(world_size + 1))),
        "outside": caught(dist.new_group, [0, world_size]),
        "twice": caught(dist.new_group, [0, 0]) if TORCH > (2, 12) else "not checked",
        "backend": caught(dist.new_group, [0], backend="nosuch"),
        "timeout": caught(dist.new_group, [0], timeout=5),
    }


@body(sizes=(4,))
def subgroups_of_equal_size(rank: int, world_size: int) -> Any:
    mine, all_of_them = dist.new_subgroups(group_size=2)
    other, _ = dist.new_subgroups(group_size=2, group_desc="again")
    return (
        total(rank, mine), len(all_of_them), dist.get_process_group_ranks(mine), total(rank, other),
        caught(dist.new_subgroups, group_size=3), caught(dist.new_subgroups, group_size=0),
    )  # fmt: skip


@body(sizes=(4,))
def subgroups_by_enumeration(rank: int, world_size: int) -> Any:
    mine, all_of_them = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return (
        total(rank, mine), len(all_of_them), dist.get_rank(mine),
        caught(dist.new_subgroups_by_enumeration, []),
        caught(dist.new_subgroups_by_enumeration, [[0, 1], [1, 2]]),
    )  # fmt: skip


@body()
def default_group_made_again(rank: int, world_size: int) -> Any:
    store = dist.distributed_c10d._get_default_store()
    first = total(rank, dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=world_size)
    return first, total(rank, dist.group.WORLD), dist.get_rank(), total(rank, dist.new_group())


@body()
def default_group_of_both_devices(rank: int, world_size: int) -> Any:
    group = dist.new_group(backend="cpu:gloo")
    return total(rank, group), dist.get_backend(group), dist.is_backend_available("gloo")


# -- device meshes -------------------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def mesh_of_one_dimension(rank: int, world_size: int) -> Any:
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("dp",))
    return (
        total(rank, mesh.get_group()), total(rank, mesh.get_group("dp")), mesh.get_local_rank(), mesh.size(),
        mesh.get_rank(), mesh.get_coordinate(), plain(mesh.mesh),
        caught(init_device_mesh, "cpu", (world_size + 1,)), caught(mesh.get_group, "tp"),
    )  # fmt: skip


@body(sizes=(4,))
def mesh_of_two_dimensions(rank: int, world_size: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rows, columns = mesh["dp"], mesh["tp"]
    flat = mesh[("dp", "tp")]._flatten("all")
    return (
        total(rank, rows.get_group()), total(rank, columns.get_group()), total(rank, flat.get_group()),
        mesh.get_local_rank("dp"), mesh.get_local_rank("tp"), mesh.get_coordinate(),
        [total(rank, group) for group in mesh.get_all_groups()], plain(flat.mesh), mesh.ndim, mesh.shape,
    )  # fmt: skip


@body(sizes=(4,))
def mesh_from_groups(rank: int, world_size: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    row = DeviceMesh.from_group(rows[rank // 2], "cpu", mesh_dim_names=("row",))
    return total(rank, mesh.get_group()), total(rank, row.get_group()), plain(row.mesh)


@body(sizes=(2, 4))
def distributed_tensors(rank: int, world_size: int) -> Any:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    whole = torch.arange(world_size * 4, dtype=torch.float32).reshape(world_size * 2, 2)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    partial = DTensor.from_local(numbers(rank, (world_size, 2)), mesh, [Partial()])
    product = rows @ torch.distributed.tensor.distribute_tensor(torch.eye(2) * 2, mesh, [Replicate()])
    columns = rows.redistribute(mesh, [Shard(1)]) if world_size == 2 else rows
    return (
        plain(rows.to_local()), plain(rows.full_tensor()), plain(partial.full_tensor()),
        plain(partial.redistribute(mesh, [Shard(0)]).to_local()), plain(product.full_tensor()),
        plain(columns.to_local()), plain(rows.sum().full_tensor()),
    )  # fmt: skip


# -- functional collectives ----------------------------------------------------------------------------------------


def single(name: str) -> Any:
    """torch 2.13 renamed some functions from `..._tensor` to `..._single`; the old names warn."""
    return getattr(funcol, f"{name}_single", None) or getattr(funcol, f"{name}_tensor")


@body()
def functional_collectives(rank: int, world_size: int) -> Any:
    group = dist.group.WORLD
    tensor = numbers(rank, (world_size, 2))
    return {
        "all_reduce": plain(funcol.all_reduce(tensor, "sum", group)),
        "max": plain(funcol.all_reduce(tensor, "max", group)),
        "broadcast": plain(funcol.broadcast(tensor, 1, group)),
        "all_gather": plain(single("all_gather")(tensor, 0, group)),
        "all_gather dim 1": plain(single("all_gather")(tensor, 1, group)),
        "reduce_scatter": plain(single("reduce_scatter")(tensor, "sum", 0, group)),
        "all_to_all": plain(funcol.all_to_all_single(tensor, None, None, group)),
        "permute": plain(funcol.permute_tensor(numbers(rank, (3,)), [*range(1, world_size), 0], group)),
        "unchanged": plain(tensor),
    }


@body()
def functional_uneven_all_to_all(rank: int, world_size: int) -> Any:
    splits = [rank + peer for peer in range(world_size)]
    return plain(funcol.all_to_all_single(numbers(rank, (sum(splits), 2)), splits, splits, dist.group.WORLD))


@body()
def functional_coalesced(rank: int, world_size: int) -> Any:
    group = dist.group.WORLD
    tensors = [numbers(rank, (world_size,)), numbers(rank, (world_size, 2))]
    gather = getattr(funcol, "all_gather_single_coalesced", None) or funcol.all_gather_into_tensor_coalesced
    scatter = getattr(funcol, "reduce_scatter_single_coalesced", None) or funcol.reduce_scatter_tensor_coalesced
    return (
        plain(funcol.all_reduce_coalesced(tensors, "sum", group)), plain(gather(tensors, group)),
        plain(scatter(tensors, "sum", [0, 0], group)),
    )  # fmt: skip


@body()
def functional_results_are_waited_for_on_use(rank: int, world_size: int) -> Any:
    result = funcol.all_reduce(numbers(rank), "sum", dist.group.WORLD)
    waiting = isinstance(result, funcol.AsyncCollectiveTensor)
    doubled = result * 2
    other = funcol.all_reduce(numbers(rank), "sum", dist.group.WORLD)
    return waiting, plain(doubled), type(doubled).__name__, plain(funcol.wait_tensor(other))


@body()
def functional_on_a_mesh(rank: int, world_size: int) -> Any:
    mesh = init_device_mesh("cpu", (world_size,))
    return plain(funcol.all_reduce(numbers(rank), "sum", mesh)), plain(
        funcol.all_reduce(numbers(rank), "sum", (mesh, 0))
    )


@body()
def functional_with_gradients(rank: int, world_size: int) -> Any:
    group = dist.group.WORLD
    first, second, third = (numbers(rank, (world_size, 2)).requires_grad_() for _ in range(3))
    gather = getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd
    scatter = getattr(funcol, "reduce_scatter_single_autograd", None) or funcol.reduce_scatter_tensor_autograd
    (gather(first, 0, group) * (rank + 1)).sum().backward()
    (scatter(second, "sum", 0, group) * (rank + 1)).sum().backward()
    (funcol.all_to_all_single_autograd(third, [1] * world_size, [1] * world_size, group) * (rank + 1)).sum().backward()
    return plain(first.grad), plain(second.grad), plain(third.grad)


@body()
def collectives_with_gradients(rank: int, world_size: int) -> Any:
    def grad(fn: Any, shape: tuple[int, ...]) -> Any:
        tensor = numbers(rank, shape).requires_grad_()
        result = fn(tensor)
        parts = result if isinstance(result, (list, tuple)) else [result]
        sum((part * (rank + 1)).sum() for part in parts).backward()
        return plain([part.detach() for part in parts]), plain(tensor.grad)

    out = torch.zeros(2)
    return {
        "all_reduce": grad(lambda t: dnn.all_reduce(t), (2,)),
        "all_gather": grad(lambda t: dnn.all_gather(t), (2,)),
        "broadcast": grad(lambda t: dnn.broadcast(t.clone(), 0), (2,)),
        "reduce_scatter": grad(lambda t: dnn.reduce_scatter(out.clone(), list(t.unbind())), (world_size, 2)),
        "all_to_all_single": grad(lambda t: dnn.all_to_all_single(torch.zeros(world_size), t), (world_size,)),
        "scatter": grad(lambda t: dnn.scatter(list((t * 1).unbind()), 0), (world_size, 2)),
    }


# -- data parallel models ------------------------------------------------------------------------------------------


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()) % 3 - 1.0).reshape(parameter.shape))
    return model


@body()
def data_parallel_steps(rank: int, world_size: int) -> Any:
    """Sums of small whole numbers, over a power of two of ranks: exact."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        model(numbers(rank + step, (4, 2))).sum().backward()
        optimizer.step()
        seen.append(plain([p.grad for p in model.parameters()]))
    with model.no_sync():
        model(numbers(rank, (4, 2))).sum().backward()
    return seen, plain(list(model.parameters()))


@body()
def data_parallel_with_many_buckets(rank: int, world_size: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(small_model(), bucket_cap_mb=1e-5, find_unused_parameters=True)
    model(numbers(rank, (4, 2))).sum().backward()
    return plain([p.grad for p in model.parameters()])


@body()
def data_parallel_with_a_hook(rank: int, world_size: int) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    model = DistributedDataParallel(small_model())
    model.register_comm_hook(None, hook)
    model(numbers(rank, (4, 2))).sum().backward()
    return plain([p.grad for p in model.parameters()])


@body(sizes=(2,))
def sharded_model_steps(rank: int, world_size: int) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,))
    model = small_model()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(numbers(rank, (4, 2))).sum().backward()
    return [plain(p.grad.full_tensor()) if p.grad is not None else None for p in model.parameters()]


@body(sizes=(2,))
def zero_timeouts_are_refused(rank: int, world_size: int) -> Any:
    return caught(dist.new_group, [0, 1], timeout=timedelta(0)) != "no error"
