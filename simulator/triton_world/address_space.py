"""Which memory a launch can reach, and what a kernel that misses it is told.

Reachable are: memory that ranks share, once it is mapped on the rank; tables of addresses; the storages of the launch's
arguments; and, for addresses that are passed as numbers, the storage of any tensor alive, looked for in the frames of
the caller first. Everything else would be an illegal access on a device, and a crash in this process.

Not modelled: that a device has its own memory. The private tensor of another rank is reachable by its address.
"""

from __future__ import annotations

import ctypes
import gc
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch

from simulator.torch_world.device_memory import Block, DeviceMemory
from simulator.triton_world.errors import IllegalAccess
from simulator.triton_world.ptx_types import Array

_CALLERS_MAX = 12


@dataclass(slots=True, eq=False)
class Range:
    """Memory that can be reached: addresses from `base` to `end`.

    Attributes:
        keep: what owns the memory.
        block: for shared memory, what it is.
    """

    base: int
    end: int
    keep: object
    block: Block | None = None
    _views: dict[int, tuple[Array, int]] = field(default_factory=dict)

    def values(self, size: int) -> tuple[Array, int]:
        """The memory as unsigned integers of `size` bytes, and the address of the first."""
        found = self._views.get(size)
        if found is None:
            first = self.base + -self.base % size
            count = max(0, self.end - first) // size
            backing: Any = (ctypes.c_char * (count * size)).from_address(first)
            found = self._views[size] = (np.frombuffer(backing, np.dtype(f"u{size}")), first)
        return found

    @property
    def is_shared(self) -> bool:
        return self.block is not None


