"""Sees the torch operations of a rank that read or write shared memory, and records them as accesses of its host.

It is a dispatch mode at the bottom of the stack of each thread of the rank, from the rank's first symmetric tensor on.
It sees operators with their schema: an argument marked as written is written, any other tensor is read, views and
questions about a tensor are no access. Indexing touches what it touches (`simulator.torch_world.touched`).

Not seen: what reads or writes memory without an operator (NumPy arrays and buffers on a tensor's memory after they
were made, ctypes, `pickle`, the inside of compiled functions and of operators written in Python).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from simulator.engine.site import Stack
from simulator.memory_records import Access
from simulator.torch_world.host_order import await_stream
from simulator.torch_world.operands import Operand, shares
from simulator.torch_world.operator_watch import OperatorWatch
from simulator.torch_world.symmetric_operators import refuse_operator
from simulator.torch_world.touched import is_shared, spans_of, touched

if TYPE_CHECKING:
    from simulator.torch_world.context import RankContext
    from simulator.torch_world.simulation import Simulation

_RECORDED_ELSEWHERE = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor")


class MemoryWatch(OperatorWatch):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    def __init__(self, sim: Simulation, context: RankContext) -> None:
        super().__init__()
        self._sim = sim
        self._memory = sim.memory
        self._context = context

    def _seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._memory is not self._sim.memory:
            return func(*args, **kwargs)
        if func.namespace == "symm_mem":
            refuse_operator(self._sim, func.overloadpacket.__name__)
        if func.namespace in _RECORDED_ELSEWHERE:
            return func(*args, **kwargs)
        shared = [given for given in self._given(func, args, kwargs) if is_shared(self._memory, given[1])]
        if shared:
            await_stream(self._sim)
        result = func(*args, **kwargs)
        if shared:
            self._record(func, args, kwargs, result, shared)
        return result

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _record(
        self, func: Any, args: Any, kwargs: Any, result: Any, shared: list[tuple[Operand, torch.Tensor]]
    ) -> None:
        stack = self._sim.sites.capture(1)
        for argument, tensor in shared:
            if not (argument.viewed and shares(tensor, result)):
                self._touch(func, argument, tensor, args, kwargs, stack)

    def _touch(self, func: Any, argument: Operand, tensor: torch.Tensor, args: Any, kwargs: Any, stack: Stack) -> None:
        elements = None
        if argument.place == 0:
            elements = touched(func, func.overloadpacket.__name__, tensor, tuple(args[1:]), kwargs)
        spans = spans_of(self._memory, tensor, elements)
        actor = self._memory.host(self._context.rank).number
        for kind, is_done in (("read", argument.read), ("write", argument.written)):
            if is_done:
                self._memory.record(Access(actor, kind, "weak", "", spans, stack))
