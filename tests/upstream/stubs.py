"""Stands in for packages that a framework imports and that its group code does not use.

A stub has names and nothing behind them: a name can be imported, annotated with and subclassed; to call it, or to read
an attribute of it that is no name of a class, raises `StubUsed`. So it cannot answer for anything that decides which
groups there are.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class StubUsed(RuntimeError):
    """Code under test has called a stub: either it decides something, or the package is needed after all."""


class _Name(type):
    """A name of a stub: a class that cannot be called."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise StubUsed(f"{cls.__module__}.{cls.__qualname__} is a stub, and was called")

    def __getattr__(cls, name: str) -> Any:
        return _named(f"{cls.__module__}.{cls.__qualname__}", name)


def _named(home: str, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return type.__call__(_Name, name, (), {"__module__": home, "__qualname__": name})


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _named(self.__name__, name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for top-level packages, and what lies below them, where the package itself is not installed.

    Args:
        versions: name of the package to the version that the stub says it has.
    """

    def __init__(self, versions: Mapping[str, str]) -> None:
        self._versions = versions

    def install(self) -> None:
        """Last: a package that is there is used."""
        sys.meta_path.append(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self._versions else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = self._versions[module.__name__.partition(".")[0]]
