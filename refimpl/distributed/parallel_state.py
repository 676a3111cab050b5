"""The sub-groups of this rank, and the accessors that model code calls.

    init_distributed_environment(rank=0, world_size=8, plan=plan)   # default group and WORLD
    initialize_model_parallel(layout, plan)                         # all sub-groups of the layout
    get_tp_group().all_reduce(x)

The state of a rank hangs on its default process group: a registry maps the one to the other, weakly, so that the state
goes when the group goes.  Many ranks can therefore live in one process, each with a default group of its own, and a
thread that a rank starts finds the state of its rank.  The registry is the only module-level state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from refimpl.distributed.backend_options import backend_options
from refimpl.distributed.contract import CreationPlan, GroupOptions
from refimpl.distributed.group import GroupCoordinator
from refimpl.distributed.layout import ParallelLayout


@dataclass(slots=True, weakref_slot=True, eq=False)
class ParallelState:
    """What one rank knows of its groups."""

    world: GroupCoordinator
    """All ranks of the deployment, in process groups other than the default one."""
    layout: ParallelLayout | None = None
    """Widths of this cohort; None until the model parallel groups are there."""
    groups: dict[str, GroupCoordinator] = field(default_factory=dict)
    """From name to group; an alias maps to the group that serves it."""
    in_prefill_lane: bool = False
    """True while `get_tp_group` answers with the duplicate of the tp group."""


_STATES: WeakKeyDictionary[dist.ProcessGroup, ParallelState] = WeakKeyDictionary()


def init_distributed_environment(
    *, rank: int, world_size: int, plan: CreationPlan, init_method: str = "env://"
) -> ParallelState:
    """Create the default process group, unless torch has one, and the WORLD coordinator over ranks 0 to world_size - 1.

    Collective over all ranks that the default group starts with.
    Raises: RuntimeError when WORLD exists, or torch's default group has another rank or size.
    """
    if dist.is_initialized():
        _check_default_group(rank, world_size)
    else:
        _init_default_group(rank, world_size, plan["default"], init_method)
    default = _default_group()
    if default in _STATES:
        raise RuntimeError("WORLD exists already; call destroy_distributed_environment first")
    # WORLD names all ranks whatever the cohort, so it has no offset and never synchronises locally.
    state = ParallelState(GroupCoordinator("world", [range(world_size)], plan["world"]))
    _STATES[default] = state
    return state


def _init_default_group(rank: int, world_size: int, options: GroupOptions, init_method: str) -> None:
    timeout = None if options.timeout_s is None else timedelta(seconds=options.timeout_s)
    dist.init_process_group(
        options.backend,
        init_method=init_method,
        timeout=timeout,
        world_size=world_size,
        rank=rank,
        pg_options=backend_options(world_size, options, torch.device(options.device)).pg_options,
    )


def _check_default_group(rank: int, world_size: int) -> None:
    found = (dist.get_rank(), dist.get_world_size())
    if found != (rank, world_size):
        raise RuntimeError(
            f"torch's default group has rank {found[0]} of {found[1]}, asked for rank {rank} of {world_size}; "
            "destroy it, or ask for what it has"
        )


def initialize_model_parallel(layout: ParallelLayout, plan: CreationPlan) -> ParallelState:
    """Create each sub-group of `layout` as `plan` says, in the order of `SUB_GROUPS`.

    Collective over the ranks that `plan` lets synchronise: all of the default group, or this launch cohort.
    Raises: RuntimeError when groups exist already or the layout does not fill the ranks; ValueError when a sub-group
    does not hold this rank.
    """
    state = _state()
    if state.groups:
        raise RuntimeError("model parallel groups exist already; call destroy_model_parallel first")
    _check_fills(layout, plan, state.world.world_size)
    for name in layout.created():
        options = plan[name]
        lists = layout.rank_lists(name, options.rank_offset)
        state.groups[name] = GroupCoordinator(name, lists, options)
    for name, target in layout.resolved().items():
        state.groups[name] = state.groups[target]
    state.layout = layout
    return state


def _check_fills(layout: ParallelLayout, plan: CreationPlan, world_size: int) -> None:
    """A launch has no ranks to spare; a joiner's cohort is a part of the world."""
    options = [plan[name] for name in layout.created()]
    joins = any(one.recovered_rank or one.rank_offset for one in options)
    if not joins and layout.world_size != world_size:
        raise RuntimeError(
            f"tp={layout.tp} x pp={layout.pp} x replicas={layout.replicas} is {layout.world_size} ranks "
            f"but the world has {world_size}; give widths whose product is the world size"
        )


