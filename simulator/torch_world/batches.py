"""batch_isend_irecv on simulated groups: torch coalesces a batch on its own class of group only, not on a subclass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


def install_batches(patches: Patches, sim: Simulation) -> None:
    """Let groups that can coalesce (`nccl`) get a batch as one unit."""
    real: Callable[[Any], Any] = c10d.batch_isend_irecv

    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        group = _coalescing_group(p2p_op_list) if sim.here() is not None else None
        if group is None:
            return real(p2p_op_list)
        c10d._check_p2p_op_list(p2p_op_list)
        with c10d._coalescing_manager(group, p2p_op_list[0].tensor.device, async_ops=True) as manager:
            for op in p2p_op_list:
                peer = {"group_dst" if op.op is c10d.isend else "group_src": op.group_peer}
                op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        return manager.works

    for module in (c10d, dist):
        patches.set(module, "batch_isend_irecv", batch_isend_irecv)


def _coalescing_group(ops: Any) -> Any:
    """The group of a batch, if it is one that can coalesce. What is no batch is left to torch to refuse."""
    if not (isinstance(ops, list) and ops and isinstance(ops[0], c10d.P2POp)):
        return None
    group: Any = ops[0].group or c10d._get_default_group()
    return group if group.half_for([ops[0].tensor]).supports_coalescing else None
