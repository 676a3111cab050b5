"""Collectives and messages of one sub-group, over the two process groups that its owner created.

Group ranks count from 0 in the order of the rank list; `src` and `dst` are group ranks.  A call blocks the host or the
device stream as its backend does.  With one rank in the group nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from refimpl.distributed import tensor_dict
from refimpl.distributed.layout import Rank


class Collectives:
    """Operations of a group of ranks; the owner sets the attributes."""

    name: str
    """Name of the sub-group."""
    rank: Rank
    """Global rank of this process."""
    ranks: tuple[Rank, ...]
    """Global ranks of the members, ascending."""
    rank_in_group: int
    """Group rank of this process."""
    device: torch.device
    """Device of this rank's tensors."""
    _device_group: dist.ProcessGroup | None
    _cpu_group: dist.ProcessGroup | None

    @property
    def world_size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    @property
    def device_group(self) -> dist.ProcessGroup:
        """Group for tensors.  Raises: RuntimeError when it was not created or is destroyed."""
        return self._existing(self._device_group)

    @property
    def cpu_group(self) -> dist.ProcessGroup:
        """Group for objects, barriers and probes.  Raises: RuntimeError when it was not created or is destroyed."""
        return self._existing(self._cpu_group)

    def _existing(self, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        if group is None:
            raise RuntimeError(f"group {self.name!r} of rank {self.rank} has no process group: destroyed, or one rank")
        return group

    def _group_of(self, tensor: torch.Tensor) -> dist.ProcessGroup:
        """Host tensors of a rank with an accelerator go through the CPU group."""
        on_host = tensor.device.type == "cpu" and self.device.type != "cpu"
        return self.cpu_group if on_host else self.device_group

    # Tensors

    def all_reduce(self, x: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce `x` ([...], any dtype, equal on all ranks) over the group, in place.  Returns: `x`."""
        if self.world_size > 1:
            dist.all_reduce(x, op, group=self._group_of(x))
        return x

    def all_gather(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Concatenate the members' `x` ([..., n, ...], equal shapes) along `dim`.

        Returns: [..., world_size * n, ...], dtype of `x`, contiguous.  Raises: ValueError for a dim that x has not.
        """
        dim = _checked_dim(x, dim)
        if self.world_size == 1:
            return x
        parts = self._stacked(x).movedim(0, dim)
        shape = list(x.shape)
        shape[dim] *= self.world_size
        return parts.reshape(shape)

    def all_gatherv(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenate the members' `x` ([sizes[group rank], ...]) along dimension 0.

        Returns: [sum(sizes), ...], dtype of `x`.  Each message is as long as the largest part.
        Raises: ValueError when `sizes` does not fit the group or `x`.
        """
        self._check_sizes(x, sizes)
        if self.world_size == 1:
            return x
        padded = x.new_zeros((max(sizes), *x.shape[1:]))
        padded[: len(x)] = x
        parts = self._stacked(padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def reduce_scatter(self, x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Sum `x` ([..., world_size * n, ...], equal shapes) over the group and keep this rank's part along `dim`.

        Returns: [..., n, ...], dtype of `x`, contiguous.  Raises: ValueError when the extent is not divisible.
        """
        dim = _checked_dim(x, dim)
        if x.shape[dim] % self.world_size:
            raise ValueError(f"x has {x.shape[dim]} elements along dim {dim}; give a multiple of {self.world_size}")
        if self.world_size == 1:
            return x
        whole = x.movedim(dim, 0).contiguous()
        part = whole.new_empty((whole.shape[0] // self.world_size, *whole.shape[1:]))
        _either("reduce_scatter_single", "reduce_scatter_tensor")(part, whole, group=self._group_of(x))
        return part.movedim(0, dim).contiguous()

    def broadcast(self, x: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Overwrite `x` ([...], equal shape and dtype, contiguous) with that of group rank `src`.  Returns: `x`."""
        self._check_peer("src", src)
        if self.world_size > 1:
            dist.broadcast(x, group=self._group_of(x), group_src=src)
        return x

    def send(self, x: torch.Tensor, dst: int | None = None) -> None:
        """Send `x` ([...], contiguous) to group rank `dst`, by default the next one."""
        dist.send(x, group=self._group_of(x), group_dst=self._other("dst", dst, +1))

    def recv(self, x: torch.Tensor, src: int | None = None) -> torch.Tensor:
        """Receive into `x` ([...], contiguous) from group rank `src`, by default the one before.  Returns: `x`."""
        dist.recv(x, group=self._group_of(x), group_src=self._other("src", src, -1))
        return x

    # Objects and dictionaries

    def broadcast_object(self, value: Any = None, src: int = 0) -> Any:
        """The picklable `value` of group rank `src`, on all ranks, through the CPU group."""
        self._check_peer("src", src)
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self.cpu_group, group_src=src)
        return box[0]

    def send_object(self, value: Any, dst: int | None = None) -> None:
        """Send the picklable `value` to group rank `dst`, by default the next one, through the CPU group."""
        dist.send_object_list([value], group=self.cpu_group, group_dst=self._other("dst", dst, +1))

    def recv_object(self, src: int | None = None) -> Any:
        """The value that group rank `src`, by default the one before, sent through the CPU group."""
        box = [None]
        dist.recv_object_list(box, group=self.cpu_group, group_src=self._other("src", src, -1))
        return box[0]

    def broadcast_tensor_dict(self, values: Mapping[str, Any] | None = None, src: int = 0) -> dict[str, Any]:
        """The dictionary of group rank `src`, its tensors on each rank's own device.

        Raises: ValueError when the source gives None.
        """
        self._check_peer("src", src)
        if self.rank_in_group == src:
            if values is None:
                raise ValueError(f"group rank {src} is the source and gave None; give a dictionary")
            metadata, tensors = tensor_dict.split(values)
            self.broadcast_object(metadata, src)
            result = dict(values)
        else:
            result, tensors = tensor_dict.allocate(self.broadcast_object(None, src), self.device)
        for tensor in tensors:
            self.broadcast(tensor, src)
        return result

    def send_tensor_dict(self, values: Mapping[str, Any], dst: int | None = None) -> None:
        """Send a dictionary with tensors to group rank `dst`, by default the next one."""
        metadata, tensors = tensor_dict.split(values)
        self.send_object(metadata, dst)
        for tensor in tensors:
            self.send(tensor, dst)

    def recv_tensor_dict(self, src: int | None = None) -> dict[str, Any]:
        """The dictionary that group rank `src`, by default the one before, sent."""
        values, tensors = tensor_dict.allocate(self.recv_object(src), self.device)
        for tensor in tensors:
            self.recv(tensor, src)
        return values

    def barrier(self) -> None:
        """Wait until all members called it.  On the CPU group, so no device work is waited for."""
        if self.world_size > 1:
            dist.barrier(group=self.cpu_group)

    # Helpers

    def _stacked(self, x: torch.Tensor) -> torch.Tensor:
        """The members' `x`, [world_size, *x.shape]."""
        flat = x.contiguous().view(-1)
        out = flat.new_empty(self.world_size * flat.numel())
        _either("all_gather_single", "all_gather_into_tensor")(out, flat, group=self._group_of(x))
        return out.view(self.world_size, *x.shape)

    def _check_sizes(self, x: torch.Tensor, sizes: Sequence[int]) -> None:
        if len(sizes) != self.world_size:
            raise ValueError(f"sizes has {len(sizes)} entries; give one per member, {self.world_size}")
        if len(x) != sizes[self.rank_in_group]:
            raise ValueError(f"x has {len(x)} rows; sizes[{self.rank_in_group}] says {sizes[self.rank_in_group]}")

    def _check_peer(self, role: str, peer: int) -> None:
        if not 0 <= peer < self.world_size:
            raise ValueError(f"{role} is {peer}; give a group rank from 0 to {self.world_size - 1}")

    def _other(self, role: str, peer: int | None, step: int) -> int:
        if peer is None:
            peer = (self.rank_in_group + step) % self.world_size
        self._check_peer(role, peer)
        if peer == self.rank_in_group:
            raise ValueError(f"{role} is {peer}, this rank itself; give another member of group {self.name!r}")
        return peer


def _either(name: str, old_name: str) -> Callable[..., object]:
    """Torch 2.13 renamed the collectives that take one tensor for all ranks, and warns about the old names."""
    found: Callable[..., object] = getattr(dist, name if hasattr(dist, name) else old_name)
    return found


def _checked_dim(x: torch.Tensor, dim: int) -> int:
    """`dim` counted from the front."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim is {dim} but x has {x.dim()} dimensions; give one of them")
    return dim % x.dim()
