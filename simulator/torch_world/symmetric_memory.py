"""torch's symmetric memory for simulated ranks: what takes the place of `_SymmetricMemory`, the class of C++.

`torch.distributed._symmetric_memory` runs as it is: it looks this class up by name at each call. Buffers asked for on
`cuda` or `cpu` are CPU memory (`symmetric_space`), a rendezvous is a meeting of the group (`symmetric_rendezvous`), and
what it returns is a `SymmetricHandle`. Outside the ranks the name means torch's own class.

Not modelled: the backends NVSHMEM and NCCL, memory pools, the operators `torch.ops.symm_mem.*`, streams: what torch
puts on the current stream is done at the call.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import torch
from torch._C import _distributed_c10d as _c
from torch.distributed import distributed_c10d as c10d

from simulator.fake_pg import SimProcessGroup
from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.stream_words import fill_words, record, write_word
from simulator.torch_world.symmetric_handle import SymmetricHandle
from simulator.torch_world.symmetric_operators import multicast_allowed
from simulator.torch_world.symmetric_rendezvous import Meetings
from simulator.torch_world.symmetric_space import DEFAULT_PAD_BYTES, Space, allocate, space_of


def install_symmetric_memory(patches: Patches, sim: Simulation) -> None:
    """Replace the class, and what torch's module keeps in its globals or asks CUDA."""
    module = import_module("torch.distributed._symmetric_memory")
    memory_class = _memory_class(sim, patches, vars(_c)["_SymmetricMemory"])
    for where in (module, _c):
        patches.set(where, "_SymmetricMemory", memory_class)
    for name, own in (("_group_name_to_store", "stores"), ("_group_name_to_workspace_tensor", "workspaces")):
        patches.set(module, name, _OfRank(sim, own, getattr(module, name)))
    if hasattr(module, "_should_use_implicit_mempool"):
        per_rank(patches, sim, module, "_should_use_implicit_mempool", lambda context, real: False)
    per_rank(patches, sim, module, "get_symm_mem_workspace", _workspace_of(memory_class))


class _OfRank(MutableMapping[str, Any]):
    """A dictionary of torch's module of which each rank has its own."""

    def __init__(self, sim: Simulation, name: str, outside: dict[str, Any]) -> None:
        self._sim, self._name, self._outside = sim, name, outside

    def _here(self) -> dict[str, Any]:
        context = self._sim.here()
        if context is None:
            return self._outside
        own: dict[str, Any] = getattr(space_of(context), self._name)
        return own

    def __getitem__(self, key: str) -> Any:
        return self._here()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._here()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._here()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._here())

    def __len__(self) -> int:
        return len(self._here())


def _workspace_of(memory_class: Any) -> Any:
    """torch's function asks CUDA whether its stream is being captured, and for the current device."""

    def get_symm_mem_workspace(context: RankContext, real: Any, group_name: str, min_size: int) -> SymmetricHandle:
        kept = space_of(context).workspaces
        tensor = kept.get(group_name)
        size = 0 if tensor is None else tensor.nbytes
        if tensor is None or size < min_size:
            wanted = max(size, min_size)
            tensor = kept[group_name] = memory_class.empty_strided_p2p(
                (wanted,), (1,), torch.uint8, torch.device("cuda"), group_name
            )
        handle: SymmetricHandle = memory_class.rendezvous(tensor)
        return handle

    return get_symm_mem_workspace