class AddressSpace:
    """The memory of one launch of rank `rank`.

    Args:
        arguments: the tensors among the launch's arguments.
        caller: the frame that launches; it and its callers are searched for tensors whose address was passed.
    """

    def __init__(
        self, rank: int, memory: DeviceMemory, arguments: Iterable[torch.Tensor], caller: FrameType | None
    ) -> None:
        self._rank = rank
        self._memory = memory
        self._caller = caller
        self._bases: list[int] = []
        self._ranges: dict[int, Range] = {}
        self._members: dict[int, Range] = {}
        for tensor in arguments:
            self._add_storage(tensor)

    def locate(self, addresses: Array, nbytes: int) -> list[tuple[Range, Array | None]]:
        """Where accesses of `nbytes` each go: ranges, with the numbers of the accesses (None for all).

        Raises:
            IllegalAccess: an address is out of reach, not aligned, or the access reaches beyond the end.
        """
        if np.any(addresses & np.uint64(nbytes - 1)):
            bad = next(address for address in addresses.tolist() if address % nbytes)
            raise IllegalAccess(f"misaligned access: {nbytes} bytes at {bad:#x}, {self.describe(bad)}")
        first, last = int(addresses.min()), int(addresses.max())
        found = self._find(first, nbytes)
        if last + nbytes <= found.end:
            return [(found, None)]
        return list(self._divided(addresses, nbytes))

    def at(self, address: int) -> Range:
        """The range that an address which was accessed before lies in."""
        return self._find(address, 1)

    def of_block(self, block: Block) -> Range:
        """The range of a shared block, reachable or not: multicast goes to all members."""
        found = self._ranges.get(block.base) or self._members.get(block.base)
        if found is None:
            found = self._members[block.base] = Range(block.base, block.base + block.nbytes, block.keep, block)
        return found

    def _divided(self, addresses: Array, nbytes: int) -> Iterator[tuple[Range, Array | None]]:
        order = np.argsort(addresses, kind="stable")
        rising = addresses[order]
        at = 0
        while at < len(rising):
            found = self._find(int(rising[at]), nbytes)
            stop = int(np.searchsorted(rising, np.uint64(found.end - nbytes), "right"))
            yield found, np.sort(order[at:stop])
            at = stop

    def _find(self, address: int, nbytes: int) -> Range:
        found = self._known(address) or self._discover(address)
        if found is None:
            raise IllegalAccess(f"illegal memory access: {nbytes} bytes at {address:#x}, {self.describe(address)}")
        if address + nbytes > found.end:
            raise IllegalAccess(
                f"illegal memory access: {nbytes} bytes at {address:#x} reach {address + nbytes - found.end} bytes "
                f"beyond the end of {_name(found)}"
            )
        return found

    def _known(self, address: int) -> Range | None:
        at = bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        found = self._ranges[self._bases[at]]
        return found if address < found.end else None

    def _discover(self, address: int) -> Range | None:
        block = self._memory.find(address)
        if block is not None:
            if block.region is None and not block.members:
                return self._add(Range(block.base, block.base + block.nbytes, block.keep))
            if self._rank not in block.ranks:
                raise IllegalAccess(
                    f"illegal memory access at {address:#x}: the {_block_name(block)} is not mapped on rank "
                    f"{self._rank}, which took part in no rendezvous of it"
                )
            return self._add(Range(block.base, block.base + block.nbytes, block.keep, block))
        for tensor in self._candidates():
            base = _storage_base(tensor)
            if base <= address < base + _storage_bytes(tensor) and self._add_storage(tensor):
                return self._known(address)
        return None

    def _candidates(self) -> Iterator[torch.Tensor]:
        """Tensors whose address may have been passed as a number, the likely ones first."""
        frame, depth = self._caller, 0
        while frame is not None and depth < _CALLERS_MAX:
            for value in list(frame.f_locals.values()):
                yield from _tensors_in(value)
            frame, depth = frame.f_back, depth + 1
        for each in gc.get_objects():
            if issubclass(type(each), torch.Tensor):
                yield each

    def _add_storage(self, tensor: torch.Tensor) -> bool:
        """Make the memory of a tensor reachable, unless it is shared: then only what was allocated there is."""
        base, nbytes = _storage_base(tensor), _storage_bytes(tensor)
        if nbytes == 0 or base in self._ranges or self._memory.overlaps(base, nbytes):
            return base in self._ranges
        self._add(Range(base, base + nbytes, tensor.untyped_storage()))
        return True

    def _add(self, found: Range) -> Range:
        insort(self._bases, found.base)
        self._ranges[found.base] = found
        return found

    def forget_caller(self) -> None:
        """The launch is over."""
        self._caller = None

    def describe(self, address: int) -> str:
        """Where an address lies, for people."""
        inside = self._known(address)
        if inside is not None:
            return f"byte {address - inside.base} of {_name(inside)}"
        known = {each.base: each for each in self._ranges.values()}
        blocks = [block for block in self._memory.blocks if block.ranks]
        shared = {block.base: Range(block.base, block.base + block.nbytes, None, block) for block in blocks}
        ranges = [*known.values(), *(each for base, each in shared.items() if base not in known)]
        if not ranges:
            return "and the launch has no memory at all"
        near = min(ranges, key=lambda each: (max(each.base - address, address - each.end + 1, 0), each.base))
        if near.base > address:
            return f"{near.base - address} bytes before {_name(near)}, the nearest memory known"
        return f"{address - near.end} bytes after the end of {_name(near)}, the nearest memory known"


def _name(found: Range) -> str:
    if found.block is None:
        return f"a tensor of {found.end - found.base} bytes"
    return f"the {_block_name(found.block)}"


def _block_name(block: Block) -> str:
    return "multicast range" if block.region is None else block.region.label


def _storage_base(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr()) if tensor.device.type in ("cpu", "cuda") else 0
    except (NotImplementedError, RuntimeError):
        return 0


def _storage_bytes(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes()) if _storage_base(tensor) else 0


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """A tensor, or those of a container or an object, one level deep."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, dict):
        inner: Iterable[object] = list(value.values())
    elif isinstance(value, list | tuple):
        inner = value
    else:
        inner = _attributes(value)
    for each in inner:
        if isinstance(each, torch.Tensor):
            yield each


def _attributes(value: object) -> list[object]:
    """What an object keeps, asked for without running its code."""
    try:
        kept = list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        kept = []
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    for name in (each for names in slots if isinstance(names, list | tuple) for each in names):
        try:
            kept.append(object.__getattribute__(value, name))
        except AttributeError:
            continue
    return kept
