"""Sees the torch operations of a rank that touch a tensor of an asynchronous call that is still in flight.

A dispatch mode on each thread of the rank, from its first asynchronous call on: below the user's own modes, above those
of the simulator, so that it sees an operation when the host issues it.

Not seen: what reads or writes memory without an operator, but for `tolist` and the making of a NumPy array.  Under
greenlets nothing is watched, since a mode belongs to a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.torch_world.operands import Operand, operands, shares, tensors_in

if TYPE_CHECKING:
    from simulator.torch_world.in_flight import InFlight

_DIRECT_READS = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__})
"""What reads a tensor without an operator."""
_NOT_THE_USERS = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem")


class _DirectReads(TorchFunctionMode):
    """Sees the reads that are no operators, below the user's own modes."""

    def __init__(self, calls: InFlight) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DIRECT_READS and self._calls.flights and type(args[0]) is torch.Tensor:
            self._calls.touch(args[0], written=False)
        return func(*args, **(kwargs or {}))

    def attend(self) -> None:
        """Watch the calling thread."""
        entered = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        for mode in (self, *reversed(entered)):
            torch._C._push_on_torch_function_stack(mode)


class FlightWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    supports_higher_order_operators = True

    def __init__(self, calls: InFlight) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls
        self._reads = _DirectReads(calls)
        self._threads: set[int] = set()
        self._operands: dict[Any, tuple[Operand, ...]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler at the first operation."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def attend(self, task: int) -> None:
        """Watch the calling thread, whose task has this number."""
        if task in self._threads:
            return
        self._threads.add(task)
        self._reads.attend()
        entered = []
        while torch._C._len_torch_dispatch_stack():
            entered.append(torch._C._pop_torch_dispatch_stack(None))
        ours = [mode for mode in entered if type(mode).__module__.startswith("simulator.")]
        users = [mode for mode in entered if mode not in ours]
        for mode in (*reversed(ours), self, *reversed(users)):
            torch._C._push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind is not torch.Tensor for kind in types):
            below = torch._C._len_torch_dispatch_stack() > 0
            return func(*args, **kwargs) if below else NotImplemented  # a subclass takes it apart; its parts come here
        if not self._calls.flights or not isinstance(func, torch._ops.OpOverload) or func.namespace in _NOT_THE_USERS:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        self._look(func, args, kwargs, result)
        return result

    def _look(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        known = self._operands.get(func)
        if known is None:
            known = self._operands[func] = tuple(operands(func))
        for operand in known:
            value = args[operand.place] if operand.place < len(args) else kwargs.get(operand.name)
            for tensor in tensors_in(value):
                if tensor.layout is torch.strided and not (operand.viewed and shares(tensor, result)):
                    self._calls.touch(tensor, written=operand.written)
