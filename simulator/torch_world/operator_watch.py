"""A dispatch mode that sees the torch operations of one rank, on each of its threads. Base of the watches.

Not seen: what reads or writes memory without an operator of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.torch_world.operands import Operand, operands, tensors_in

_DTYPES = ((bool, torch.bool), (int, torch.int64), (float, torch.float64), (complex, torch.complex128))
_NUMBERS = (int, float, complex)


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The watch over one rank. `attend` puts it on the calling thread."""

    supports_higher_order_operators = True
    above_other_watches = False
    """Lie above the simulator's other modes, and so see what they defer, but below the user's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        """Watch the calling thread, whose task has this number, below the modes that the user has entered."""
        if task in self._threads:
            return
        self._threads.add(task)
        entered = []
        while torch._C._len_torch_dispatch_stack():
            entered.append(torch._C._pop_torch_dispatch_stack(None))
        below = [mode for mode in entered if self.above_other_watches and is_ours(mode)]
        above = [mode for mode in entered if mode not in below]
        for mode in (*reversed(below), self, *reversed(above)):
            torch._C._push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(takes_apart, types)):
            below = torch._C._len_torch_dispatch_stack() > 0  # a mode of torch's own, such as that of fake tensors
            return func(*args, **kwargs) if below else NotImplemented  # a subclass takes it apart; its parts come here
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        return self._seen(func, _numbers_as_tensors(func, args), kwargs)

    def _seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call the operator, and return what it returns."""
        raise NotImplementedError

    def _given(self, func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Operand, torch.Tensor]]:
        """The tensors that the operator is given, each with what happens to it."""
        known = self._operands.get(func)
        if known is None:
            known = self._operands[func] = tuple(operands(func))
        for operand in known:
            value = args[operand.place] if operand.place < len(args) else kwargs.get(operand.name)
            for tensor in tensors_in(value):
                yield operand, tensor


def takes_apart(kind: Any) -> bool:
    """Whether a class of tensors has operators of its own. Parameters have not, nor have classes made of them."""
    own: bool = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own


def _numbers_as_tensors(func: Any, args: Any) -> Any:
    """A number in a traced program is a tensor, but reaches modes as a number, which few operators take back."""
    if not any(isinstance(arg, _NUMBERS) for arg in args):
        return args
    if torch._C._should_allow_numbers_as_tensors(func.overloadpacket.__name__):
        return args
    given = func._schema.arguments
    return tuple(_as_tensor(arg) if _is_number_for(given[place], arg) else arg for place, arg in enumerate(args))


def _is_number_for(given: Any, value: Any) -> bool:
    """A number where the schema has a tensor."""
    return isinstance(value, _NUMBERS) and isinstance(given.type, torch.TensorType)


def _as_tensor(number: Any) -> Any:
    """With the dtype that torch gives a tensor of a number in a traced program."""
    dtype = next(dtype for kind, dtype in _DTYPES if isinstance(number, kind))
    return torch.ops.aten.scalar_tensor.default(number, dtype=dtype, device=torch.device("cpu"))


def is_ours(mode: Any) -> bool:
    """Whether a mode is one of the simulator's."""
    return type(mode).__module__.startswith("simulator.")
