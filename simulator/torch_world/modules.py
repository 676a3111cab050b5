"""Modules of which each rank has an instance of its own, so that their globals do not leak between ranks.

    ModuleIsolation(["helpers", "mypkg.state", "mypkg.parallel.*"])

While a rank has the baton, `sys.modules` holds its instances; imports inside functions and pickling find them. A module
is meant with everything below it if it is a top-level name, else by the pattern as given (`fnmatch`). Modules that are
not named are shared, but what they took from an isolated module by name (`from mypkg.state import get`) is the
running rank's too: see `holders`. Code is compiled once, and executed for each rank.

Not modelled: what a shared module took from an isolated one and keeps elsewhere than in a global of its own: a base
class, a decorated function, a default argument, a closure, an item of a container.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import attrgetter
from types import ModuleType
from typing import Any

from simulator.torch_world.holders import Holder, find_holders, index_of
from simulator.torch_world.module_finder import IsolatedFinder

Modules = dict[str, ModuleType]


@dataclass(slots=True, eq=False)
class OwnModules:
    """What one rank has of its own, while another has the baton.

    Attributes:
        instances: its instances of isolated modules, by name.
        followers: shared modules that it has imported and that hold something of isolated ones, by name.
        held: for each of these holders, its globals that belong to the rank.
        attached: (package, name, module) of what stands in a shared package as an attribute.
        binding: it is being given its `held`.
    """

    instances: Modules = field(default_factory=dict)
    followers: Modules = field(default_factory=dict)
    held: dict[Holder, dict[str, object]] = field(default_factory=dict)
    attached: list[tuple[ModuleType, str, ModuleType]] = field(default_factory=list)
    binding: bool = False

    def leave(self, loaded: Modules) -> None:
        """Out of `loaded`, and of the packages there: a rank that has not imported it finds no attribute either."""
        names = {**self.instances, **self.followers}
        self.attached.clear()
        for name in names:
            loaded.pop(name, None)
        for name, module in names.items():
            parent, _, leaf = name.rpartition(".")
            package = self.followers.get(parent) or loaded.get(parent)
            if package is not None and vars(package).get(leaf) is module:
                delattr(package, leaf)
                self.attached.append((package, leaf, module))

    def enter(self, loaded: Modules) -> None:
        """Into `loaded`, and into the packages."""
        loaded.update(self.instances)
        loaded.update(self.followers)
        for package, leaf, module in self.attached:
            setattr(package, leaf, module)


class ModuleIsolation:
    """Exchanges the instances of the named modules in `sys.modules`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._verdicts: dict[str, bool] = {}
        self._count = -1
        self._outside = OwnModules()
        self._now = self._outside
        self._holders: dict[str, Holder] = {}
        self._examined: dict[str, None] = {}
        self._finder = IsolatedFinder(self._is_isolated, self._follower, self.bind)

    @property
    def used(self) -> bool:
        """Whether any module is named at all."""
        return bool(self._patterns)

    def exchange(self, before: OwnModules | None, after: OwnModules | None) -> None:
        """What belongs to `before` leaves, `after` comes (None: the process outside the ranks)."""
        self._take_out(self._outside if before is None else before)
        if (before is None) is not (after is None):
            self._finder.install() if before is None else self._finder.remove()
        self._now = self._outside if after is None else after
        self._put_in(self._now)
        if after is None:
            self._adopt()

    def _adopt(self) -> None:
        """Shared modules stay with the process, as any import of a rank does, and hold instances of its own.

        A later run then finds them loaded: many register something when they are executed, and can do so once only.
        """
        for holder in [holder for holder in self._holders.values() if holder not in self._outside.held]:
            sys.modules[holder.name] = holder.module
            parent, _, leaf = holder.name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], leaf, holder.module)
        try:
            self._bind(self._outside, list(self._holders.values()))
        except Exception:  # whatever the code of a module raises: outside the ranks it cannot be imported
            for holder in self._holders.values():
                if holder not in self._outside.held:
                    sys.modules.pop(holder.name, None)

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The running rank begins: what modules loaded before the run hold becomes its own, and so does `function`."""
        if self._outside.held:
            self._bind(self._now, list(self._outside.held))
        home, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<locals>")
        if home is None or "<" in name or not self._is_isolated(home):
            return function
        own: Callable[..., Any] = attrgetter(name)(importlib.import_module(home))
        return own

    def bind(self) -> None:
        """The running rank imports a shared module that holds something: all that hold something become its own."""
        if not self._now.binding:
            self._bind(self._now, list(self._holders.values()))

    def _bind(self, mine: OwnModules, holders: list[Holder]) -> None:
        mine.binding = True
        try:
            for name in dict.fromkeys(need for holder in holders for need in holder.needs):
                importlib.import_module(name)
            for holder in holders:
                if holder not in mine.held:
                    mine.held[holder] = holder.of_rank(sys.modules)
                    if mine is not self._outside and holder not in self._outside.held:
                        mine.followers[holder.name] = sys.modules[holder.name] = holder.module
        finally:
            mine.binding = False
            self._count = -1

    def _take_out(self, mine: OwnModules) -> None:
        loaded = sys.modules
        if len(loaded) != self._count:
            new = [pair for pair in list(loaded.items()) if pair[0] not in self._examined]
            mine.instances = {name: module for name, module in new if self._is_isolated(name)}
            self._look_for_holders(mine, new)
        for holder, values in mine.held.items():
            holder.read(values)
        mine.leave(loaded)

    def _put_in(self, mine: OwnModules) -> None:
        mine.enter(sys.modules)
        for holder, values in mine.held.items():
            holder.write(values)
        self._count = len(sys.modules)

    def _look_for_holders(self, mine: OwnModules, new: list[tuple[str, ModuleType]]) -> None:
        """Which of the shared modules that came in meanwhile hold something of an isolated one?"""
        shared = [(name, module) for name, module in new if name not in mine.instances and not _is_loading(module)]
        self._examined.update(dict.fromkeys(name for name, _ in shared))
        if not mine.instances or not shared:
            return
        for holder in find_holders(shared, index_of(mine.instances)):
            self._holders[holder.name] = holder
            mine.held[holder] = {}
            if mine is not self._outside:
                mine.followers[holder.name] = holder.module

    def _follower(self, name: str) -> ModuleType | None:
        """The shared module of that name, if another rank has imported it, and it holds something."""
        holder = self._holders.get(name)
        return None if holder is None else holder.module

    def _is_isolated(self, name: str) -> bool:
        known = self._verdicts.get(name)
        if known is None:
            top = name.partition(".")[0]
            known = any(pattern == top or fnmatchcase(name, pattern) for pattern in self._patterns)
            self._verdicts[name] = known
        return known


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
