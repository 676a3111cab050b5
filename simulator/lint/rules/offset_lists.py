"""HC002: rank lists that are compared with a global rank before the offset is in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from simulator.lint.conditions import conditions
from simulator.lint.flow import bindings_of, is_made_of, origins
from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.ranks import is_global_rank
from simulator.lint.rules.rule import Flaw, Rule
from simulator.lint.scopes import Kind, parameters_of
from simulator.lint.signatures import says_nothing


def check(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Comparisons in functions that have the offset as a parameter."""
    for node in module.parents:
        match node:
            case ast.Compare(left=rank, ops=[ast.In() | ast.NotIn()], comparators=[ranks]):
                pass
            case ast.Call(func=ast.Attribute(value=ranks, attr="index"), args=[rank]):
                pass
            case _:
                continue
        if _is_early(module, node, rank, ranks, options.offset):
            yield _flaw(node, rank, ranks, options.offset)


def _is_early(module: Module, node: ast.expr, rank: ast.expr, ranks: ast.expr, offset: str) -> bool:
    functions = module.enclosing_functions(node)
    if not any(parameter.arg == offset for function in functions for parameter in parameters_of(function)):
        return False
    line = node.end_lineno or node.lineno
    if not is_global_rank(module, rank, line + 1) or is_made_of(module, ranks, offset, line + 1):
        return False
    if any(says_nothing(condition, offset) for condition in conditions(module, node)):
        return False
    return _counts_from_zero(module, ranks, line) or _is_shifted_later(module, ranks, offset, line)


def _counts_from_zero(module: Module, ranks: ast.expr, line: int) -> bool:
    """Made of `range`, with no argument whose origin is out of sight."""
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "range"
        for part in origins(module, ranks, line + 1)
    )


def _is_shifted_later(module: Module, ranks: ast.expr, offset: str, line: int) -> bool:
    """A list that the same function shifts further down."""
    for part in list(origins(module, ranks, line + 1)):
        if isinstance(part, ast.Name):
            later = [b for b in bindings_of(module, part) if b.line > line and b.kind is Kind.VALUE]
            if any(b.value is not None and _shifts(module, b.value, part.id, offset) for b in later):
                return True
    return False


def _shifts(module: Module, value: ast.expr, name: str, offset: str) -> bool:
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return name in names and offset in names


def _flaw(node: ast.expr, rank: ast.expr, ranks: ast.expr, offset: str) -> Flaw:
    shown, wanted = ast.unparse(ranks), ast.unparse(rank)
    return Flaw(
        node,
        f"{shown} has ranks that count from 0 here, and {wanted} is a global rank: on a joiner they never meet",
        f"add {offset} to the ranks first, or compare with {wanted} - {offset}",
    )


RULE = Rule(
    "HC002",
    "ranks-without-offset",
    "a rank list is compared with a global rank before the offset of the cohort is in it",
    "A joiner is in none of the lists: it raises, or it takes itself for no member and leaves the others waiting.",
    check,
    lambda options: (options.offset,),
)
