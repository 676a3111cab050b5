"""A reference implementation of the distributed layer of an inference server.

    distributed/   parallel layout, process groups, bring-up, same-node probe, multimem gatherer
    kernels/       device kernels behind the gatherer

Importing this package is cheap: nothing below is loaded until a name of it is used.
Nothing here knows of the simulator; the two meet in tests and examples only.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["distributed"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
