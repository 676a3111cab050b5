"""The all-gather of tensor-parallel slices, by multimem stores where one node holds the group, else by the group.

    gather = MultimemAllGatherer(get_tp_group(), max_tokens=512, nnodes=lambda: settings().nnodes)
    logits = gather(slice_of_logits)          # [T, H / W] -> [T, H]

Multimem reaches only the devices of one NVLink domain, so a group that spans nodes must not use it.  Whether it does is
a collective question (`in_the_same_node_as`), and one that can take a single-node Mooncake deployment down, so the
constructor asks it only when the answer can be "no".

Source: SGLang pull requests 29881 (the probe) and 30139 (its guard).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from refimpl.distributed.group import GroupCoordinator
from refimpl.distributed.topology import in_the_same_node_as

logger = logging.getLogger(__name__)


class MultimemKernel(Protocol):
    """Builds the device side for one group; called once, by all members, in the first gather that can use it."""

    def __call__(
        self, tp_group: GroupCoordinator, *, max_tokens: int, skip_entry_sync: bool
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function from [T, H / W] to [T, H] that all members call together."""


class MultimemAllGatherer:
    """All-gather along the last dimension over a tensor parallel group.  Construction and calls are collective."""

    def __init__(
        self,
        tp_group: GroupCoordinator,
        *,
        max_tokens: int,
        enabled: bool = True,
        skip_entry_sync: bool = False,
        nnodes: Callable[[], int],
        guard: bool = True,
        kernel: MultimemKernel | None = None,
    ) -> None:
        """Decide whether multimem may be used.

        max_tokens: rows that the kernel's buffer holds; longer inputs take the fallback.
        enabled: False for the fallback always, and no probe.
        skip_entry_sync: let the kernel start without a barrier among the members.
        nnodes: nodes of the deployment; asked only of a group with more than one rank, since the settings that it
            reads may not be published yet in a process that runs alone.
        guard: False probes without asking `nnodes`, as before the repair.
        kernel: the device side; None for the fallback always.
        Raises: whatever `nnodes` raises.
        """
        self.tp_group = tp_group
        self.max_tokens = max_tokens
        self.skip_entry_sync = skip_entry_sync
        self.multimem_enabled = enabled
        self._kernel = kernel
        self._gather: Callable[[torch.Tensor], torch.Tensor] | None = None
        if enabled and self._may_span_nodes(nnodes, guard) and self._spans_nodes():
            self.multimem_enabled = False
            logger.warning("multimem all-gather is off: group %r spans nodes", tp_group.name)

    def _may_span_nodes(self, nnodes: Callable[[], int], guard: bool) -> bool:
        """Decided from what each rank knows alone and all members know alike.  The order of the questions counts."""
        return self.tp_group.world_size > 1 and (not guard or nnodes() > 1)

    def _spans_nodes(self) -> bool:
        return not all(in_the_same_node_as(self.tp_group.cpu_group, source_rank=0))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Gather `x` ([T, H / W], equal on all members) to [T, H], contiguous, dtype of `x`."""
        if self._kernel is None or not self.multimem_enabled or x.shape[0] > self.max_tokens:
            return self.tp_group.all_gather(x, dim=-1)
        if self._gather is None:
            self._gather = self._kernel(self.tp_group, max_tokens=self.max_tokens, skip_entry_sync=self.skip_entry_sync)
        return self._gather(x)
