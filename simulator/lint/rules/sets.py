"""Which expressions are sets, or have the order of one."""

from __future__ import annotations

import ast

from simulator.lint.flow import bindings_of
from simulator.lint.module import Module
from simulator.lint.scopes import Kind

_MAKERS = {"set", "frozenset"}
_KEEPING = {"list", "tuple", "enumerate", "iter", "reversed"}
_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_TYPES = {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)


def is_set(module: Module, expr: ast.expr, depth: int = 6) -> bool:
    """Whether a loop over the expression follows the order of a set."""
    if not depth:
        return False
    match expr:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return name in _MAKERS or (name in _KEEPING and any(is_set(module, a, depth - 1) for a in arguments[:1]))
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            return name in _METHODS and is_set(module, value, depth - 1)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return is_set(module, left, depth - 1) or is_set(module, right, depth - 1)
        case ast.ListComp(generators=[generator, *_]) | ast.GeneratorExp(generators=[generator, *_]):
            return is_set(module, generator.iter, depth - 1)
        case ast.Name():
            return _is_set_name(module, expr, depth)
    return False


def _is_set_name(module: Module, name: ast.Name, depth: int) -> bool:
    """By its last binding above; a parameter by its annotation."""
    bindings = [b for b in bindings_of(module, name, name.lineno) if b.kind in (Kind.VALUE, Kind.PARAMETER)]
    if not bindings:
        return False
    last = bindings[-1]
    if last.kind is Kind.PARAMETER:
        return isinstance(last.node, ast.arg) and _is_set_type(last.node.annotation)
    return last.value is not None and is_set(module, last.value, depth - 1)


def _is_set_type(annotation: ast.expr | None) -> bool:
    match annotation:
        case ast.Subscript(value=value):
            return _is_set_type(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _TYPES
    return False
