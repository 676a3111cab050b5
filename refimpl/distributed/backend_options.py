"""Backend names and backend options of the two process groups that each rank list gets.

Only Mooncake takes options: a mask of active ranks, whether this rank attaches to a group that others already have,
and for a growing group the size that it may reach.  `mooncake.pg` is imported only when its backend is asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from refimpl.distributed.contract import GroupOptions


class BackendOptions(NamedTuple):
    """What one call of `new_group` or `init_process_group` takes besides names and ranks."""

    pg_options: Any
    """`MooncakeBackendOptions`, or None for a backend that takes none."""
    mask: torch.Tensor
    """[capacity], int32, on the group's device: 1 for each rank that takes part; Mooncake updates it in place."""


def is_mooncake(backend: str) -> bool:
    """True for a backend that `mooncake.pg` registers."""
    return "mooncake" in backend


def backend_pair(backend: str) -> tuple[str, str]:
    """Backends of the device group and the CPU group.

    "mooncake-cpu" runs both on the host, for machines without an accelerator; torch's "fake", which has no peers,
    serves for both, to measure what bring-up costs without them.
    """
    if backend == "fake":
        return backend, backend
    return backend, "mooncake-cpu" if is_mooncake(backend) else "gloo"


def backend_options(size: int, options: GroupOptions, device: torch.device) -> BackendOptions:
    """Options for a group of `size` ranks, the first `size` slots active.

    Raises: ValueError when the group is larger than the size that it may reach.
    """
    limit = options.max_world_size
    if limit is not None and limit < size:
        raise ValueError(f"max_world_size is {limit} but the group has {size} ranks; give {size} or more")
    if not is_mooncake(options.backend):
        return BackendOptions(None, torch.ones(size, dtype=torch.int32, device=device))
    from mooncake.pg import MooncakeBackendOptions  # type: ignore[import-not-found,unused-ignore]

    mask = torch.zeros(size if limit is None else limit, dtype=torch.int32, device=device)
    mask[:size] = 1
    growth = () if limit is None else (limit,)
    return BackendOptions(MooncakeBackendOptions(mask, options.recovered_rank, *growth), mask)


class OptionsPairs:
    """Backend options for each list of one sub-group.

    A member gets masks of its own, because the backend writes to them.  For lists that this rank is no member of,
    torch returns before it looks at the options, so equal ones are made once per list length.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self._device = torch.device(options.device)
        self._cpu = torch.device("cpu")
        self._of_strangers: dict[int, tuple[BackendOptions, BackendOptions]] = {}

    def pair(self, size: int, member: bool) -> tuple[BackendOptions, BackendOptions]:
        """Options of the device group and of the CPU group for a list of `size` ranks."""
        if member:
            return self._make(size)
        if size not in self._of_strangers:
            self._of_strangers[size] = self._make(size)
        return self._of_strangers[size]

    def _make(self, size: int) -> tuple[BackendOptions, BackendOptions]:
        return (
            backend_options(size, self._options, self._device),
            backend_options(size, self._options, self._cpu),
        )
