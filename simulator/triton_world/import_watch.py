"""Tells when a module gets imported, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class ImportWatch(importlib.abc.MetaPathFinder):
    """Calls `on_import(module)` after one of `names` has been imported. Use: `start`, and `stop` in the end."""

    def __init__(self, names: Collection[str], on_import: Callable[[ModuleType], None]) -> None:
        self._names = frozenset(names)
        self._on_import = on_import

    def start(self) -> None:
        """Watch; what is there already is reported at once, in the order of names."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._names):
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self._on_import(module)

    def stop(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The real module, with a loader that reports it."""
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Reporting(spec.loader, self._on_import)
        return spec


class _Reporting(importlib.abc.Loader):
    """Loads as the real loader does, which has its place again afterwards."""

    def __init__(self, real: Any, on_import: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._on_import = on_import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        self._on_import(module)
