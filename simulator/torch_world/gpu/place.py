"""Where a tensor of a rank counts as being: in host memory, or in the memory of one of its simulated GPUs.

All memory is the CPU's. What lies on a GPU has a mark on its storage, which all views of it share and which lives as
long as it does. A storage without a mark is the host's. One that a C++ function of torch has made for itself is marked
as `unsettled`: torch would have made it where its operands are, so it goes along with any device.

Not modelled: `storage.device`, which stays the CPU's; tensors without a storage (sparse ones): they are refused on a
GPU, and gradients that are sparse stay on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from simulator.torch_world.gpu.ledger import Ledger
from simulator.torch_world.operator_watch import takes_apart

PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
HOST = torch.device("cpu")
BLOCK_BYTES = 512
"""CUDA's allocator rounds to these."""
_without_function_modes = torch._C.DisableTorchFunction
_getter = torch._C.TensorBase.device.__get__


def _real_device(tensor: Tensor) -> torch.device:
    """What C++ says. Under a function mode torch would look the property up by name, and find the replacement."""
    with _without_function_modes():
        device: torch.device = _getter(tensor)
        return device


class Mark:
    """What the storage of a tensor holds on to: its device (None: unsettled), and whether it is pinned."""

    __slots__ = ("_ledger", "_nbytes", "device", "pinned")

    def __init__(
        self, device: torch.device | None, ledger: Ledger | None = None, nbytes: int = 0, *, pinned: bool = False
    ) -> None:
        self.device = device
        self.pinned = pinned
        self._ledger = ledger
        self._nbytes = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        if ledger is not None:
            ledger.take(self._nbytes)

    def __del__(self) -> None:
        if self._ledger is not None:
            self._ledger.give_back(self._nbytes)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mark:
        return self

    def __reduce__(self) -> Any:
        return Mark, (self.device,)


class SharedMark(Mark):
    """Of memory that several ranks reach: for each it is on the GPU that `ask` names."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], torch.device | None]) -> None:
        self._ask = ask
        self._ledger, self._nbytes, self.pinned = None, 0, False

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        return self._ask()


UNSETTLED = Mark(None)
PINNED = Mark(HOST, pinned=True)


def is_plain(tensor: Any) -> bool:
    """Whether its memory is its own: a Tensor, a Parameter, or of a class that leaves operators to torch."""
    return type(tensor) in PLAIN or (isinstance(tensor, Tensor) and not takes_apart(type(tensor)))


def is_strided(tensor: Tensor) -> bool:
    """Whether it has a storage, without a subclass noticing the question."""
    if type(tensor) in PLAIN:
        return tensor.layout is torch.strided
    with _without_function_modes():
        return tensor.layout is torch.strided


def has_place(tensor: Any) -> bool:
    """Whether a tensor can be on a simulated GPU: its memory is the CPU's, and it is no stand-in of torch's own."""
    return is_plain(tensor) and is_strided(tensor) and _real_device(tensor).type == "cpu"


def not_strided(tensor: Tensor) -> NotImplementedError:
    """Of a tensor that cannot be on a simulated GPU."""
    layout = str(tensor.layout).removeprefix("torch.")
    return NotImplementedError(
        f"a tensor of layout {layout} on a simulated GPU is not modelled (see docs/limits.md): use device='cpu'"
    )


def storage_of(tensor: Tensor) -> Any:
    """The storage, without anybody noticing that it was asked for."""
    with _without_function_modes():
        return tensor.untyped_storage()


def mark_of(tensor: Tensor) -> Mark | None:
    """The mark of a tensor that has a place, or of a subclass that was made for a GPU."""
    with _without_function_modes():
        try:
            mark: Mark | None = tensor.untyped_storage().__dict__.get("simulated_place")
        except (RuntimeError, NotImplementedError):  # it has no storage
            return None
        return mark


def put(tensor: Tensor, mark: Mark | None) -> None:
    """Let the memory of `tensor` count as being there (None: on the host)."""
    storage = storage_of(tensor)
    if mark is None:
        storage.__dict__.pop("simulated_place", None)
    else:
        storage.simulated_place = mark


def device_of(tensor: Tensor) -> torch.device:
    """`tensor.device`, as a rank sees it."""
    if not is_plain(tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)
    mark = mark_of(tensor) if is_strided(tensor) else None
    return _real_device(tensor) if mark is None or mark.device is None else mark.device


def is_on_gpu(tensor: Any) -> bool:
    """Whether it counts as being on a GPU; a DTensor is where its part is."""
    if not is_plain(tensor):
        tensor = getattr(tensor, "_local_tensor", tensor)
    if not isinstance(tensor, Tensor) or not is_strided(tensor):
        return False
    mark = mark_of(tensor)
    return mark is not None and mark.device is not None and mark.device.type == "cuda"


def tensors_among(values: Any) -> list[Tensor]:
    """The tensors that have a place among arguments or results: single ones, and those in lists."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            if has_place(value):
                found.append(value)
        elif isinstance(value, list | tuple):
            found += [each for each in value if isinstance(each, Tensor) and has_place(each)]
    return found
