"""HC007: settings of the server that are read before it is known that the group has more than one rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from simulator.lint.conditions import conditions
from simulator.lint.flow import bindings_of
from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.rules.rule import Flaw, Rule
from simulator.lint.scopes import Kind
from simulator.lint.violations import Certainty

_SIZE = re.compile(r"(\w+_)?world_size|group_size|size")
_CONSTRUCTORS = {"__init__", "__post_init__", "__new__"}
_ONE = (ast.Eq, ast.LtE, ast.Lt)
"""In `size == 1 or ...` as in `size > 1 and ...`, what follows is left out for one rank."""


def check(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Tests of a group's size that come after a read in the same condition, or around it."""
    done: set[ast.AST] = set()
    for test in module.parents:
        if not isinstance(test, ast.Compare) or not _spares_one(module, test):
            continue
        for read in _reads_before(module, test, options.settings_readers):
            if read not in done and (_in_constructor(module, read) or _is_about_nodes(module, read)):
                done.add(read)
                yield _flaw(read, test)


def _spares_one(module: Module, test: ast.Compare) -> bool:
    """Whether what follows the test is left out for a group of one rank."""
    if not _asks_for_one(test):
        return False
    around = module.parents[test]
    return isinstance(test.ops[0], _ONE) is (isinstance(around, ast.BoolOp) and isinstance(around.op, ast.Or))


def _in_constructor(module: Module, node: ast.AST) -> bool:
    functions = module.enclosing_functions(node)
    return bool(functions) and getattr(functions[0], "name", "") in _CONSTRUCTORS


def _is_about_nodes(module: Module, read: ast.Call) -> bool:
    """`get_server_args().nnodes`: what guards probes, also in functions that constructors call."""
    attribute = module.parents[read]
    return isinstance(attribute, ast.Attribute) and "node" in attribute.attr.lower()


def _reads_before(module: Module, test: ast.Compare, readers: tuple[str, ...]) -> Iterator[ast.Call]:
    """Reads in conditions that hold where the size is asked for, and in constructors what they were assigned from."""
    for condition in conditions(module, test):
        within = condition.at if isinstance(condition.at, ast.BoolOp | ast.If) else None
        if within is None or not _is_near(module, test, condition.at):
            continue
        for node in ast.walk(condition.test):
            if isinstance(node, ast.Call) and _name(node.func) in readers:
                yield node
    yield from _assigned(module, test, readers)


def _is_near(module: Module, test: ast.Compare, at: ast.AST) -> bool:
    """The same `and`/`or`, or an `if` whose only statement is the one that asks for the size."""
    for _, parent in module.ancestors(test):
        if parent is at:
            return True
        if isinstance(parent, ast.stmt) and not (isinstance(parent, ast.If) and _is_only(module, parent)):
            return False
    return False


def _is_only(module: Module, statement: ast.If) -> bool:
    above = module.parents[statement]
    return isinstance(above, ast.If) and above.body == [statement]


def _assigned(module: Module, test: ast.Compare, readers: tuple[str, ...]) -> Iterator[ast.Call]:
    """`nnodes = get_server_args().nnodes` in a constructor, just for `if world_size > 1 and nnodes > 1`."""
    around = module.parents[test]
    if not isinstance(around, ast.BoolOp) or not _in_constructor(module, test):
        return
    for node in (one for value in around.values if value is not test for one in ast.walk(value)):
        if isinstance(node, ast.Name):
            bindings = bindings_of(module, node, test.lineno)
            if len(bindings) == 1 and bindings[0].kind is Kind.VALUE and bindings[0].value is not None:
                yield from _unchecked_reads(module, bindings[0].value, readers)


def _unchecked_reads(module: Module, value: ast.expr, readers: tuple[str, ...]) -> Iterator[ast.Call]:
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and _name(node.func) in readers:
            around = (condition.test for condition in conditions(module, node))
            if not any(isinstance(one, ast.Compare) and _asks_for_one(one) for one in around):
                yield node


def _asks_for_one(test: ast.Compare) -> bool:
    """`world_size > 1` and its like."""
    if len(test.ops) != 1:
        return False
    sides = (test.left, test.comparators[0])
    return any(_is_size(side) for side in sides) and any(_is_small(side) for side in sides)


def _is_small(side: ast.expr) -> bool:
    return isinstance(side, ast.Constant) and side.value in (1, 2) and not isinstance(side.value, bool)


def _is_size(side: ast.expr) -> bool:
    match side:
        case ast.Call(func=func):
            return _is_size(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return _SIZE.fullmatch(name.lower()) is not None
    return False


def _name(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _flaw(read: ast.Call, test: ast.Compare) -> Flaw:
    size = ast.unparse(test)
    return Flaw(
        read,
        f"{ast.unparse(read)} is read before `{size}` is asked, and may not be there yet where a rank runs alone",
        f"ask `{size}` first: a group of one rank then never reads it",
        Certainty.SUSPECT,
    )


RULE = Rule(
    "HC007",
    "settings-before-size",
    "the settings of the server are read before the size of the group is asked for",
    "In a process that runs alone the settings may not be published yet, and reading them raises.",
    check,
    lambda options: options.settings_readers,
)
