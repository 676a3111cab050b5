"""Scalars that differ between the threads of a program.

Triton knows no such thing, but an inline assembly that reads %tid.x makes one. Here it is a scalar whose array has one
value for each thread, and NumPy carries it through arithmetic. A branch on it is taken by those threads for which it
holds; the others wait at its end, if it has no `else`.

    if thread < world_size:      # 8 of 128 threads
        signal(...)              # an inline assembly over scalars: 8 lanes

Not modelled: an `else` of such a branch, a loop on such a value, making a tensor of it. Variables that the branch
assigns have the new value for all threads afterwards. Stores and atomics of scalars are thread 0's, and of tensors,
those of the threads that have the elements, whatever the branch: Triton compiles them so.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from simulator.triton_world.errors import NotModelled
from simulator.triton_world.program import Program
from simulator.triton_world.ptx_types import Array


class Lanes(np.ndarray[Any, Any]):
    """One value for each thread of the program."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = super().__array_function__(function, types, args, kwargs)
        return out.view(Lanes) if isinstance(out, np.ndarray) and out.shape == self.shape else out


def merged(values: Array, active: Array, threads: int) -> Array:
    """What an assembly gave its running threads, as a scalar: [1] if all have the same, else `Lanes`.

    Args:
        values: [running].
        active: numbers of the running threads.
    """
    if (values == values[0]).all():
        return values[:1]
    whole = np.full(threads, values[0], values.dtype)
    whole[active] = values
    return whole.view(Lanes)


def of_threads(values: Array, active: Array, threads: int) -> Array:
    """A scalar operand, for each running thread."""
    flat = np.asarray(values).reshape(-1)
    return (
        flat[active] if isinstance(values, Lanes) and flat.size == threads else np.broadcast_to(flat[:1], len(active))
    )


def as_scalar(values: Array, what: str) -> Array:
    """Values where a thread number must not decide.

    Raises:
        NotModelled: the threads have different ones.
    """
    if isinstance(values, Lanes) and values.size > 1:
        raise NotModelled(f"{what} depends on the thread (%tid.x): Triton takes it to be the same for all")
    return values


class Branch:
    """`if condition:` of a kernel, for those threads that take it. Use as a context: gives what `if` asks.

    Args:
        condition: as the kernel has it: a tensor of Triton, or anything.
        has_else: the branch has an `else`.
    """

    def __init__(self, program: Program, condition: Any, has_else: bool) -> None:
        self._program = program
        self._condition = condition
        self._has_else = has_else
        self._before = program.active

    def __enter__(self) -> Any:
        data = getattr(getattr(self._condition, "handle", None), "data", None)
        if not isinstance(data, Lanes) or data.size == 1:
            return self._condition
        running = self._program.running_threads()
        taken = running[np.asarray(data).reshape(-1)[running].astype(bool)]
        if len(taken) in (0, len(running)):
            return len(taken) > 0
        if self._has_else:
            raise NotModelled("a branch on the thread (%tid.x) with an `else`")
        self._program.active = taken
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._program.active = self._before