def _watch_lists(patches: Patches, sim: Simulation) -> None:
    """`tolist` and `numpy` read a tensor without an operator."""
    for name in ("tolist", "numpy"):
        real = getattr(torch.Tensor, name)

        def read(tensor: torch.Tensor, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
            if sim.memory.in_use:
                record(sim, tensor, "read", "weak")
            return _real(tensor, *args, **kwargs)

        read.__name__ = name
        patches.set(torch.Tensor, name, read)


def _group(name: str) -> SimProcessGroup:
    group = vars(c10d)["_resolve_process_group"](name)
    if not isinstance(group, SimProcessGroup):
        raise NotImplementedError(f"symmetric memory on a group of {type(group).__name__}, which is not simulated")
    return group


class RankCalls:
    """What the static methods of `_SymmetricMemory` do in a rank. The methods of objects are in `SymmetricHandle`.

    Args:
        patches: takes what is replaced once a rank has symmetric memory.

    Attributes:
        handle_class: what a rendezvous makes.
    """

    handle_class: Any = SymmetricHandle

    def __init__(self, sim: Simulation, patches: Patches) -> None:
        self._sim = sim
        self._patches: Patches | None = patches
        self._meetings = Meetings(sim)

    def empty_strided_p2p(
        self,
        size: Any,
        stride: Any,
        dtype: torch.dtype,
        device: Any,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> torch.Tensor:
        tensor = allocate(self._sim, size, stride, dtype, torch.device(device), group_name, alloc_id)
        patches, self._patches = self._patches, None
        if patches is not None:
            _watch_lists(patches, self._sim)
        return tensor

    def rendezvous(self, tensor: torch.Tensor, group_name: str | None = None) -> SymmetricHandle | None:
        """None for ordinary memory. A buffer meets once in each group; after that its handle is there."""
        found = self._space.of(tensor)
        if found is None:
            return None
        name = group_name or found.group_name
        if name is None:
            raise RuntimeError(
                "CUDASymmetricMemory::rendezvous: `group_name` is neither specified during allocation nor passed to "
                "rendezvous()."
            )
        if name not in found.handles:
            group = _group(name)
            room = self._meetings.join(found, tensor, group)
            found.handles[name] = self.handle_class(
                self._sim, group.comm.view, group.rank(), room.peers, room.multicast
            )
        handle: SymmetricHandle = found.handles[name]
        return handle

    @property
    def _space(self) -> Space:
        return space_of(self._sim.must_be_here("symmetric memory"))

    def is_symm_mem_tensor(self, tensor: torch.Tensor) -> bool:
        return self._space.of(tensor) is not None

    def set_group_info(self, group_name: str, rank: int, world_size: int, store: Any) -> None:
        """Nothing: a rendezvous asks the group itself."""

    def has_multicast_support(self, device_type: Any, device_idx: int) -> bool:
        return multicast_allowed(self._sim, self._sim.must_be_here("symmetric memory"))

    def set_backend(self, name: str) -> None:
        if name != "CUDA":
            raise RuntimeError(f"SymmetricMemory does not find allocation backend {name} (CUDA alone is modelled)")

    def get_backend(self, device: torch.device) -> str:
        return "CUDA"

    def get_mempool_allocator(self, device: torch.device) -> Any:
        raise NotImplementedError("memory pools of symmetric memory are not modelled: allocate with empty()")

    def memset32(self, input: torch.Tensor, offset: int, val: int, count: int = 1) -> torch.Tensor:
        return fill_words(self._sim, input, offset, val, count)

    def stream_write_value32(self, input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        return write_word(self._sim, input, offset, val)

    @property
    def signal_pad_size(self) -> int:
        """Of the buffers that are allocated from now on."""
        return self._space.pad_bytes

    @signal_pad_size.setter
    def signal_pad_size(self, size: int) -> None:
        if size < 0:
            raise TypeError(f"signal_pad_size={size}: give a number of bytes")
        self._space.pad_bytes = size or DEFAULT_PAD_BYTES


_STATIC = (
    "empty_strided_p2p", "rendezvous", "is_symm_mem_tensor", "set_group_info", "has_multicast_support", "set_backend",
    "get_backend", "get_mempool_allocator", "memset32", "stream_write_value32",
)  # fmt: skip


class _Kind(type):
    """`signal_pad_size` is a property of torch's class, not of its objects."""

    _choose: Any

    @property
    def signal_pad_size(cls) -> int:
        return int(cls._choose().signal_pad_size)

    @signal_pad_size.setter
    def signal_pad_size(cls, size: int) -> None:
        cls._choose().signal_pad_size = size

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, SymmetricHandle) or type(value).__name__ == "_SymmetricMemory"


def _memory_class(sim: Simulation, patches: Patches, real: Any) -> Any:
    """The stand-in for torch's class: in a rank the calls of `RankCalls`, elsewhere its own."""
    calls = RankCalls(sim, patches)

    def choose() -> Any:
        return real if sim.here() is None else calls

    def either(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(choose(), name)(*args, **kwargs)

        call.__name__ = name
        return staticmethod(call)

    names = {name: either(name) for name in _STATIC if hasattr(real, name)}
    made = _Kind("_SymmetricMemory", (SymmetricHandle,), {**names, "_choose": staticmethod(choose)})
    calls.handle_class = made
    return made
