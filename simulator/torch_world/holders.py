"""Shared modules that hold something of isolated ones: `from mypkg.state import get_group` in a module of all ranks.

Such a global is exchanged with the ranks: each finds there what its own instance of `mypkg.state` has under that name,
and what it puts there itself no other rank sees. Functions, classes, modules and mutable objects are followed; numbers,
texts and tuples are not: a process that copies such a value keeps the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_VALUES = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, BuiltinFunctionType)
_ABSENT: Any = object()
Origin = tuple[str, str | None]
"""Name of an isolated module, and of its global; None: the module itself."""
Index = dict[int, tuple[Any, Origin]]


class Holder:
    """A shared module, and which of its globals come from isolated modules."""

    __slots__ = ("_names", "_origins", "module", "name", "needs")

    def __init__(self, name: str, module: ModuleType, origins: dict[str, Origin]) -> None:
        self.name = name
        self.module = module
        self._names: dict[str, Any] = vars(module)
        self._origins = origins
        self.needs = tuple(dict.fromkeys(origin for origin, _ in origins.values()))

    def read(self, values: dict[str, Any]) -> None:
        """Note in `values` what the globals are now."""
        names = self._names
        for name in self._origins:
            values[name] = names.get(name, _ABSENT)

    def write(self, values: dict[str, Any]) -> None:
        """Let the globals be `values`."""
        self._names.update(values)
        if _ABSENT in values.values():
            for name in [name for name, value in values.items() if value is _ABSENT]:
                del self._names[name]

    def of_rank(self, modules: Mapping[str, ModuleType]) -> dict[str, Any]:
        """Give the globals, and return, what the rank's instances in `modules` have."""
        values = {}
        for name, (origin, attribute) in self._origins.items():
            instance = modules.get(origin)
            found = instance if attribute is None else getattr(instance, attribute, _ABSENT)
            values[name] = self._names.get(name, _ABSENT) if found is _ABSENT else found
        self.write(values)
        return values


def index_of(instances: Mapping[str, ModuleType]) -> Index:
    """By identity, what modules can take from these instances."""
    index: Index = {id(module): (module, (name, None)) for name, module in instances.items()}
    for name, module in instances.items():
        for attribute, value in list(vars(module).items()):
            if not attribute.startswith("__") and _is_followed(value, instances, name):
                index.setdefault(id(value), (value, (name, attribute)))
    return index


def _is_followed(value: Any, instances: Mapping[str, ModuleType], home: str) -> bool:
    """Functions and classes count where they are made; a module that took them over is asked only if that is gone."""
    if isinstance(value, (*_VALUES, ModuleType)):
        return False
    if isinstance(value, FunctionType | type):
        made_in = getattr(value, "__module__", None)
        return made_in == home
    return getattr(type(value), "__module__", "") not in ("typing", "__future__", "ctypes")


def find_holders(modules: Iterable[tuple[str, ModuleType]], index: Index) -> Iterator[Holder]:
    """Those of `modules` that hold something."""
    known = index.keys()
    for name, module in modules:
        names = getattr(module, "__dict__", None)
        if type(names) is dict and not known.isdisjoint(map(id, list(names.values()))):
            origins = {
                attribute: index[id(value)][1]
                for attribute, value in list(names.items())
                if id(value) in known and not attribute.startswith("__")
            }
            origins = {a: o for a, o in origins.items() if o != (f"{name}.{a}", None)}
            if origins:
                yield Holder(name, module, origins)
