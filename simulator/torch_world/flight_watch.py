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

from simulator.torch_world.operands import shares
from simulator.torch_world.operator_watch import OperatorWatch

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
        if getattr(func, "stands_for", func) in _DIRECT_READS and self._calls.flights and type(args[0]) is torch.Tensor:
            self._calls.touch(args[0], written=False)
        return func(*args, **(kwargs or {}))

    def attend(self) -> None:
        """Watch the calling thread."""
        entered = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
        for mode in (self, *reversed(entered)):
            torch._C._push_on_torch_function_stack(mode)


class FlightWatch(OperatorWatch):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    above_other_watches = True

    def __init__(self, calls: InFlight) -> None:
        super().__init__()
        self._calls = calls
        self._reads = _DirectReads(calls)

    def attend(self, task: int) -> None:
        """As of any watch, and the reads that are no operators with it."""
        if task not in self._threads:
            self._reads.attend()
        super().attend(task)

    def _seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if self._calls.flights and func.namespace not in _NOT_THE_USERS:
            for operand, tensor in self._given(func, args, kwargs):
                if tensor.layout is torch.strided and not (operand.viewed and shares(tensor, result)):
                    self._calls.touch(tensor, written=operand.written)
        return result
