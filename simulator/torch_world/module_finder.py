"""How ranks import isolated modules, and the shared ones that hold something of theirs.

Code of an isolated module is read and compiled once in a run. A shared module that another rank has imported first is
not executed again; but the rank that imports it gets its own globals in it then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any


class _SharedCode(SourceFileLoader):
    """Loads from source; the code is kept for the next rank."""

    codes: dict[str, CodeType | None]

    def get_code(self, fullname: str) -> CodeType | None:
        if self.path not in self.codes:
            self.codes[self.path] = super().get_code(fullname)
        return self.codes[self.path]


class _Follower(Loader):
    """Loads a module that is there already."""

    def __init__(self, module: ModuleType, bind: Callable[[], None]) -> None:
        self._module = module
        self._bind = bind
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._bind()


class IsolatedFinder(MetaPathFinder):
    """First in `sys.meta_path` while a rank runs."""

    def __init__(
        self,
        is_isolated: Callable[[str], bool],
        follower: Callable[[str], ModuleType | None],
        bind: Callable[[], None],
    ) -> None:
        self._is_isolated = is_isolated
        self._follower = follower
        self._bind = bind
        self._codes: dict[str, CodeType | None] = {}

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the finders after this one find it, with a loader that shares its code; None for all other modules."""
        module = self._follower(fullname)
        if module is not None:
            loader = _Follower(module, self._bind)
            return ModuleSpec(fullname, loader, is_package=hasattr(module, "__path__"))
        return self._find_isolated(fullname, path, target) if self._is_isolated(fullname) else None

    def _find_isolated(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                return self._sharing(spec)
        return None

    def _sharing(self, spec: ModuleSpec) -> ModuleSpec:
        if type(spec.loader) is not SourceFileLoader:
            return spec
        loader = _SharedCode(spec.loader.name, spec.loader.path)
        loader.codes = self._codes
        mine = spec_from_file_location(
            spec.name, spec.loader.path, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )
        return spec if mine is None else mine
