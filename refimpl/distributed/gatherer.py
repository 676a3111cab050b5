"""The all-gather of tensor-parallel slices, by a kernel over symmetric memory where that can be, else by the group.

    gather = MultimemAllGatherer(get_tp_group(), max_tokens=512, nnodes=lambda: settings().nnodes)
    logits = gather(slice_of_logits)          # [T, H / W] -> [T, H]

Multimem reaches only the devices of one NVLink domain, so a group that spans nodes must not use it.  Whether it does is
a collective question (`in_the_same_node_as`), and one that can take a single-node Mooncake deployment down, so the
constructor asks it only when the answer can be "no".

All members must take the same path.  So every condition is one that all members know alike (the shape, the settings),
or is voted on (`refimpl.kernels.symmetric`).

Source: SGLang pull requests 29881 (the probe) and 30139 (its guard).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from refimpl.distributed.group import GroupCoordinator
from refimpl.distributed.topology import in_the_same_node_as
from refimpl.kernels.workspace import Workspace, why_not

logger = logging.getLogger(__name__)


class MultimemAllGatherer:
    """All-gather along the last dimension over a tensor parallel group.  Construction and calls are collective."""

    def __init__(
        self,
        tp_group: GroupCoordinator,
        *,
        max_tokens: int,
        enabled: bool = True,
        skip_entry_sync: bool = False,
        safe: bool = True,
        nnodes: Callable[[], int],
        guard: bool = True,
    ) -> None:
        """Decide whether multimem may be used.  Nothing is allocated before the first call.

        max_tokens: rows that the symmetric buffer holds, at the row size of the first call; longer inputs take the
            fallback.
        enabled: False for the fallback always, and no probe.
        skip_entry_sync: let the kernel start without a barrier among the members.  Sound only if between two calls,
            after the last read of the first result (with `safe`: after the first call), all members have been through
            another synchronisation of the same streams, such as the all_reduce of the next layer.  Without one, a fast
            member overwrites what a slow one still reads or copies.
        safe: return a copy.  False returns a view of the symmetric buffer, which the next call of any member
            overwrites.
        nnodes: nodes of the deployment; asked only of a group with more than one rank, since the settings that it
            reads may not be published yet in a process that runs alone.
        guard: False probes without asking `nnodes`, as before the repair.
        Raises: whatever `nnodes` raises.
        """
        self.tp_group = tp_group
        self.max_tokens = max_tokens
        self.skip_entry_sync = skip_entry_sync
        self.safe = safe
        self.multimem_enabled = enabled
        self._workspace: Workspace | None = None
        self._logged: set[str] = set()
        if enabled and self._may_span_nodes(nnodes, guard) and self._spans_nodes():
            self._turn_off(f"group {tp_group.name!r} spans nodes")

    def _may_span_nodes(self, nnodes: Callable[[], int], guard: bool) -> bool:
        """Decided from what each rank knows alone and all members know alike.  The order of the questions counts."""
        return self.tp_group.world_size > 1 and (not guard or nnodes() > 1)

    def _spans_nodes(self) -> bool:
        return not all(in_the_same_node_as(self.tp_group.cpu_group, source_rank=0))

    def _turn_off(self, reason: str) -> None:
        self.multimem_enabled = False
        logger.warning("multimem all-gather is off: %s", reason)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Gather `x` ([T, H / W], equal on all members) to [T, H], contiguous, dtype of `x`.

        The first call that can use the kernel allocates and exchanges its buffers, which a CUDA graph cannot hold: a
        first call under capture takes the fallback, and so do shapes that the kernel cannot gather (`why_not`).  Each
        reason is logged once.
        """
        if self.tp_group.world_size == 1 or not self.multimem_enabled:
            return self._fall_back(x)
        workspace = self._workspace_for(x)
        if workspace is None:
            return self._fall_back(x)
        from refimpl.kernels.multimem_all_gather import all_gather

        out = all_gather(workspace, x, entry_sync=not self.skip_entry_sync)
        return out.clone() if self.safe else out

    def _fall_back(self, x: torch.Tensor) -> torch.Tensor:
        return self.tp_group.all_gather(x, dim=-1)

    def _workspace_for(self, x: torch.Tensor) -> Workspace | None:
        """The workspace if the kernel can gather `x` now, built if need be."""
        reason = self._why_not_now(x)
        if reason:
            self._say_once(reason)
            return None
        if self._workspace is None:
            self._build(x)
        return self._workspace

    def _why_not_now(self, x: torch.Tensor) -> str:
        world = self.tp_group.world_size
        capacity = x.nbytes * world if self._workspace is None else self._workspace.buffer.nbytes
        if x.dim() and x.shape[0] > self.max_tokens:
            return f"more than max_tokens={self.max_tokens} rows"
        reason = why_not(x, world, capacity)
        if not reason and self._workspace is None and _is_capturing(x):
            return "the first call is being captured in a CUDA graph; call it once before"
        return reason

    def _say_once(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            logger.info("multimem all-gather of group %r falls back to all_gather: %s", self.tp_group.name, reason)

    def _build(self, x: torch.Tensor) -> None:
        from refimpl.kernels.symmetric import build_workspace

        row_bytes = x.shape[1] * x.element_size() * self.tp_group.world_size
        self._workspace, reason = build_workspace(self.tp_group, max(1, self.max_tokens) * row_bytes)
        if self._workspace is None:
            self._turn_off(reason)


def _is_capturing(x: torch.Tensor) -> bool:
    return x.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
