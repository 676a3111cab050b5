"""Set attributes of foreign objects, and set them back in the opposite order.

Modules that took a function over by name (`from time import sleep`) are followed. Not followed: default arguments,
class attributes and closures that hold it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_ABSENT = object()
_LOOK_UP_AT_EACH_CALL = ("torch", "numpy", "sympy", "mpmath", "simulator")
"""Packages in which nobody takes over what is replaced; most of a process's modules are theirs."""


class Patches:
    """Remembers what it replaced. `undo` restores everything, also after an error in between."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, Any, Any]] = []
        self._replaced: list[tuple[Any, Any]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        """Like `setattr(target, name, value)`."""
        old = vars(target).get(name, _ABSENT)
        self._saved.append((target, name, old))
        if callable(old) and isinstance(target, ModuleType):
            self._replaced.append((old, value))
        setattr(target, name, value)

    def set_module(self, name: str, module: ModuleType) -> None:
        """Put `module` into `sys.modules`."""
        self._saved.append((None, name, sys.modules.get(name, _ABSENT)))
        sys.modules[name] = module

    def set_item(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Like `table[key] = value`."""
        self._saved.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def follow_imports(self) -> None:
        """Replace in all modules what they took over from a module that was patched."""
        _exchange({id(old): new for old, new in self._replaced})

    def undo(self) -> None:
        """Put everything back, also where a module that was imported meanwhile took a replacement over."""
        while self._saved:
            target, name, value = self._saved.pop()
            table = sys.modules if target is None else target
            if isinstance(table, dict):
                if value is _ABSENT:
                    table.pop(name, None)
                else:
                    table[name] = value
            elif value is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, value)
        _exchange({id(new): old for old, new in reversed(self._replaced)})
        self._replaced.clear()


def _exchange(by_identity: dict[int, Any]) -> None:
    wanted = set(by_identity)
    for names in _namespaces():
        if not wanted.isdisjoint(map(id, list(names.values()))):
            for name, value in list(names.items()):
                if id(value) in wanted:
                    names[name] = by_identity[id(value)]


def _namespaces() -> Iterator[dict[str, Any]]:
    """Those of modules written in Python: what is defined in C (`_thread.allocate_lock`) stays as it is there."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("_") and name.partition(".")[0] not in _LOOK_UP_AT_EACH_CALL:
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict) and "__file__" in names:
                yield names
