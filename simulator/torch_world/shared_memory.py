"""multiprocessing.shared_memory: a segment is visible on its own node only.

Not modelled: /dev/shm (nobody else sees a segment), its size limit, the refusal to close a segment of which a slice is
in use, and the resource tracker, which would unlink what a process leaves behind: a segment stays until somebody
unlinks it or the run ends.
"""

from __future__ import annotations

from multiprocessing import resource_tracker, shared_memory
from typing import Any

from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation

Segment = bytearray


class Segments:
    """The segments of all nodes, by (node, name)."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._forget()
        sim.at_begin.append(self._forget)

    def _forget(self) -> None:
        self._by_name: dict[tuple[int, str], Segment] = {}
        self._count = 0

    def open(self, name: str | None, create: bool, size: int) -> tuple[str, Segment]:
        """Create or find a segment on the caller's node; names have the leading slash of POSIX.

        Raises:
            FileExistsError: `create`, and it is there.
            FileNotFoundError: not `create`, and it is not there.
            ValueError: no size, or no name, where one is needed.
        """
        node = self._sim.must_be_here("shared memory").node.number
        if size < 0:
            raise ValueError("'size' must be a positive integer")
        if create and size == 0:
            raise ValueError("'size' must be a positive number different from zero")
        if name is None:
            if not create:
                raise ValueError("'name' can only be None if create=True")
            self._count += 1
            name = f"psm_{self._count:08x}"
        name = f"/{name}"
        self._sim.announce("create" if create else "open", ("segment", node, name), writes=create)
        present = self._by_name.get((node, name))
        if not create:
            if present is None:
                raise FileNotFoundError(2, "No such file or directory", name)
            return name, present
        if present is not None:
            raise FileExistsError(17, "File exists", name)
        segment = self._by_name[node, name] = Segment(size)
        return name, segment

    def unlink(self, name: str, node: int) -> None:
        """The name is gone; whoever has the segment open keeps it."""
        self._sim.announce("unlink", ("segment", node, name))
        if self._by_name.pop((node, name), None) is None:
            raise FileNotFoundError(2, "No such file or directory", name)


def install_shared_memory(patches: Patches, sim: Simulation) -> None:
    """Replace `SharedMemory`; outside the ranks the name still makes real segments."""
    segments = Segments(sim)
    real = shared_memory.SharedMemory

    class SharedMemory:
        """As multiprocessing.shared_memory.SharedMemory, on the calling rank's node."""

        _buf: memoryview | None = None

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs) if sim.here() is None else super().__new__(cls)

        def __init__(self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True) -> None:
            self._node = sim.must_be_here("shared memory").node.number
            if sim.probe_watch is not None:
                sim.probe_watch("shared_memory", sim.sites.capture(1))
            self._name, segment = segments.open(name, create, size)
            self._size = len(segment)
            self._buf = memoryview(segment)

        @property
        def name(self) -> str:
            return self._name[1:]

        @property
        def size(self) -> int:
            return self._size

        @property
        def buf(self) -> memoryview | None:
            return self._buf

        def close(self) -> None:
            if self._buf is not None:
                self._buf.release()
                self._buf = None

        def unlink(self) -> None:
            segments.unlink(self._name, self._node)

        def __reduce__(self) -> Any:
            return SharedMemory, (self.name, False, self.size)

        def __repr__(self) -> str:
            return f"SharedMemory({self.name!r}, size={self.size})"

    SharedMemory.__module__, SharedMemory.__qualname__ = real.__module__, real.__qualname__  # pickle looks there

    def untracked(context: Any, real: Any, name: str, kind: str) -> None:
        if kind != "shared_memory":
            real(name, kind)

    patches.set(shared_memory, "SharedMemory", SharedMemory)
    per_rank(patches, sim, resource_tracker, "register", untracked)
    per_rank(patches, sim, resource_tracker, "unregister", untracked)
