"""Finds the function that a call means, in the whole tree.

A full name fits a function whose path ends in it; an imported name also fits one below the package that it is imported
from, since packages hand names on. If several fit, all of them count: what is said must hold for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from simulator.lint.scopes import Dotted
from simulator.lint.signatures import ClassBases, Interface, Signature

_DEPTH = 8
Found = TypeVar("Found", Signature, ClassBases)


class Link:
    """The signatures of a tree.

    configured: from the last part of a name to the parameters that it accepts, for functions that are not in the tree.
    """

    def __init__(self, interfaces: Iterable[Interface], configured: dict[str, tuple[str, ...]]) -> None:
        self._signatures: dict[str, list[Signature]] = defaultdict(list)
        self._bases: dict[str, list[ClassBases]] = defaultdict(list)
        self._configured = configured
        for interface in interfaces:
            for signature in interface.signatures:
                self._signatures[signature.name[-1]].append(signature)
            for bases in interface.bases:
                self._bases[bases.name[-1]].append(bases)

    def signatures(self, meanings: Iterable[Dotted]) -> list[Signature]:
        """The functions that a call may mean; empty if none is known."""
        for dotted in meanings:
            found = self._find(dotted, _DEPTH)
            if found:
                return found
        for dotted in meanings:
            if dotted[-1] in self._configured:
                return [Signature((), dotted[-1:], (), frozenset(self._configured[dotted[-1]]), 0)]
        return []

    def _find(self, dotted: Dotted, depth: int) -> list[Signature]:
        found = _fitting(self._signatures.get(dotted[-1], ()), dotted)
        return found or (self._inherited(dotted, depth) if depth else [])

    def _inherited(self, dotted: Dotted, depth: int) -> list[Signature]:
        """The constructor of a class that has none of its own, or a method of one of its bases."""
        for bases in _fitting(self._bases.get(dotted[-1], ()), dotted):
            for base in bases.bases:
                if found := self._find(base, depth - 1):
                    return found
        if len(dotted) < 2:
            return []
        for bases in _fitting(self._bases.get(dotted[-2], ()), dotted[:-1]):
            for base in bases.bases:
                if found := self._find((*base, dotted[-1]), depth - 1):
                    return found
        return []


def _fitting(candidates: Iterable[Found], dotted: Dotted) -> list[Found]:
    known = list(candidates)
    exact = [one for one in known if _ends_in(one, dotted)]
    return exact or [one for one in known if _hands_on(one, dotted)]


def _ends_in(one: Signature | ClassBases, dotted: Dotted) -> bool:
    """Whether the full name fits; the name alone says nothing of the module."""
    return len(dotted) > len(one.name) and (*one.module, *one.name)[-len(dotted) :] == dotted


def _hands_on(one: Signature | ClassBases, dotted: Dotted) -> bool:
    """Whether the name is imported from a package around the module."""
    package, name = dotted[: -len(one.name)], dotted[-len(one.name) :]
    if name != one.name or not package:
        return False
    starts = range(len(one.module) - len(package) + 1)
    return any(one.module[start : start + len(package)] == package for start in starts)
