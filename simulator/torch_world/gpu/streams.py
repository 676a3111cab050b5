"""`torch.cuda.Stream` and `torch.cuda.Event` of simulated GPUs.

A rank has one stream of computations for each thread of control that the simulator knows: what is issued on any of its
streams runs in the order of issue, as on one. So values are right, `record` and `synchronize` wait for what was issued
before them, and `wait_stream` has nothing to add.

Not modelled: that streams of one rank run at the same time, so a missing `wait_stream` is not seen, and two collectives
that real streams would let pass each other do not. Time: `elapsed_time` is virtual time between two records. Graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from simulator.torch_world.gpu.rank import as_device

if TYPE_CHECKING:
    from simulator.torch_world.context import RankContext
    from simulator.torch_world.simulation import Simulation

_CUDA_TYPE = 1
"""The number of CUDA in C++'s DeviceType."""


class RankStreams:
    """The streams of one rank: which is current on which thread and device."""

    def __init__(self, sim: Simulation, context: RankContext) -> None:
        self.sim, self.context = sim, context
        self._current: dict[tuple[int, int], Any] = {}
        self._default: dict[int, Any] = {}
        self._made = 0

    def number(self) -> int:
        """Of a new stream; 0 is the default one."""
        self._made += 1
        return self._made

    def default(self, index: int) -> Any:
        if index not in self._default:
            kind: Any = torch.cuda.Stream
            self._default[index] = kind(torch.device("cuda", index), _number=0)
        return self._default[index]

    def current(self, index: int) -> Any:
        return self._current.get((self._thread(), index)) or self.default(index)

    def select(self, stream: Any) -> None:
        self.context.gpus.select(stream.device_index)
        self._current[self._thread(), stream.device_index] = stream

    def _thread(self) -> int:
        task = self.sim.scheduler.current
        return -1 if task is None else task.number

    def tail(self) -> Any:
        """The last operation that was issued, if it is not over."""
        device = self.context.device
        return None if device is None else device.streams.tail()

    def wait(self, op: Any) -> None:
        """The host waits until `op` is over."""
        device = self.context.device
        if device is not None and op is not None and not op.done:
            device.wait_for(op)
            device.raise_error()


def stream_classes(sim: Simulation) -> tuple[type, type]:
    """The classes `Stream` and `Event` for the ranks of `sim`."""

    def mine(what: str) -> RankStreams:
        context = sim.must_be_here(what)
        if context.gpus is None:
            raise RuntimeError(f"{what}: this rank has no simulated GPU; give ClusterOptions(accelerator='cuda')")
        streams: RankStreams = context.gpus.streams
        return streams

    class Stream:
        """A stream of a simulated GPU."""

        def __init__(self, device: Any = None, priority: int = 0, *, _number: int | None = None, **known: Any) -> None:
            self._streams = mine("torch.cuda.Stream")
            gpus = self._streams.context.gpus
            self.device = gpus.resolve(torch.device("cuda") if device is None else as_device(device))
            self.device_index: int = self.device.index or 0
            self.priority = min(0, max(priority, -5))
            given = known.get("stream_id", _number)
            self.stream_id: int = self._streams.number() if given is None else given
            self.device_type = _CUDA_TYPE

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        @property
        def native_handle(self) -> int:
            return self.stream_id

        def wait_event(self, event: Any) -> None:
            """Nothing to add: it runs behind what was issued before."""

        def wait_stream(self, stream: Any) -> None:
            """Nothing to add: it runs behind what was issued before."""

        def record_event(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            return self._streams.tail() is None

        def synchronize(self) -> None:
            self._streams.wait(self._streams.tail())

        def is_capturing(self) -> bool:
            return False

        def __enter__(self) -> Any:
            self._before = self._streams.current(self.device_index), self._streams.context.gpus.current
            self._streams.select(self)
            return self

        def __exit__(self, *error: Any) -> None:
            stream, index = self._before
            self._streams.select(stream)
            self._streams.context.gpus.select(index)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

        def __hash__(self) -> int:
            return hash((self.device_index, self.stream_id))

        def __repr__(self) -> str:
            return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

    class Event:
        """A moment on a stream of a simulated GPU."""

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            self._streams = mine("torch.cuda.Event")
            self._timing = enable_timing
            self._op: Any = None
            self.device: torch.device | None = None
            self._time_s: float | None = None

        def record(self, stream: Any = None) -> None:
            gpus = self._streams.context.gpus
            self.device = torch.device("cuda", gpus.current) if stream is None else stream.device
            self._op, self._time_s = self._streams.tail(), float(self._streams.sim.scheduler.env.now)

        def wait(self, stream: Any = None) -> None:
            """Nothing to add: what is issued next runs behind what was issued before."""

        def query(self) -> bool:
            return self._op is None or bool(self._op.done)

        def synchronize(self) -> None:
            self._streams.wait(self._op)

        def elapsed_time(self, end_event: Any) -> float:
            """Milliseconds of virtual time between two records."""
            if not (self._timing and end_event._timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self._time_s is None or end_event._time_s is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return float((end_event._time_s - self._time_s) * 1000)

        def ipc_handle(self) -> Any:
            raise NotImplementedError("torch.cuda.Event.ipc_handle is not modelled by the simulated accelerator")

        def __repr__(self) -> str:
            return "<torch.cuda.Event uninitialized>" if self.device is None else f"<torch.cuda.Event {self.device}>"

    for kind in (Stream, Event):
        kind.__module__, kind.__qualname__ = "torch.cuda", kind.__name__
    return Stream, Event
