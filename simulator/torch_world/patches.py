"""Set attributes of foreign objects, and set them back in the opposite order."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ABSENT = object()


class Patches:
    """Remembers what it replaced. `undo` restores everything, also after an error in between."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        """Like `setattr(target, name, value)`."""
        self._saved.append((target, name, vars(target).get(name, _ABSENT)))
        setattr(target, name, value)

    def set_module(self, name: str, module: ModuleType) -> None:
        """Put `module` into `sys.modules`."""
        self._saved.append((None, name, sys.modules.get(name, _ABSENT)))
        sys.modules[name] = module

    def undo(self) -> None:
        """Put everything back."""
        while self._saved:
            target, name, value = self._saved.pop()
            if target is None:
                if value is _ABSENT:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = value
            elif value is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, value)
