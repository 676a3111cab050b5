"""What one rank does and checks, for any way of running ranks: real processes over gloo, or a simulation of them.

A body takes `(rank, world_size, init_method)`, uses torch.distributed and refimpl only, asserts inside, and leaves
nothing behind.  `BODIES` lists those that hold for each world size and on each backend; `PROBES` those that ask whether
ranks share a node, which a deployment on one Mooncake node may not survive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from refimpl.distributed import (
    SUB_GROUPS,
    BootstrapArgs,
    GroupCoordinator,
    GroupOptions,
    MultimemAllGatherer,
    ParallelLayout,
    ParallelState,
    Role,
    bring_up,
    creation_plan,
    destroy_distributed_environment,
    destroy_model_parallel,
    get_group,
    get_tp_group,
    get_world_group,
    in_the_same_node_as,
    init_distributed_environment,
    initialize_model_parallel,
    model_parallel_is_initialized,
)
from refimpl.distributed.parallel_state import pdmux_prefill_lane


@contextmanager
def refused(kind: type[Exception], text: str) -> Iterator[None]:
    """Passes when the block raises `kind` with `text` in its message."""
    message = "nothing was raised"
    try:
        yield
    except kind as error:
        message = str(error)
    assert text in message, f"expected {kind.__name__} with {text!r}: {message}"


@contextmanager
def running(
    rank: int, init_method: str, layout: ParallelLayout, *, device: str = "cpu", **options: Any
) -> Iterator[ParallelState]:
    """A launched rank whose tensors are on `device`, such as "cuda:{rank}"; brought down at the end.

    A rank that failed is left as it is: its peers wait for it anyway.
    """
    device = device.format(rank=rank)
    state = bring_up(BootstrapArgs(layout=layout, cohort_rank=rank, init_method=init_method, device=device, **options))
    with nullcontext() if device == "cpu" else torch.device(device):
        yield state
    get_world_group().barrier()
    destroy_distributed_environment()


def whole_layout(world_size: int) -> ParallelLayout:
    """All that fits into `world_size` ranks, a power of two: stages from four on, each sub-group from two on."""
    pp = 2 if world_size >= 4 else 1
    tp = world_size // pp
    half = min(2, tp)
    return ParallelLayout(tp=tp, pp=pp, attn_dp=half, moe_ep=half, dcp=half, shared_experts_tp=tp // half, pdmux=True)


def groups_match_the_layout(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Each sub-group holds the ranks that the layout says, and works."""
    layout = whole_layout(world_size)
    with running(rank, init_method, layout, **options) as state:
        assert get_world_group().ranks == tuple(range(world_size))
        for row in SUB_GROUPS:
            if layout.alias_of(row.name) is None:
                with refused(RuntimeError, f"no sub-group {row.name!r}"):
                    get_group(row.name)
                continue
            group = get_group(row.name)
            assert group is state.groups[layout.resolved()[row.name]]
            assert group.ranks == next(ranks for ranks in layout.rank_lists(row.name) if rank in ranks)
            assert group.ranks[group.rank_in_group] == rank
            total = group.all_reduce(torch.tensor([float(rank)]))
            assert total.item() == sum(group.ranks)


