"""One sub-group of this rank: creates its process groups and owns them until `destroy`.

    tp = GroupCoordinator("tp", layout.rank_lists("tp"), GroupOptions(backend="gloo"))
    tp.all_reduce(x); tp.all_gather(x, dim=-1); tp.barrier()

Creating process groups is collective: every rank walks over every list in the same order, a member of it or not,
unless the options say that only members synchronise.  Per list there is a device group for tensors and then a CPU group
for objects, barriers and topology probes.

Source for the order and the arguments: `GroupCoordinator` of SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from refimpl.distributed.backend_options import OptionsPairs, backend_pair
from refimpl.distributed.collectives import Collectives
from refimpl.distributed.contract import GroupOptions
from refimpl.distributed.layout import Rank


class GroupCoordinator(Collectives):
    """The process groups of one rank in one sub-group, and what it can do with them."""

    def __init__(self, name: str, rank_lists: Sequence[Sequence[int]], options: GroupOptions) -> None:
        """Create the groups of all `rank_lists` (global ranks) and keep those that this rank is in.

        Raises: ValueError when this rank is in no list, or a list exceeds `options.max_world_size`.
        """
        self.name = name
        self.options = options
        self.rank = Rank(dist.get_rank())
        self.device = torch.device(options.device)
        self.ranks: tuple[Rank, ...] = ()
        self.rank_in_group = -1
        self.active_ranks: torch.Tensor | None = None
        self.active_ranks_cpu: torch.Tensor | None = None
        self._device_group: dist.ProcessGroup | None = None
        self._cpu_group: dist.ProcessGroup | None = None
        self._create(rank_lists)
        if not self.ranks:
            raise ValueError(self._not_a_member(rank_lists))

    def _create(self, rank_lists: Sequence[Sequence[int]]) -> None:
        options, options_of = self.options, OptionsPairs(self.options)
        device_backend, cpu_backend = backend_pair(options.backend)
        shared: dict[str, Any] = {
            "timeout": None if options.timeout_s is None else timedelta(seconds=options.timeout_s),
            "use_local_synchronization": options.use_local_synchronization,
        }
        for_device = shared | {"backend": device_backend, "group_desc": f"{self.name}:device"}
        for_cpu = shared | {"backend": cpu_backend, "group_desc": f"{self.name}:cpu"}
        for ranks in rank_lists:
            member = self.rank in ranks
            if member:
                self._join(ranks)
            if len(ranks) == 1 and not options.solo_groups:
                continue
            device, cpu = options_of.pair(len(ranks), member)
            device_group = dist.new_group(list(ranks), pg_options=device.pg_options, **for_device)
            cpu_group = dist.new_group(list(ranks), pg_options=cpu.pg_options, **for_cpu)
            if member:
                self._device_group, self._cpu_group = device_group, cpu_group
                self.active_ranks, self.active_ranks_cpu = device.mask, cpu.mask

    def _join(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(Rank(rank) for rank in ranks)
        self.rank_in_group = self.ranks.index(self.rank)

    def _not_a_member(self, rank_lists: Sequence[Sequence[int]]) -> str:
        covered = [rank for ranks in rank_lists for rank in ranks]
        span = f"ranks {min(covered)} to {max(covered)}" if covered else "no rank"
        return (
            f"group {self.name!r} covers {span} but this is rank {self.rank}; "
            f"shift its lists by the rank_offset of the cohort (rank_offset={self.options.rank_offset} was given)"
        )

    @property
    def first_rank(self) -> Rank:
        """Global rank of the first member."""
        return self.ranks[0]

    @property
    def last_rank(self) -> Rank:
        """Global rank of the last member."""
        return self.ranks[-1]

    @property
    def next_rank(self) -> Rank:
        """Global rank of the member after this one, the first after the last."""
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> Rank:
        """Global rank of the member before this one, the last before the first."""
        return self.ranks[self.rank_in_group - 1]

    @property
    def is_first_rank(self) -> bool:
        """True on the first member."""
        return self.rank_in_group == 0

    @property
    def is_last_rank(self) -> bool:
        """True on the last member."""
        return self.rank_in_group == self.world_size - 1

    def destroy(self) -> None:
        """Destroy the process groups of this rank.  A second call does nothing."""
        groups = (self._device_group, self._cpu_group)
        self._device_group = self._cpu_group = None
        for group in groups:
            if group is not None:
                dist.destroy_process_group(group)

    def __repr__(self) -> str:
        return (
            f"GroupCoordinator({self.name!r}, ranks={list(self.ranks)}, rank={self.rank}, "
            f"rank_in_group={self.rank_in_group}, backend={self.options.backend!r})"
        )