def model_parallel_is_initialized() -> bool:
    """True from the end of `initialize_model_parallel` until `destroy_model_parallel`."""
    state = _STATES.get(_default_group()) if dist.is_initialized() else None
    return state is not None and state.layout is not None


def destroy_model_parallel() -> None:
    """Destroy the sub-groups of this rank, not WORLD.  Does nothing when there are none."""
    state = _STATES.get(_default_group()) if dist.is_initialized() else None
    if state is None:
        return
    groups, state.groups, state.layout = state.groups, {}, None
    for group in groups.values():
        group.destroy()


def destroy_distributed_environment() -> None:
    """Destroy the sub-groups, WORLD and the default process group of this rank.  Does nothing when there are none."""
    if not dist.is_initialized():
        return
    destroy_model_parallel()
    state = _STATES.pop(_default_group(), None)
    if state is not None:
        state.world.destroy()
    dist.destroy_process_group()


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None, "torch has a default group from init_process_group on"
    return group


def _state() -> ParallelState:
    state = _STATES.get(_default_group()) if dist.is_initialized() else None
    if state is None:
        raise RuntimeError("this rank has no WORLD group; call bring_up or init_distributed_environment first")
    return state


def get_group(name: str) -> GroupCoordinator:
    """The sub-group of that name in `SUB_GROUPS`.  Raises: RuntimeError when this rank has none."""
    state = _state()
    if name not in state.groups:
        found = ", ".join(state.groups) or "none; call initialize_model_parallel first"
        raise RuntimeError(f"this rank has no sub-group {name!r}; it has {found}")
    return state.groups[name]


@contextmanager
def pdmux_prefill_lane() -> Iterator[None]:
    """Inside, `get_tp_group` answers with the duplicate of the tp group."""
    state = _state()
    before, state.in_prefill_lane = state.in_prefill_lane, True
    try:
        yield
    finally:
        state.in_prefill_lane = before


def get_world_group() -> GroupCoordinator:
    """All ranks of the deployment."""
    return _state().world


def get_tp_group() -> GroupCoordinator:
    """Ranks of one pipeline stage; inside `pdmux_prefill_lane` their duplicate group."""
    return get_group("pdmux_prefill_tp" if _state().in_prefill_lane else "tp")


def get_pdmux_prefill_tp_group() -> GroupCoordinator:
    """The tp group once more, for the prefill lane."""
    return get_group("pdmux_prefill_tp")


def get_dcp_group() -> GroupCoordinator:
    """Neighbours that share one KV cache out while decoding."""
    return get_group("dcp")


def get_attn_cp_group() -> GroupCoordinator:
    """Ranks of one attention replica that hold the same heads of other tokens."""
    return get_group("attn_cp")


def get_attn_tp_group() -> GroupCoordinator:
    """Ranks that hold the heads of the same tokens."""
    return get_group("attn_tp")


def get_shared_experts_tp_group() -> GroupCoordinator:
    """Ranks that hold one copy of the shared experts."""
    return get_group("shared_experts_tp")


def get_moe_dp_group() -> GroupCoordinator:
    """Ranks that hold the same part of the same experts for other tokens."""
    return get_group("moe_dp")


def get_moe_ep_group() -> GroupCoordinator:
    """Ranks that hold the same part of other experts."""
    return get_group("moe_ep")


def get_moe_tp_group() -> GroupCoordinator:
    """Ranks that hold the parts of the same experts."""
    return get_group("moe_tp")


def get_pp_group() -> GroupCoordinator:
    """Ranks at the same place of each pipeline stage."""
    return get_group("pp")


def get_self_pp_group() -> GroupCoordinator:
    """This rank alone."""
    return get_group("self_pp")
