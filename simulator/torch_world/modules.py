"""Modules of which each rank has an instance of its own, so that their globals do not leak between ranks.

    ModuleIsolation(["helpers", "mypkg.state", "mypkg.parallel.*"])

While a rank has the baton, `sys.modules` holds its instances; imports inside functions and pickling find them. A module
is meant with everything below it if it is a top-level name, else by the pattern as given (`fnmatch`). Modules that are
not named are shared, and so is what somebody took out of an isolated module and keeps elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import ModuleType

Modules = dict[str, ModuleType]


class ModuleIsolation:
    """Exchanges the instances of the named modules in `sys.modules`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._verdicts: dict[str, bool] = {}
        self._count = -1
        self._outside: Modules = {}

    @property
    def used(self) -> bool:
        """Whether any module is named at all."""
        return bool(self._patterns)

    def exchange(self, before: Modules | None, after: Modules | None) -> None:
        """The instances `before` leave, `after` come (None: those of the process outside the ranks)."""
        self._take_out(self._outside if before is None else before)
        self._put_in(self._outside if after is None else after)

    def _take_out(self, mine: Modules) -> None:
        loaded = sys.modules
        if len(loaded) != self._count:
            mine.clear()
            mine.update({name: module for name, module in list(loaded.items()) if self._is_isolated(name)})
        for name in mine:
            loaded.pop(name, None)

    def _put_in(self, mine: Modules) -> None:
        sys.modules.update(mine)
        for name, module in mine.items():
            parent, _, leaf = name.rpartition(".")
            if parent in sys.modules and parent not in mine:
                setattr(sys.modules[parent], leaf, module)
        self._count = len(sys.modules)

    def _is_isolated(self, name: str) -> bool:
        known = self._verdicts.get(name)
        if known is None:
            top = name.partition(".")[0]
            known = any(pattern == top or fnmatchcase(name, pattern) for pattern in self._patterns)
            self._verdicts[name] = known
        return known
