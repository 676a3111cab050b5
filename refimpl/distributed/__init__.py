"""Process groups of a tensor, pipeline, expert and context parallel model.  Map of the code:

    layout          who belongs to which sub-group: pure rank arithmetic, no torch
    contract        with which parameters each group is created, per role and rule set: pure data, no torch
    group           one sub-group of this rank: creates its process groups, runs its collectives
    tensor_dict     a dictionary with tensors in it as picklable metadata plus a list of tensors
    parallel_state  the sub-groups of this rank, and the accessors that model code calls
    bootstrap       from arguments to a running rank: `bring_up(BootstrapArgs(...))`
    topology        which ranks share a node with this one
    gatherer        the all-gather of tensor-parallel slices, with its guarded topology probe
    cohort          who asks to come into a running deployment, and whether that can be: pure data, no torch
    registry        the store of an elastic deployment: who asks, who is answered, what was decided
    membership      the groups that change while they are in use, and the calls of `mooncake.pg` that change them
    life            where one rank is in its elastic life, and what may follow
    admission       one cohort's way into the groups: let in, configure, synchronise, or dismiss
    elastic         a serving rank: grow, recover, roll back, as a state machine that all ranks go through
    joiner          a rank that comes into a deployment that serves already: `join_deployment(args, launch_id=...)`

Imports go from the bottom of this list to the top only (topology and gatherer stand on group alone).

    from refimpl.distributed import BootstrapArgs, ParallelLayout, bring_up, get_tp_group

    layout = ParallelLayout(tp=4, moe_ep=4)
    bring_up(BootstrapArgs(layout=layout, cohort_rank=2, backend="gloo", init_method="tcp://..."))
    get_tp_group().all_reduce(x)

All names below are loaded on first use, so that `refimpl.distributed.layout` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refimpl.distributed.bootstrap import BootstrapArgs, bring_up
    from refimpl.distributed.cohort import Attention, Cohort, Deployment, why_not
    from refimpl.distributed.contract import (
        ContractRules,
        CreationPlan,
        GroupOptions,
        Role,
        creation_plan,
        edit_plan,
        forget,
        group_contract,
    )
    from refimpl.distributed.elastic import Change, ElasticMember
    from refimpl.distributed.gatherer import MultimemAllGatherer
    from refimpl.distributed.group import GroupCoordinator
    from refimpl.distributed.joiner import join_deployment
    from refimpl.distributed.layout import (
        SUB_GROUPS,
        ParallelLayout,
        Rank,
        SubGroup,
    )
    from refimpl.distributed.life import Life, State
    from refimpl.distributed.membership import ReservedMask, reserved_masks
    from refimpl.distributed.parallel_state import (
        ParallelState,
        destroy_distributed_environment,
        destroy_model_parallel,
        get_attn_cp_group,
        get_attn_tp_group,
        get_dcp_group,
        get_group,
        get_moe_dp_group,
        get_moe_ep_group,
        get_moe_tp_group,
        get_pdmux_prefill_tp_group,
        get_pp_group,
        get_self_pp_group,
        get_shared_experts_tp_group,
        get_tp_group,
        get_world_group,
        init_distributed_environment,
        initialize_model_parallel,
        model_parallel_is_initialized,
        pdmux_prefill_lane,
    )
    from refimpl.distributed.registry import ElasticError, Patience
    from refimpl.distributed.topology import in_the_same_node_as

__all__ = [
    "SUB_GROUPS",
    "Attention",
    "BootstrapArgs",
    "Change",
    "Cohort",
    "ContractRules",
    "CreationPlan",
    "Deployment",
    "ElasticError",
    "ElasticMember",
    "GroupCoordinator",
    "GroupOptions",
    "Life",
    "MultimemAllGatherer",
    "ParallelLayout",
    "ParallelState",
    "Patience",
    "Rank",
    "ReservedMask",
    "Role",
    "State",
    "SubGroup",
    "bring_up",
    "creation_plan",
    "destroy_distributed_environment",
    "destroy_model_parallel",
    "edit_plan",
    "forget",
    "get_attn_cp_group",
    "get_attn_tp_group",
    "get_dcp_group",
    "get_group",
    "get_moe_dp_group",
    "get_moe_ep_group",
    "get_moe_tp_group",
    "get_pdmux_prefill_tp_group",
    "get_pp_group",
    "get_self_pp_group",
    "get_shared_experts_tp_group",
    "get_tp_group",
    "get_world_group",
    "group_contract",
    "in_the_same_node_as",
    "init_distributed_environment",
    "initialize_model_parallel",
    "join_deployment",
    "model_parallel_is_initialized",
    "pdmux_prefill_lane",
    "reserved_masks",
    "why_not",
]

# Where names are looked for, in this order: those that need no torch come first, and a module after what it imports.
_MODULES = (
    *("layout", "contract", "cohort", "group", "parallel_state", "bootstrap", "topology", "gatherer"),
    *("life", "registry", "membership", "admission", "elastic", "joiner"),
)


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        found = vars(importlib.import_module(f"{__name__}.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
