"""Sees the torch operations of a rank that read or write shared memory, and records them as accesses of its host.

It is a dispatch mode at the bottom of the stack of each thread of the rank, from the rank's first symmetric tensor on.
It sees operators with their schema: an argument marked as written is written, any other tensor is read, views and
questions about a tensor are no access. Indexing touches what it touches (`simulator.torch_world.touched`).

Not seen: what reads or writes memory without an operator (NumPy arrays and buffers on a tensor's memory after they
were made, ctypes, `pickle`, the inside of compiled functions and of operators written in Python).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.engine.site import Stack
from simulator.memory_records import Access
from simulator.torch_world.host_order import await_stream
from simulator.torch_world.operands import Operand, operands, shares, tensors_in
from simulator.torch_world.symmetric_operators import refuse_operator
from simulator.torch_world.touched import is_shared, spans_of, touched

if TYPE_CHECKING:
    from simulator.torch_world.context import RankContext
    from simulator.torch_world.simulation import Simulation

_RECORDED_ELSEWHERE = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor")


class MemoryWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    supports_higher_order_operators = True

    def __init__(self, sim: Simulation, context: RankContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sim = sim
        self._memory = sim.memory
        self._context = context
        self._threads: set[int] = set()
        self._arguments: dict[Any, tuple[Operand, ...]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler at the first operation."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def attend(self, task: int) -> None:
        """Watch the calling thread, whose task has this number, below the modes that it has entered."""
        if task in self._threads:
            return
        self._threads.add(task)
        entered = []
        while torch._C._len_torch_dispatch_stack():
            entered.append(torch._C._pop_torch_dispatch_stack(None))
        for mode in (self, *reversed(entered)):
            torch._C._push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind is not torch.Tensor for kind in types):
            below = torch._C._len_torch_dispatch_stack() > 0  # a mode of torch's own, such as that of fake tensors
            return func(*args, **kwargs) if below else NotImplemented  # a subclass takes it apart; its parts come here
        if self._memory is not self._sim.memory or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if func.namespace == "symm_mem":
            refuse_operator(self._sim, func.overloadpacket.__name__)
        if func.namespace in _RECORDED_ELSEWHERE:
            return func(*args, **kwargs)
        shared = list(self._shared(func, args, kwargs))
        if shared:
            await_stream(self._sim)
        result = func(*args, **kwargs)
        if shared:
            self._record(func, args, kwargs, result, shared)
        return result

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _shared(self, func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Operand, torch.Tensor]]:
        """The arguments that lie on shared memory."""
        known = self._arguments.get(func)
        if known is None:
            known = self._arguments[func] = tuple(operands(func))
        for argument in known:
            value = args[argument.place] if argument.place < len(args) else kwargs.get(argument.name)
            for tensor in tensors_in(value):
                if is_shared(self._memory, tensor):
                    yield argument, tensor

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
