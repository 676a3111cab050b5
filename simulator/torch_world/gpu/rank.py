"""The GPUs of one simulated rank: which ones it sees, which one is current, and what lies in their memory.

Follows the CUDA runtime: the current device belongs to a thread, and is 0 in a new one; CUDA_VISIBLE_DEVICES is read
once, when the rank first uses a device. All GPUs are of one kind (`DeviceProperties`: an NVIDIA H200, as measured).

Not modelled: memory running out; the bytes that a kernel, a library or a communicator needs for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulator.torch_world.gpu.ledger import Ledger
from simulator.torch_world.gpu.place import HOST, PINNED, Mark, SharedMark, put, storage_of

if TYPE_CHECKING:
    from simulator.torch_world.context import RankContext
    from simulator.torch_world.simulation import Simulation

CONTEXT_BYTES = 650_969_088
"""What a CUDA context takes of the memory of an H200, as `mem_get_info` shows it (torch 2.11, CUDA 13.0)."""
_Generator: Any = torch.Generator


class GpuGenerator(_Generator):  # type: ignore[misc]
    """A generator of random numbers that counts as one of a GPU. Its numbers are those of torch's for the CPU."""

    index: int

    def __new__(cls, index: int) -> Any:
        made = super().__new__(cls, "cpu")
        made.index = index
        return made

    def __init__(self, index: int) -> None:
        """All is done by then: C++ takes the kind of device when it makes the object."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """As `torch.cuda.get_device_properties` gives them; those of an H200."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    total_memory: int = 150_109_880_320
    multi_processor_count: int = 132
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    L2_cache_size: int = 62914560
    clock_rate: int = 1980000
    memory_clock_rate: int = 3201000
    memory_bus_width: int = 6016
    gcnArchName: str = "NVIDIA H200"
    uuid: str = ""
    pci_domain_id: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0


