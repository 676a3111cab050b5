"""Where the values of a name come from, within one function.

Follows assignments, loops, comprehensions and what is appended. Not modelled: attributes of objects, other functions,
the order in which branches are run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from simulator.lint.module import Module
from simulator.lint.scopes import Binding, Kind

FLOWING = (Kind.VALUE, Kind.ITEM, Kind.ADDED, Kind.UNKNOWN)


def value_parts(expr: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that its value is made of: not what it only tests or compares."""
    yield expr
    for child in _value_children(expr):
        yield from value_parts(child)


def _value_children(expr: ast.AST) -> Iterator[ast.expr]:
    match expr:
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Compare():
            return
        case _:
            for child in ast.iter_child_nodes(expr):
                if isinstance(child, ast.expr):
                    yield child
                elif isinstance(child, ast.keyword):
                    yield child.value
                elif isinstance(child, ast.comprehension):
                    yield child.iter


def bindings_of(module: Module, name: ast.Name, before: int | None = None) -> list[Binding]:
    """The bindings of a name where it stands; `before`: only those in earlier lines."""
    _, bindings = module.scope_of(name).find(name.id)
    return [binding for binding in bindings if before is None or binding.line < before]


def origins(
    module: Module, expr: ast.expr, before: int | None = None, *, through: Callable[[ast.expr], bool] | None = None
) -> Iterator[ast.expr]:
    """All expressions that a value is made of, through the names in it.

    before: only what is bound in earlier lines counts.
    through: names for which it says no are not followed.
    """
    seen: set[tuple[str, int]] = set()
    waiting = [expr]
    while waiting:
        for part in value_parts(waiting.pop()):
            yield part
            if isinstance(part, ast.Name) and (through is None or through(part)):
                for binding in bindings_of(module, part, before):
                    key = (part.id, id(binding))
                    if binding.kind in FLOWING and binding.value is not None and key not in seen:
                        seen.add(key)
                        waiting.append(binding.value)


def is_made_of(module: Module, expr: ast.expr, name: str, before: int | None = None) -> bool:
    """Whether the parameter `name` goes into a value."""
    return any(isinstance(part, ast.Name) and part.id == name for part in origins(module, expr, before))
