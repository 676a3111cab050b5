"""`triton.language` while kernels of simulated ranks run: in a program the interpreter's, elsewhere what it was.

Triton's own interpreter replaces the language for the time of a call. Programs of many ranks are under way at once
here, and host code runs between them, so each replacement asks who is calling: a rank may compile a kernel while
another one's kernel waits.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from simulator.torch_world.patches import Patches
from simulator.triton_world import triton_api
from simulator.triton_world.lanes import Lanes, as_scalar
from simulator.triton_world.program import Program
from simulator.triton_world.triton_api import Change

InProgram = Callable[[], Program | None]


def install_language(patches: Patches, program: InProgram, semantic: Any) -> dict[int, Any]:
    """Replace what the interpreter replaces. Returns the replacements by the identity of what they stand for."""
    replaced: dict[int, Any] = {}
    for change in triton_api.changes_of_language():
        new = _replacement(change, program, semantic)
        patches.set(change.owner, change.name, new)
        if not isinstance(change.owner, type):
            replaced[id(change.original)] = new
    return replaced


def _replacement(change: Change, program: InProgram, semantic: Any) -> Any:
    if change.is_builtin:
        return _with_semantic(change.original, program, semantic)
    if isinstance(change.interpreted, property):
        return _property(change, program)
    if change.name == "__bool__" and change.owner is triton_api.tensor:
        return _truth(change, program)
    if change.name == "__index__" and change.owner is triton_api.tensor:
        return _index(program)
    return _either(change, program)


def _with_semantic(original: Any, program: InProgram, semantic: Any) -> Any:
    """An operation of the language: a kernel that is interpreted calls it without `_semantic`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if "_semantic" not in kwargs and program() is not None:
            kwargs["_semantic"] = semantic
        return original(*args, **kwargs)

    return _dressed(call, original)


def _either(change: Change, program: InProgram) -> Any:
    """What the interpreter has instead. Classes such as `tl.range` are called, too."""
    original, interpreted = change.original, change.interpreted

    def call(*args: Any, **kwargs: Any) -> Any:
        inside = "_semantic" not in kwargs and program() is not None
        return (interpreted if inside else original)(*args, **kwargs)

    return _dressed(call, original)


def _dressed(call: Any, original: Any) -> Any:
    """Let tools and Triton's compiler see what they look for."""
    for name in ("__name__", "__doc__", "__module__", "__qualname__", "__signature__"):
        value = getattr(original, name, None)
        if value is not None:
            setattr(call, name, value)
    if triton_api.is_builtin(original):
        triton_api.mark_builtin(call)
    call.__wrapped__ = original
    return call


def _property(change: Change, program: InProgram) -> property:
    original, interpreted = change.original, change.interpreted

    def get(self: Any) -> Any:
        chosen = interpreted if program() is not None else original
        return chosen.__get__(self, type(self)) if hasattr(chosen, "__get__") else chosen

    return property(get)


def _truth(change: Change, program: InProgram) -> Any:
    """A scalar is true or false; without an interpreter a tensor is an object like any other."""
    interpreted, missing = change.interpreted, triton_api.is_missing(change.original)

    def truth(self: Any) -> bool:
        if program() is None:
            return True if missing else builtins.bool(change.original(self))
        data = self.handle.data
        if isinstance(data, Lanes) and data.size > 1:
            return _same_for_all(data)
        return builtins.bool(interpreted(self))

    return truth


def _same_for_all(data: Lanes) -> bool:
    if data.all() or not data.any():
        return builtins.bool(data.all())
    return builtins.bool(as_scalar(data, "a condition outside of an `if` statement"))


def _index(program: InProgram) -> Any:
    """A scalar counts, as the bound of a loop for instance. Triton 3.6 asks NumPy in a way that newer ones refuse."""

    def index(self: Any) -> int:
        if program() is None:
            raise TypeError(f"{type(self).__name__!r} object cannot be interpreted as an integer")
        data = as_scalar(self.handle.data, "a number of iterations")
        if data.size != 1:
            raise TypeError("only a scalar can be interpreted as an integer")
        return builtins.int(data.reshape(-1)[0])

    return index
