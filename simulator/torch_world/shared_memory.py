"""multiprocessing.shared_memory: a segment is visible on its own node only."""

from __future__ import annotations

from multiprocessing import shared_memory
from typing import Any

from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation


class _Segment:
    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)


class Segments:
    """The segments of all nodes, by (node, name)."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._by_name: dict[tuple[int, str], _Segment] = {}
        self._count = 0

    def open(self, name: str | None, create: bool, size: int) -> tuple[str, _Segment]:
        """Create or find a segment on the caller's node."""
        node = self._sim.must_be_here("shared memory").node.number
        if not create:
            if name is None or (node, name) not in self._by_name:
                raise FileNotFoundError(2, "No such file or directory", f"/{name}")
            return name, self._by_name[node, name]
        if size <= 0:
            raise ValueError("'size' must be a positive number different from zero")
        if name is None:
            self._count += 1
            name = f"psm_{self._count:08x}"
        if (node, name) in self._by_name:
            raise FileExistsError(17, "File exists", f"/{name}")
        segment = self._by_name[node, name] = _Segment(size)
        return name, segment

    def unlink(self, name: str, node: int) -> None:
        """The name is gone; whoever has the segment open keeps it."""
        if self._by_name.pop((node, name), None) is None:
            raise FileNotFoundError(2, "No such file or directory", f"/{name}")


def install_shared_memory(patches: Patches, sim: Simulation) -> None:
    """Replace `SharedMemory`; outside the ranks the name still makes real segments."""
    segments = Segments(sim)
    real = shared_memory.SharedMemory

    class SharedMemory:
        """As multiprocessing.shared_memory.SharedMemory, on the calling rank's node."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if sim.here() is None else super().__new__(cls)

        def __init__(self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True) -> None:
            self._node = sim.must_be_here("shared memory").node.number
            if sim.probe_watch is not None:
                sim.probe_watch("shared_memory", sim.sites.capture(1))
            self._name, self._segment = segments.open(name, create, size)
            self._view: memoryview | None = memoryview(self._segment.bytes)

        @property
        def name(self) -> str:
            return self._name

        @property
        def size(self) -> int:
            return len(self._segment.bytes)

        @property
        def buf(self) -> memoryview | None:
            return self._view

        def close(self) -> None:
            self._view = None

        def unlink(self) -> None:
            segments.unlink(self._name, self._node)

    patches.set(shared_memory, "SharedMemory", SharedMemory)