def invalid_ordinal() -> RuntimeError:
    """What CUDA raises for a device that is not there."""
    kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` "
        "to enable device-side assertions.\n"
    )
    return error


class RankGpus:
    """The GPUs that one rank sees.

    Attributes:
        ledgers: by visible index, what its tensors take.
        generators: by visible index, the state of the random numbers.
        was_set: the rank has chosen a device itself.
    """

    def __init__(self, sim: Simulation, context: RankContext) -> None:
        self._sim = sim
        self._context = context
        self._visible: tuple[int, ...] | None = None
        self._current: dict[int, int] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.generators: dict[int, Any] = {}
        self.streams: Any = None
        self.was_set = False
        self.operators: Any = None

    @property
    def initialized(self) -> bool:
        """It has used a device, so that CUDA_VISIBLE_DEVICES is settled."""
        return self._visible is not None

    def attend(self, task: int) -> None:
        """Watch the operators of the calling thread, whose task has this number."""
        if self.operators is not None:
            self.operators.attend(task)

    def visible(self) -> tuple[int, ...]:
        """Physical numbers of the devices that it sees, on its node."""
        return self._asked_for() if self._visible is None else self._visible

    def _asked_for(self) -> tuple[int, ...]:
        text = self._context.env.get(b"CUDA_VISIBLE_DEVICES")
        if text is None:
            return tuple(range(self._context.node.gpus))
        return visible_devices(text.decode(errors="replace"), self._context.node.gpus)

    def initialize(self) -> None:
        """From now on the visible devices are what they are.

        Raises:
            RuntimeError: it sees none.
        """
        if self._visible is None:
            seen = self._asked_for()
            if not seen:
                raise RuntimeError("No CUDA GPUs are available")
            self._visible = seen

    @property
    def current(self) -> int:
        """The current device of the calling thread."""
        return self._current.get(self._thread(), 0)

    def select(self, index: int) -> int:
        """Make it the current device; returns the one before.

        Raises:
            torch.AcceleratorError: there is no such device.
        """
        before = self.current
        self.check(index)
        self._current[self._thread()] = index
        return before

    def _thread(self) -> int:
        task = self._sim.scheduler.current
        return -1 if task is None else task.number

    def check(self, index: int) -> None:
        """Raises what CUDA raises if there is no device `index`."""
        self.initialize()
        if not 0 <= index < len(self.visible()):
            raise invalid_ordinal()

    def physical(self, index: int) -> tuple[int, int]:
        """(node, number on the node) of a visible device."""
        return self._context.node.number, self.visible()[index]

    def properties(self, index: int) -> DeviceProperties:
        """Of a visible device; devices are told apart by `uuid` and PCI numbers."""
        node, number = self.physical(index)
        return DeviceProperties(uuid=uuid_of(node, number), pci_bus_id=number + 1)

    def await_stream(self) -> None:
        """The host reads memory of a GPU, and so waits for all that is on the current stream."""
        if self._context.device is not None and not self._context.device.streams.idle:
            self._context.device.synchronize()

    def drain(self) -> None:
        """The host waits for all that it has given its device to do."""
        if self._context.device is not None:
            self._context.device.drain()

    # -- random numbers ----------------------------------------------------------------------------------------------

    def generator(self, index: int) -> torch.Generator:
        """Of a visible device. Its numbers are those of torch's generator for the CPU."""
        if index not in self.generators:
            self.generators[index] = GpuGenerator(index)
        made: torch.Generator = self.generators[index]
        return made

    @contextmanager
    def random_numbers(self, device: torch.device) -> Iterator[None]:
        """While open, random numbers come from the generator of `device`, if that is a GPU."""
        if device.type != "cuda":
            yield
            return
        own, default = self.generator(device.index or 0), torch.default_generator
        kept = default.get_state()
        default.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(default.get_state())
            default.set_state(kept)

    # -- tensors -----------------------------------------------------------------------------------------------------

    def resolve(self, device: torch.device) -> torch.device:
        """A device with its index. Other devices than GPUs stay what they are.

        Raises:
            torch.AcceleratorError: there is no such GPU.
        """
        if device.type != "cuda":
            return device
        index = self.current if device.index is None else device.index
        self.check(index)
        return torch.device("cuda", index)

    def ledger(self, index: int) -> Ledger:
        return self.ledgers.setdefault(index, Ledger())

    def place(self, tensor: Tensor, device: torch.device, *, pinned: bool = False) -> Tensor:
        """Let the memory of a tensor count as being on `device`, which has its index."""
        if device.type == "cuda":
            nbytes = 0 if tensor.is_meta else storage_of(tensor).nbytes()
            put(tensor, Mark(device, self.ledger(device.index or 0), nbytes))
        else:
            put(tensor, PINNED if pinned else None)
        return tensor

    def share(self, tensor: Tensor) -> None:
        """Let memory that ranks share count as being on the current GPU of the rank that looks at it."""
        sim = self._sim

        def device() -> torch.device | None:
            context = sim.here()
            gpus = None if context is None else context.gpus
            return None if gpus is None else torch.device("cuda", gpus.current)

        put(tensor, SharedMark(device))

    def free_bytes(self, index: int) -> int:
        """What is left, if nobody else uses the device."""
        return DeviceProperties().total_memory - CONTEXT_BYTES - self.ledger(index).allocated


def visible_devices(text: str, count: int) -> tuple[int, ...]:
    """What CUDA_VISIBLE_DEVICES leaves of `count` devices: up to the first that is not there; none if one is twice."""
    found: list[int] = []
    for part in text.split(","):
        name = part.strip()
        uuids = {uuid_of(node, number): number for node in range(1) for number in range(count)}
        number = int(name) if name.isdecimal() else uuids.get(name.removeprefix("GPU-"), -1)
        if number in found:
            return ()
        if not 0 <= number < count:
            break
        found.append(number)
    return tuple(found)


def uuid_of(node: int, number: int) -> str:
    """A made-up identity of a device."""
    return f"00000000-0000-0000-{node:04x}-{number:012x}"


def as_device(value: Any) -> torch.device:
    """What is given as `device=`: a name, a number, or a torch.device."""
    if isinstance(value, torch.device):
        return value
    if isinstance(value, int):
        return torch.device("cuda", value)
    return torch.device(value) if value is not None else HOST