def neighbours_are_right(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """First, last, next and previous ranks are global ranks, in a ring."""
    with running(rank, init_method, whole_layout(world_size), **options):
        world = get_world_group()
        assert (world.first_rank, world.last_rank) == (0, world_size - 1)
        assert (world.next_rank, world.prev_rank) == ((rank + 1) % world_size, (rank - 1) % world_size)
        assert (world.is_first_rank, world.is_last_rank) == (rank == 0, rank == world_size - 1)


def tensor_collectives_are_right(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Each collective against the value that plain arithmetic gives."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        group = get_tp_group()
        _check_reductions(group)
        _check_gathers(group)
        for src in range(world_size):
            assert group.broadcast(torch.full((2,), rank), src).tolist() == [src, src]


def _check_reductions(group: GroupCoordinator) -> None:
    rank, size = group.rank_in_group, group.world_size
    x = torch.full((2, 3), float(rank + 1))
    assert group.all_reduce(x) is x
    assert torch.equal(x, torch.full((2, 3), size * (size + 1) / 2))
    assert group.all_reduce(torch.tensor(rank), dist.ReduceOp.MAX).item() == size - 1

    whole = torch.arange(6.0 * size).reshape(3, 2 * size) * (rank + 1)
    part = group.reduce_scatter(whole, dim=-1)
    summed = torch.arange(6.0 * size).reshape(3, 2 * size) * (size * (size + 1) / 2)
    assert part.is_contiguous()
    assert torch.equal(part, summed[:, 2 * rank : 2 * rank + 2])
    if size > 1:
        with refused(ValueError, f"x has {size + 1} elements along dim 0; give a multiple of {size}"):
            group.reduce_scatter(torch.zeros(size + 1))


def _check_gathers(group: GroupCoordinator) -> None:
    rank, size = group.rank_in_group, group.world_size
    parts = [torch.arange(6).reshape(2, 3) + 10 * r for r in range(size)]
    for dim in (0, 1, -1, -2):
        gathered = group.all_gather(parts[rank], dim)
        assert gathered.is_contiguous()
        assert torch.equal(gathered, torch.cat(parts, dim))
    assert torch.equal(group.all_gather(parts[rank].t(), 0), torch.cat([part.t() for part in parts], 0))
    with refused(ValueError, "dim is 2 but x has 2 dimensions"):
        group.all_gather(parts[rank], 2)

    sizes = [2 * r for r in range(size)]
    ragged = [torch.full((rows, 2), r, dtype=torch.int64) for r, rows in enumerate(sizes)]
    assert torch.equal(group.all_gatherv(ragged[rank], sizes), torch.cat(ragged))
    with refused(ValueError, f"sizes has {size + 1} entries; give one per member, {size}"):
        group.all_gatherv(ragged[rank], [*sizes, 0])


def objects_and_dictionaries_arrive(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Objects and dictionaries with tensors, from one to all and round the ring."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        group = get_tp_group()
        for src in range(world_size):
            assert group.broadcast_object({"from": rank} if rank == src else None, src) == {"from": src}
            _check_dict(group.broadcast_tensor_dict(_sample(rank) if rank == src else None, src), src)
        with refused(ValueError, f"src is {world_size}; give a group rank from 0 to {world_size - 1}"):
            group.broadcast_object(1, world_size)
        with refused(ValueError, f"dst is {rank}, this rank itself"):
            group.send_object(1, rank)
        if world_size > 1:
            _pass_round(group)


def _sample(rank: int) -> dict[str, Any]:
    return {
        "hidden": torch.arange(6, dtype=torch.float64).reshape(2, 3).t() + rank,
        "empty": torch.empty(0, 4, dtype=torch.int32),
        "flag": torch.tensor(bool(rank % 2)),
        "name": f"of {rank}",
    }


def _check_dict(found: dict[str, Any], rank: int) -> None:
    expected = _sample(rank)
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)
        else:
            assert found[key] == value


def _pass_round(group: GroupCoordinator) -> None:
    """Even ranks send first, so that no send waits for another one."""
    rank, before = group.rank_in_group, (group.rank_in_group - 1) % group.world_size

    def send() -> None:
        group.send_object(("token", rank))
        group.send_tensor_dict(_sample(rank))
        group.send(torch.tensor([rank]))

    def receive() -> None:
        assert group.recv_object() == ("token", before)
        _check_dict(group.recv_tensor_dict(), before)
        assert group.recv(torch.tensor([-1])).tolist() == [before]

    for step in (send, receive) if rank % 2 == 0 else (receive, send):
        step()


def same_node_is_found(
    rank: int, world_size: int, init_method: str, *, node_of: Sequence[int] | None = None, **options: Any
) -> None:
    """Each rank as the source once.  `node_of`: the node of each rank, by default one node for all."""
    nodes = node_of or [0] * world_size
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        cpu_group = get_tp_group().cpu_group
        for source in range(world_size):
            assert in_the_same_node_as(cpu_group, source) == [node == nodes[source] for node in nodes]
        with refused(ValueError, f"source_rank is -1; give a group rank from 0 to {world_size - 1}"):
            in_the_same_node_as(cpu_group, -1)


def gatherer_falls_back_to_the_group(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """On one node nothing is probed, and without a kernel the group gathers; one rank alone reads no settings."""

    def unpublished() -> int:
        raise RuntimeError("the settings are not published")

    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        part = torch.full((3, 2), float(rank))
        whole = torch.arange(float(world_size)).repeat_interleave(2).repeat(3, 1)
        gather = MultimemAllGatherer(get_tp_group(), max_tokens=8, nnodes=lambda: 1)
        assert gather.multimem_enabled
        assert torch.equal(gather(part), whole)
        alone = MultimemAllGatherer(get_group("self_pp"), max_tokens=8, nnodes=unpublished)
        assert alone.multimem_enabled
        assert torch.equal(alone(part), part)
        if world_size > 1:
            with refused(RuntimeError, "not published"):
                MultimemAllGatherer(get_tp_group(), max_tokens=8, nnodes=unpublished)


def gatherer_probes_and_falls_back(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Told of two nodes, or without its guard, the gatherer probes; all ranks are on one node, so multimem stays on."""
    with running(rank, init_method, ParallelLayout(tp=world_size), **options):
        for nodes, guard in ((2, True), (1, False)):
            gather = MultimemAllGatherer(get_tp_group(), max_tokens=8, nnodes=lambda n=nodes: n, guard=guard)
            assert gather.multimem_enabled
            assert gather(torch.full((3, 2), float(rank))).shape == (3, 2 * world_size)


def state_belongs_to_the_rank(rank: int, world_size: int, init_method: str, **options: Any) -> None:
    """Threads of a rank find its groups; without groups accessors say what to call; a second start works."""
    with refused(RuntimeError, "this rank has no WORLD group; call bring_up"):
        get_tp_group()
    layout = ParallelLayout(tp=world_size, pdmux=True)
    with running(rank, init_method, layout, **options) as state:
        assert _in_thread(get_tp_group) is get_tp_group() is state.groups["tp"]
        with pdmux_prefill_lane():
            assert get_tp_group() is get_group("pdmux_prefill_tp") is not state.groups["tp"]
        assert get_tp_group() is state.groups["tp"]
        with refused(RuntimeError, "model parallel groups exist already"):
            initialize_model_parallel(layout, {})
        get_world_group().barrier()
        destroy_model_parallel()
        assert not model_parallel_is_initialized()
        assert get_world_group() is state.world
        with refused(RuntimeError, "it has none; call initialize_model_parallel first"):
            get_tp_group()
    assert not dist.is_initialized()
    assert not model_parallel_is_initialized()
    destroy_distributed_environment()


def _in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def cohort_makes_its_groups_alone(rank: int, world_size: int, init_method: str, backend: str = "gloo") -> None:
    """The upper half creates its groups as a scale joiner does, with the lower half nowhere near that code.

    Both halves share a default group from the start, so this needs no backend that grows.
    """
    offset = world_size // 2
    layout = ParallelLayout(tp=world_size - offset, dcp=world_size - offset)
    base = GroupOptions(backend=backend)
    plan = creation_plan(layout, Role.SCALE_JOINER, rank_offset=offset, base=base)
    plan["default"] = plan["world"] = base
    init_distributed_environment(rank=rank, world_size=world_size, plan=plan, init_method=init_method)
    if rank >= offset:
        state = initialize_model_parallel(layout, plan)
        for name in layout.created():
            assert state.groups[name].ranks in layout.rank_lists(name, offset)
        assert get_tp_group().all_reduce(torch.tensor(1)).item() == layout.tp
    get_world_group().barrier()
    destroy_distributed_environment()


BODIES: tuple[Callable[..., None], ...] = (
    groups_match_the_layout,
    neighbours_are_right,
    tensor_collectives_are_right,
    objects_and_dictionaries_arrive,
    gatherer_falls_back_to_the_group,
    state_belongs_to_the_rank,
)
PROBES: tuple[Callable[..., None], ...] = (same_node_is_found, gatherer_probes_and_falls_back)
