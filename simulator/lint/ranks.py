"""Which expressions differ between ranks.

By their names (`rank`, `self.rank_in_group`), by calls (`get_rank()`), by `RANK` and `LOCAL_RANK` of the environment,
and through local variables. A loop over ranks is the same on every rank. Not modelled: attributes with other names,
what other functions return.
"""

from __future__ import annotations

import ast
import re

from simulator.lint.flow import bindings_of
from simulator.lint.module import Module
from simulator.lint.scopes import Kind
from simulator.lint.torch_calls import argument

_PREFIX = r"_*(?:(?:my|cur|current|this|self|global|world|local|node|process|host|dist|tp|pp|dp|ep|cp|sp|dcp|moe)_)*"
RANK_NAME = re.compile(rf"{_PREFIX}(?:rank|rank_id|rank_in_group|group_rank)")
_IS_RANK = re.compile(r"_*is_(?:\w+_)?(?:first_rank|last_rank|rank_?0|rank_zero|main_process|master|member)")
_RANK_CALL = re.compile(r"_*get_(?:\w+_)?rank(?:_in_group)?")
_GROUP_RANK_NAME = re.compile(r"_*(?:\w+_)?(?:group_rank|rank_in_group|group_local_rank)")
_VARIABLES = {"RANK", "LOCAL_RANK", "GROUP_RANK", "SLURM_PROCID"}


def what_differs(module: Module, expr: ast.expr) -> str | None:
    """The part of an expression that differs between ranks, as written; None if there is none to see."""
    for part in _all_parts(module, expr):
        if _differs(module, part):
            return ast.unparse(part)
    return None


def _all_parts(module: Module, expr: ast.expr) -> list[ast.expr]:
    """Of a test, comparisons included, with what its names are assigned to."""
    inside = [node for node in ast.walk(expr) if isinstance(node, ast.expr)]
    found = list(inside)
    for node in inside:
        if isinstance(node, ast.Name) and not _by_name(node):
            for binding in bindings_of(module, node):
                if binding.kind is Kind.VALUE and binding.value is not None:
                    found.extend(part for part in ast.walk(binding.value) if isinstance(part, ast.expr))
    return found


def _by_name(part: ast.expr) -> bool:
    match part:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return bool(RANK_NAME.fullmatch(name) or _IS_RANK.fullmatch(name))
    return False


def _differs(module: Module, part: ast.expr) -> bool:
    match part:
        case ast.Name():
            return _by_name(part) and _may_be_own(module, part)
        case ast.Attribute():
            return _by_name(part)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            called = _RANK_CALL.fullmatch(name) or _IS_RANK.fullmatch(name)
            return bool(called) or (name in ("getenv", "get") and _reads_variable(part.args[:1]))
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=index):
            return _reads_variable([index])
    return False


def _reads_variable(arguments: list[ast.expr]) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in _VARIABLES for one in arguments)


def _may_be_own(module: Module, name: ast.Name) -> bool:
    """Not the variable of a loop, and not a constant or some rank of a list."""
    bindings = bindings_of(module, name)
    above = bindings_of(module, name, name.lineno)
    if not bindings:
        return True
    if above and above[-1].kind is Kind.ITEM:
        return False
    if any(binding.kind in (Kind.PARAMETER, Kind.UNKNOWN, Kind.IMPORT) for binding in bindings):
        return True
    values = [binding.value for binding in bindings if binding.kind is Kind.VALUE and binding.value is not None]
    return any(_holds_rank(module, value) for value in values)


def _holds_rank(module: Module, value: ast.expr) -> bool:
    """Whether an assigned value has the rank of this process in it."""
    return any(
        _differs(module, part) for part in ast.walk(value) if isinstance(part, ast.Call | ast.Attribute | ast.Subscript)
    ) or (isinstance(value, ast.Name) and _by_name(value) and not bindings_of(module, value))


def is_global_rank(module: Module, expr: ast.expr, before: int) -> bool:
    """Whether an expression is `get_rank()` of the default group, or holds just that."""
    match expr:
        case ast.Call(func=ast.Attribute(attr="get_rank") | ast.Name(id="get_rank")):
            group = argument(expr, "group", 0)
            return group is None or is_default_group(group)
        case ast.Name(id=name):
            values = [b.value for b in bindings_of(module, expr, before) if b.kind is Kind.VALUE]
            if not values:
                return name == "global_rank"
            return all(value is not None and is_global_rank(module, value, before) for value in values)
        case ast.Attribute(value=ast.Name(id="self"), attr=attr):
            return attr == "global_rank" or (attr == "rank" and _self_is_global(module, expr, before))
    return False


def _self_is_global(module: Module, expr: ast.Attribute, before: int) -> bool:
    """`self.rank`, if this function has set it to the global rank."""
    functions = module.enclosing_functions(expr)
    for statement in ast.walk(functions[0]) if functions else ():
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=expr.attr)], value=value):
                return statement.lineno < before and is_global_rank(module, value, before)
    return False


def group_rank_in(module: Module, expr: ast.expr, group: ast.expr) -> str | None:
    """The rank within `group` that a value is made of, as written; None if it is none, or has been translated."""
    own = ast.dump(group)
    for part in _untranslated(module, expr, 4):
        match part:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if _gives_group_rank(part, name):
                return ast.unparse(part)
            case ast.Call(func=ast.Attribute(value=value, attr="rank"), args=[]) if ast.dump(value) == own:
                return ast.unparse(part)
            case ast.Name(id=name) | ast.Attribute(attr=name) if _GROUP_RANK_NAME.fullmatch(name):
                return ast.unparse(part)
    return None


def _gives_group_rank(call: ast.Call, name: str) -> bool:
    if name == "get_group_rank":
        return True
    group = argument(call, "group", 0)
    return name == "get_rank" and group is not None and not is_default_group(group)


def _untranslated(module: Module, expr: ast.expr, depth: int) -> list[ast.expr]:
    """Through arithmetic and names, not into calls and subscripts: these translate."""
    match expr:
        case ast.BinOp(left=left, right=right):
            return [*_untranslated(module, left, depth), *_untranslated(module, right, depth)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_untranslated(module, body, depth), *_untranslated(module, orelse, depth)]
        case ast.Name():
            values = [b.value for b in bindings_of(module, expr) if b.kind is Kind.VALUE and b.value is not None]
            if values and depth:
                return [part for value in values for part in _untranslated(module, value, depth - 1)]
    return [expr]


def is_default_group(group: ast.expr) -> bool:
    """None, `dist.group.WORLD`, or a name that says so."""
    match group:
        case ast.Constant(value=None):
            return True
        case ast.Attribute(attr=name, value=value):
            return "world" in name.lower() or is_default_group(value)
        case ast.Name(id=name):
            return "world" in name.lower() or "default" in name.lower()
        case ast.Call(func=func):
            return is_default_group(func)
    return False
