"""What is a call of torch.distributed, by name: nothing is imported to find out.

A library with the same interface under a name such as `dist` counts as well.
"""

from __future__ import annotations

import ast

from simulator.lint.module import Module
from simulator.lint.scopes import Dotted

_HOMES = {"distributed", "distributed_c10d", "dist", "c10d", "device_mesh", "comm"}
_STARRED = ("torch", "distributed")


def torch_function(module: Module, call: ast.Call) -> str | None:
    """The name of the function of torch.distributed that is called, or None."""
    name = _last(call.func)
    dotted = module.dotted(call.func)
    if name is None or dotted is None:
        return None
    if len(dotted) > 1 and dotted[-2] in _HOMES and not _is_here(module, dotted):
        return dotted[-1]
    starred = isinstance(call.func, ast.Name) and dotted == (name,) and _has_star(module)
    return name if starred else None


def _last(func: ast.expr) -> str | None:
    match func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return None


def _is_here(module: Module, dotted: Dotted) -> bool:
    """Something that the file itself defines."""
    return dotted[: len(module.parts)] == module.parts and len(dotted) > len(module.parts)


def _has_star(module: Module) -> bool:
    return any(base[:2] == _STARRED for base in module.scopes[module.source.tree].starred)


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """An argument by keyword or position; None if it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    given = call.args[: position + 1]
    return None if any(isinstance(one, ast.Starred) for one in given) else given[position]


def is_opaque(call: ast.Call) -> bool:
    """Whether `*` or `**` hides some of the arguments."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
