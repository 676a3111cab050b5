"""What must hold where an expression is evaluated: the tests around it and before it.

Sees `if`, `while`, `match`, conditional expressions, `and` and `or`, filters of comprehensions, asserts, and earlier
tests of the same block that leave it. Not modelled: exceptions, cases that leave, what changes between a test and the
expression.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from simulator.lint.module import Module, is_function


class Way(StrEnum):
    """How a test bears on what is looked at."""

    AROUND = auto()
    """It stands in a branch of the test."""
    LEFT = auto()
    """Before it the test returned, broke off or continued."""
    RAISED = auto()
    """Before it the test raised."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A test, and whether it came out true."""

    test: ast.expr
    holds: bool
    way: Way
    at: ast.AST
    """The statement or expression that tests."""


def conditions(module: Module, node: ast.AST, *, outside: bool = False) -> Iterator[Condition]:
    """Conditions of a node within its function, innermost first; conjunctions are taken apart.

    outside: go on through the functions around it, whose tests held when it was defined.
    """
    for child, parent in module.ancestors(node):
        for condition in _between(child, parent):
            yield from _parts(condition)
        if isinstance(child, ast.match_case) and isinstance(parent, ast.Match):
            yield from _of_case(child, parent)
        if is_function(parent) and not outside:
            return


def _between(child: ast.AST, parent: ast.AST) -> Iterator[Condition]:
    match parent:
        case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
            if child in body:
                yield Condition(test, True, Way.AROUND, parent)
            elif child in orelse and isinstance(parent, ast.If):
                yield Condition(test, False, Way.AROUND, parent)
        case ast.IfExp(test=test, body=body_expr):
            if child is not test:
                yield Condition(test, child is body_expr, Way.AROUND, parent)
        case ast.BoolOp(op=op, values=values):
            for value in reversed(values[: values.index(child)]):  # type: ignore[arg-type]
                yield Condition(value, isinstance(op, ast.And), Way.AROUND, parent)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            yield from _filters(child, parent)
    yield from _before(child, parent)


def _of_case(case: ast.match_case, parent: ast.Match) -> Iterator[Condition]:
    """The subject is the value of the case; in the last case that takes all, none of the values before."""
    if case.guard is not None:
        yield from _parts(Condition(case.guard, True, Way.AROUND, parent))
    if not is_wildcard(case):
        yield Condition(_compared(parent.subject, case.pattern), True, Way.AROUND, parent)
        return
    for earlier in parent.cases[: parent.cases.index(case)]:
        yield Condition(_compared(parent.subject, earlier.pattern), False, Way.AROUND, parent)


def is_wildcard(case: ast.match_case) -> bool:
    """`case _:` or `case name:`, which nothing gets past."""
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _compared(subject: ast.expr, pattern: ast.pattern) -> ast.expr:
    """The test that a case makes, as far as it can be written as one."""
    match pattern:
        case ast.MatchValue(value=value):
            return ast.Compare(subject, [ast.Eq()], [value])
        case ast.MatchSingleton(value=value):
            return ast.Compare(subject, [ast.Is()], [ast.Constant(value)])
    return subject


def _filters(
    child: ast.AST, parent: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> Iterator[Condition]:
    generators = parent.generators
    passed = generators[: generators.index(child)] if isinstance(child, ast.comprehension) else generators
    for generator in reversed(passed):
        for test in generator.ifs:
            yield Condition(test, True, Way.AROUND, parent)


def _before(child: ast.AST, parent: ast.AST) -> Iterator[Condition]:
    """Earlier statements of the same block that some paths do not get past."""
    for block in (getattr(parent, "body", None), getattr(parent, "orelse", None), getattr(parent, "finalbody", None)):
        if isinstance(block, list) and child in block:
            for statement in reversed(block[: block.index(child)]):
                yield from _passed(statement)


def _passed(statement: ast.stmt) -> Iterator[Condition]:
    match statement:
        case ast.Assert(test=test):
            yield Condition(test, True, Way.RAISED, statement)
        case ast.If(test=test, body=body, orelse=orelse):
            left, left_else = leaves(body), leaves(orelse)
            if left is not None and left_else is None:
                yield Condition(test, False, left, statement)
            elif left is None and left_else is not None:
                yield Condition(test, True, left_else, statement)


def leaves(block: Sequence[ast.stmt]) -> Way | None:
    """How a block ends, if what follows it is never reached from it."""
    if not block:
        return None
    match block[-1]:
        case ast.Return() | ast.Continue() | ast.Break():
            return Way.LEFT
        case ast.Raise():
            return Way.RAISED
        case ast.If(body=body, orelse=orelse):
            ways = {leaves(body), leaves(orelse)}
            return None if None in ways else Way.LEFT if Way.LEFT in ways else Way.RAISED
    return None


def _parts(condition: Condition) -> Iterator[Condition]:
    match condition.test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _parts(Condition(operand, not condition.holds, condition.way, condition.at))
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is condition.holds:
            for value in values:
                yield from _parts(Condition(value, condition.holds, condition.way, condition.at))
        case _:
            yield condition
