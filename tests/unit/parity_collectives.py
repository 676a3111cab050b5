"""Bodies on collectives. Run by `test_collectives.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.unit.parity_bodies import body, caught, numbers, plain

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
)  # fmt: skip
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")


def empties(like: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [torch.zeros_like(like) for _ in range(count)]


# -- broadcast -----------------------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def broadcast_from_each_root(rank: int, world_size: int) -> Any:
    got = []
    for root in range(world_size):
        tensor = numbers(rank, (2, 2))
        dist.broadcast(tensor, src=root)
        got.append(plain(tensor))
    return got


@body()
def broadcast_by_group_rank(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    dist.broadcast(tensor, group_src=world_size - 1)
    return plain(tensor), caught(dist.broadcast, tensor, src=0, group_src=0), caught(dist.broadcast, tensor)


@body()
def broadcast_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(dtype: torch.dtype) -> Any:
        tensor = numbers(rank, dtype=dtype)
        dist.broadcast(tensor, src=1)
        return tensor

    return {str(dtype): caught(one, dtype) for dtype in DTYPES}


@body(sizes=(2,))
def broadcast_of_odd_shapes(rank: int, world_size: int) -> Any:
    scalar, empty = torch.tensor(float(rank)), torch.zeros(0, 3)
    dist.broadcast(scalar, src=1)
    dist.broadcast(empty, src=1)
    return plain(scalar), list(empty.shape)


@body(sizes=(2,))
def broadcast_of_a_turned_tensor(rank: int, world_size: int) -> Any:
    turned = numbers(rank, (2, 3)).t()
    dist.broadcast(turned, src=1)
    return plain(turned)


@body(sizes=(2,), finds=("mismatch",), differs="gloo writes across the gaps of the tensor")
def broadcast_of_a_tensor_with_gaps(rank: int, world_size: int) -> Any:
    whole = numbers(rank, (6,))
    dist.broadcast(whole[::2], src=1)
    return plain(whole)


# -- all_reduce ----------------------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def all_reduce_with_each_op(rank: int, world_size: int) -> Any:
    def one(op: str, dtype: torch.dtype) -> Any:
        tensor = numbers(rank, dtype=dtype)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        return tensor

    return {(op, str(dtype)): caught(one, op, dtype) for op in OPS for dtype in (torch.float32, torch.int64)}


@body()
def all_reduce_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(op: str, dtype: torch.dtype) -> Any:
        tensor = numbers(rank, dtype=dtype)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        return tensor

    return {(op, str(dtype)): caught(one, op, dtype) for op in ("SUM", "MAX", "BOR") for dtype in DTYPES}


@body(sizes=(2,))
def all_reduce_premul_sum(rank: int, world_size: int) -> Any:
    return caught(dist.all_reduce, numbers(rank), op=dist._make_nccl_premul_sum(2.0))


@body(sizes=(2,))
def all_reduce_of_odd_shapes(rank: int, world_size: int) -> Any:
    scalar, empty = torch.tensor(float(rank + 1)), torch.zeros(0, 3)
    dist.all_reduce(scalar)
    dist.all_reduce(empty)
    return plain(scalar), list(empty.shape)


@body(sizes=(2,))
def all_reduce_of_a_turned_tensor(rank: int, world_size: int) -> Any:
    turned = numbers(rank, (2, 3)).t()
    dist.all_reduce(turned)
    return plain(turned)


@body(sizes=(2,), finds=("mismatch",), differs="gloo adds up what lies in the gaps")
def all_reduce_of_a_tensor_with_gaps(rank: int, world_size: int) -> Any:
    whole = numbers(rank, (6,))
    dist.all_reduce(whole[::2])
    return plain(whole)


@body(sizes=(2,))
def all_reduce_of_sparse_tensors(rank: int, world_size: int) -> Any:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, rank + 1]]), torch.tensor([1.0, 2.0]), (3,))
    dist.all_reduce(sparse)
    return plain(sparse.to_dense()), caught(dist.all_reduce, sparse, op=dist.ReduceOp.MAX)


@body(sizes=(2,))
def all_reduce_of_views(rank: int, world_size: int) -> Any:
    """A contiguous slice in the middle of a larger tensor: its neighbours stay as they are."""
    whole = numbers(rank, (6,))
    dist.all_reduce(whole[2:4])
    return plain(whole)


@body()
def all_reduce_coalesced_old_style(rank: int, world_size: int) -> Any:
    tensors = [numbers(rank), numbers(rank, (2, 2))]
    dist.all_reduce_coalesced(tensors, op=dist.ReduceOp.MAX)
    return plain(tensors), caught(dist.all_reduce_coalesced, [numbers(rank), numbers(rank, dtype=torch.int32)])


@body()
def coalescing_manager_of_all_reduces(rank: int, world_size: int) -> Any:
    tensors = [numbers(rank), numbers(rank, (2, 2))]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    more = [numbers(rank, (2,)), numbers(rank, (4,))]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in more:
            dist.all_reduce(tensor)
    manager.wait()
    return plain(tensors), plain(more)


@body()
def reduce_to_each_root(rank: int, world_size: int) -> Any:
    got = []
    for root in range(world_size):
        tensor = numbers(rank)
        dist.reduce(tensor, dst=root, op=dist.ReduceOp.SUM)
        got.append(plain(tensor) if rank == root else "left to the backend")
    tensor = numbers(rank, dtype=torch.int32)
    dist.reduce(tensor, group_dst=1, op=dist.ReduceOp.MIN)
    return got, plain(tensor) if rank == 1 else None


# -- gathering and scattering --------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def all_gather_into_a_list(rank: int, world_size: int) -> Any:
    mine = numbers(rank, (2, 2))
    out = empties(mine, world_size)
    dist.all_gather(out, mine)
    return plain(out)


@body()
def all_gather_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(dtype: torch.dtype) -> Any:
        mine = numbers(rank, dtype=dtype)
        out = empties(mine, world_size)
        dist.all_gather(out, mine)
        return out

    return {str(dtype): caught(one, dtype) for dtype in DTYPES}


@body(sizes=(2,))
def all_gather_of_odd_tensors(rank: int, world_size: int) -> Any:
    def one(mine: torch.Tensor, out: list[torch.Tensor]) -> Any:
        dist.all_gather(out, mine)
        return out

    turned = numbers(rank, (2, 3)).t()
    return {
        "scalar": caught(one, torch.tensor(float(rank)), [torch.zeros(()) for _ in range(world_size)]),
        "empty": caught(one, torch.zeros(0), [torch.zeros(0) for _ in range(world_size)]),
        "strided input": caught(one, turned, [torch.zeros(3, 2) for _ in range(world_size)]),
        "strided outputs": caught(one, turned.contiguous(), [torch.zeros(2, 3).t() for _ in range(world_size)]),
    }


@body()
def all_gather_into_tensor_stacked_and_flat(rank: int, world_size: int) -> Any:
    mine = numbers(rank, (2, 3))
    flat, stacked = torch.zeros(2 * world_size, 3), torch.zeros(world_size, 2, 3)
    dist.all_gather_into_tensor(flat, mine)
    return plain(flat), caught(dist.all_gather_into_tensor, stacked, mine), plain(stacked)


@body()
def all_gather_into_tensor_of_odd_tensors(rank: int, world_size: int) -> Any:
    out = torch.zeros(2 * world_size, 2)
    return (
        caught(dist.all_gather_into_tensor, torch.zeros(world_size), torch.tensor(float(rank))),
        caught(dist.all_gather_into_tensor, out, numbers(rank, (2, 2)).t()), plain(out),
        caught(dist.all_gather_into_tensor, torch.zeros(0), torch.zeros(0)),
    )  # fmt: skip


@body()
def all_gather_of_several_at_once(rank: int, world_size: int) -> Any:
    inputs = [numbers(rank), numbers(rank, (2, 2))]
    rows = [[torch.zeros_like(t) for t in inputs] for _ in range(world_size)]
    old = caught(dist.all_gather_coalesced, rows, inputs)
    outputs = [torch.zeros(3 * world_size), torch.zeros(2 * world_size, 2)]
    with dist._coalescing_manager():
        for output, source in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, source)
    return old, plain(rows), plain(outputs)


@body()
def gather_to_each_root(rank: int, world_size: int) -> Any:
    got = []
    for root in range(world_size):
        mine = numbers(rank)
        out = empties(mine, world_size) if rank == root else None
        dist.gather(mine, out, dst=root)
        got.append(plain(out))
    mine = numbers(rank)
    out = empties(mine, world_size) if rank == 1 else None
    dist.gather(mine, out, group_dst=1)
    return got, plain(out)


@body()
def scatter_from_each_root(rank: int, world_size: int) -> Any:
    got = []
    for root in range(world_size):
        out = torch.zeros(3)
        dist.scatter(out, [numbers(peer + 10) for peer in range(world_size)] if rank == root else None, src=root)
        got.append(plain(out))
    return got


@body()
def gather_and_scatter_on_the_wrong_rank(rank: int, world_size: int) -> Any:
    mine, tensors = numbers(rank), empties(numbers(rank), world_size)
    return (
        caught(dist.gather, mine, tensors, dst=(rank + 1) % world_size),
        caught(dist.gather, mine, None, dst=rank),
        caught(dist.scatter, mine, tensors, src=(rank + 1) % world_size),
        caught(dist.scatter, mine, None, src=rank),
    )


@body()
def reduce_scatter_of_lists(rank: int, world_size: int) -> Any:
    got = {}
    for op in ("SUM", "MAX", "PRODUCT"):
        out = torch.zeros(2)
        dist.reduce_scatter(out, [numbers(rank + peer, (2,)) for peer in range(world_size)], getattr(dist.ReduceOp, op))
        got[op] = plain(out)
    return got


@body()
def reduce_scatter_tensor_flat_and_stacked(rank: int, world_size: int) -> Any:
    flat, stacked = torch.zeros(2, 3), torch.zeros(2)
    dist.reduce_scatter_tensor(flat, numbers(rank, (2 * world_size, 3)), op=dist.ReduceOp.MIN)
    return plain(flat), caught(dist.reduce_scatter_tensor, stacked, numbers(rank, (world_size, 2))), plain(stacked)


@body()
def reduce_scatter_of_several_at_once(rank: int, world_size: int) -> Any:
    outputs = [torch.zeros(2), torch.zeros(1, 3)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(outputs[0], numbers(rank, (2 * world_size,)))
        dist.reduce_scatter_tensor(outputs[1], numbers(rank, (world_size, 3)))
    return plain(outputs)


@body(sizes=(2,))
def reduce_scatter_of_odd_tensors(rank: int, world_size: int) -> Any:
    def tensor(out: torch.Tensor, source: torch.Tensor) -> Any:
        dist.reduce_scatter_tensor(out, source)
        return out

    return {
        "int": caught(tensor, torch.zeros(2, dtype=torch.int64), numbers(rank, (4,), torch.int64)),
        "half": caught(tensor, torch.zeros(2, dtype=torch.half), numbers(rank, (4,), torch.half)),
        "empty": caught(tensor, torch.zeros(0), torch.zeros(0)),
        "strided": caught(tensor, torch.zeros(3, 1), numbers(rank, (2, 6)).t().contiguous().t().t()[:, :1]),
        "dtypes": caught(tensor, torch.zeros(2, dtype=torch.int64), numbers(rank, (4,)))[:36],
    }


@body(sizes=(2,))
def rooted_collectives_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(op: str, dtype: torch.dtype) -> Any:
        mine = numbers(rank, dtype=dtype)
        many = [numbers(peer, dtype=dtype) for peer in range(world_size)]
        if op == "gather":
            dist.gather(mine, many if rank == 1 else None, dst=1)
        elif op == "scatter":
            dist.scatter(mine, many if rank == 1 else None, src=1)
        elif op == "reduce":
            dist.reduce(mine, dst=1)
        else:
            dist.reduce_scatter(mine, many)
        return many if op == "gather" and rank == 1 else mine if op != "reduce" or rank == 1 else None

    ops = ("gather", "scatter", "reduce", "reduce_scatter")
    return {(op, str(dtype)): caught(one, op, dtype) for op in ops for dtype in DTYPES}


# -- all_to_all ----------------------------------------------------------------------------------------------------


@body()
def all_to_all_of_lists(rank: int, world_size: int) -> Any:
    sources = [numbers(rank * world_size + peer) for peer in range(world_size)]
    out = empties(sources[0], world_size)
    return caught(dist.all_to_all, out, sources), plain(out)


@body()
def all_to_all_of_uneven_lists(rank: int, world_size: int) -> Any:
    """Rank r sends r + peer elements to each peer, so none to rank 0 from rank 0."""
    sources = [numbers(rank * world_size + peer, (rank + peer,)) for peer in range(world_size)]
    out = [torch.zeros(rank + peer) for peer in range(world_size)]
    return caught(dist.all_to_all, out, sources), plain(out)


@body()
def all_to_all_single_even(rank: int, world_size: int) -> Any:
    source = numbers(rank, (world_size * 2, 2))
    out = torch.zeros_like(source)
    dist.all_to_all_single(out, source)
    return plain(out)


@body()
def all_to_all_single_uneven(rank: int, world_size: int) -> Any:
    in_splits = [rank + peer for peer in range(world_size)]
    out_splits = [rank + peer for peer in range(world_size)]
    source, out = numbers(rank, (sum(in_splits), 2)), torch.zeros(sum(out_splits), 2)
    dist.all_to_all_single(out, source, out_splits, in_splits)
    return plain(out)


@body()
def all_to_all_single_to_one_rank(rank: int, world_size: int) -> Any:
    """All rows go to rank 0; the others receive nothing."""
    source = numbers(rank, (2,), torch.int64)
    out = torch.zeros(2 * world_size if rank == 0 else 0, dtype=torch.int64)
    out_splits = [2 if rank == 0 else 0] * world_size
    dist.all_to_all_single(out, source, out_splits, [2] + [0] * (world_size - 1))
    return plain(out)


@body()
def all_to_all_single_of_each_dtype(rank: int, world_size: int) -> Any:
    def one(dtype: torch.dtype) -> Any:
        source = numbers(rank, (world_size,), dtype)
        out = torch.zeros_like(source)
        dist.all_to_all_single(out, source)
        return out

    return {str(dtype): caught(one, dtype) for dtype in DTYPES}


@body(sizes=(2,))
def all_to_all_single_of_odd_tensors(rank: int, world_size: int) -> Any:
    def one(out: torch.Tensor, source: torch.Tensor) -> Any:
        dist.all_to_all_single(out, source)
        return out

    turned = numbers(rank, (3, 2)).t()
    return {
        "empty": caught(one, torch.zeros(0), torch.zeros(0)),
        "strided": caught(one, torch.zeros(2, 3), turned),
    }


@body(sizes=(2,), finds=("mismatch",), differs="gloo writes the rows in the order of the memory")
def all_to_all_single_into_a_turned_tensor(rank: int, world_size: int) -> Any:
    out = torch.zeros(3, 2).t()
    dist.all_to_all_single(out, numbers(rank, (2, 3)))
    return plain(out)


@body(sizes=(2,), differs="gloo leaves the rest out without a word; the simulator says what NCCL says")
def all_to_all_single_with_a_rest(rank: int, world_size: int) -> Any:
    rows = world_size * 2 + 1
    return caught(dist.all_to_all_single, torch.zeros(rows), torch.zeros(rows)), caught(
        dist.all_to_all_single, torch.zeros(()), torch.zeros(())
    )


# -- barrier, objects ----------------------------------------------------------------------------------------------


@body(sizes=(1, 2, 4))
def barrier_and_its_work(rank: int, world_size: int) -> Any:
    dist.barrier()
    work = dist.barrier(async_op=True)
    assert work is not None
    return work.wait()


@body(sizes=(1, 2, 4))
def objects_of_all_kinds(rank: int, world_size: int) -> Any:
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    shared = [("root", rank), rank, None]
    dist.broadcast_object_list(shared, src=world_size - 1)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [f"for {peer}" for peer in range(world_size)] if rank == 0 else None, src=0)
    collected: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object([rank] * 2, collected, dst=0)
    return plain(gathered), plain(shared), part, plain(collected)


@body()
def objects_with_wrong_arguments(rank: int, world_size: int) -> Any:
    return (
        caught(dist.scatter_object_list, [], [1] * world_size if rank == 0 else None, src=0),
        caught(dist.gather_object, rank, None, dst=rank),
    )


# -- arguments -----------------------------------------------------------------------------------------------------


@body()
def lists_of_the_wrong_length(rank: int, world_size: int) -> Any:
    mine, short = numbers(rank), empties(numbers(rank), world_size - 1)
    return {
        "all_gather": caught(dist.all_gather, short, mine),
        "all_gather none": caught(dist.all_gather, [], mine),
        "gather": caught(dist.gather, mine, short, dst=rank),
        "scatter": caught(dist.scatter, mine, short, src=rank),
        "reduce_scatter": caught(dist.reduce_scatter, mine, short),
        "all_to_all": caught(dist.all_to_all, short, short),
        "all_to_all one side": caught(dist.all_to_all, [*short, mine], short),
        "all_gather_into_tensor": caught(dist.all_gather_into_tensor, torch.zeros(1), mine),
        "reduce_scatter_tensor": caught(dist.reduce_scatter_tensor, mine, torch.zeros(1)),
    }


@body()
def splits_that_do_not_add_up(rank: int, world_size: int) -> Any:
    rows = torch.zeros(4 * world_size, 2)
    return {
        "too few": caught(dist.all_to_all_single, rows, rows, [4] * (world_size - 1), [4] * world_size),
        "sum": caught(dist.all_to_all_single, rows, rows, [4] * world_size, [3] * world_size),
        "dtype": caught(dist.all_to_all_single, rows.half(), rows),
    }


@body()
def tensors_of_the_wrong_kind(rank: int, world_size: int) -> Any:
    mine = numbers(rank)
    return {
        "no tensor": caught(dist.all_reduce, [1.0]),
        "broadcast no tensor": caught(dist.broadcast, 3, src=0),
        "dtypes": caught(dist.all_gather, empties(mine.half(), world_size), mine),
        "shapes": caught(dist.all_gather, empties(numbers(rank, (4,)), world_size), mine),
        "complex max": caught(dist.all_reduce, numbers(rank, dtype=torch.complex64), op=dist.ReduceOp.MAX),
        "op": caught(dist.all_reduce, mine, op="sum"),
        "list of none": caught(dist.all_gather, [None] * world_size, mine),
        "op number": caught(dist.all_reduce, mine, op=3),
        "meta": caught(dist.all_reduce, torch.zeros(2, device="meta")),
    }


@body()
def roots_outside_the_group(rank: int, world_size: int) -> Any:
    mine, out = numbers(rank), empties(numbers(rank), world_size)
    return {
        "broadcast": caught(dist.broadcast, mine, src=world_size),
        "broadcast -1": caught(dist.broadcast, mine, group_src=-1),
        "reduce": caught(dist.reduce, mine, dst=world_size),
        "gather": caught(dist.gather, mine, None, dst=world_size),
        "scatter": caught(dist.scatter, mine, None, src=world_size),
        "group_dst": caught(dist.gather, mine, out if rank == 0 else None, dst=0, group_dst=0),
        "objects": caught(dist.broadcast_object_list, [1], src=world_size),
    }


# -- autograd and modes --------------------------------------------------------------------------------------------


@body(sizes=(2,))
def tensors_that_require_grad(rank: int, world_size: int) -> Any:
    """Collectives write below autograd: no graph, no version bump, no error."""
    leaf = numbers(rank).requires_grad_()
    product = leaf * 2
    dist.all_reduce(leaf)
    dist.broadcast(product, src=0)
    out = [torch.zeros(3) for _ in range(world_size)]
    dist.all_gather(out, leaf)
    product.sum().backward()
    return (
        plain(leaf), leaf._version, plain(leaf.grad), plain(product), product._version, product.requires_grad,
        plain(out), out[0].requires_grad,
    )  # fmt: skip


@body(sizes=(2,))
def tensors_made_in_inference_mode(rank: int, world_size: int) -> Any:
    with torch.inference_mode():
        inside = numbers(rank)
        dist.all_reduce(inside)
    dist.all_reduce(inside)
    outside = numbers(rank)
    with torch.inference_mode():
        dist.broadcast(outside, src=0)
        gathered = torch.zeros(3 * world_size)
        dist.all_gather_into_tensor(gathered, outside)
    outside.add_(1)
    return plain(inside), inside.is_inference(), plain(outside), outside.is_inference(), gathered.is_inference()


@body(sizes=(2,))
def a_mode_on_one_rank_sees_only_its_own_calls(rank: int, world_size: int) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += any(name in str(func) for name in ("add", "copy", "clone", "view", "split"))
            return func(*args, **(kwargs or {}))

    tensor, out = numbers(rank, (world_size,)), torch.zeros(world_size)
    with Counting() as mode:
        if rank == 0:
            tensor.add_(1)
        dist.all_reduce(tensor)
        dist.all_to_all_single(out, tensor)
    return plain(tensor), plain(out), mode.seen


@body(sizes=(2,))
def a_default_device_on_one_rank(rank: int, world_size: int) -> Any:
    tensor = numbers(rank)
    with torch.device("meta" if rank == 1 else "cpu"):
        dist.all_reduce(tensor)
        dist.monitored_barrier()
        dist.barrier()
    return plain(tensor)


@body(sizes=(2,))
def grad_mode_after_a_collective(rank: int, world_size: int) -> Any:
    with torch.no_grad():
        dist.all_reduce(numbers(rank))
        inside = torch.is_grad_enabled()
    dist.all_reduce(numbers(rank))
    return inside, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@body()
def values_after_many_collectives(rank: int, world_size: int) -> Any:
    total = torch.zeros(4, dtype=torch.int64)
    for step in range(50):
        part = numbers(rank + step, (4,), torch.int64)
        dist.all_reduce(part)
        dist.broadcast(part, src=step % world_size)
        total += part
    return plain(total)
