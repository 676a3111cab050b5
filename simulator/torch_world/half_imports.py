"""Modules whose import a run has cut short: taken out again, so that the next import starts anew.

A rank that is ended in the middle of an import leaves behind what Python cannot tell from a loaded module: the modules
below a package that is gone again (a new import of the package does not bind them), and, if the rank could not be
stopped, modules that are never finished.

Not undone: what the code of a module has done elsewhere (registrations in C++), and other modules that keep a reference
to one that is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from types import ModuleType


def forget_half_imports(before: Container[str]) -> list[str]:
    """Take out of `sys.modules` what is half imported and was not there `before`; their names, parents first."""
    new = sorted(name for name in list(sys.modules) if name not in before)
    gone: dict[str, None] = {}
    for name in new:
        parent = name.rpartition(".")[0]
        if parent in gone or _is_half(sys.modules[name], parent):
            gone[name] = None
    for name in gone:
        _take_out(name)
    return list(gone)


def _is_half(module: ModuleType | None, parent: str) -> bool:
    """It is still being imported, or the package that it was imported for is gone; modules made by hand are not."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and (getattr(spec, "_initializing", False) or (bool(parent) and parent not in sys.modules))


def _take_out(name: str) -> None:
    module = sys.modules.pop(name)
    parent, _, leaf = name.rpartition(".")
    package = sys.modules.get(parent)
    if package is not None and getattr(package, leaf, None) is module:
        delattr(package, leaf)
