"""HC006: a topology probe in a constructor that does not ask first whether there is more than one node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from simulator.lint.conditions import conditions
from simulator.lint.flow import origins
from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.rules.rule import Flaw, Rule
from simulator.lint.violations import Certainty

_CONSTRUCTORS = {"__init__", "__post_init__", "__new__"}
_NODES = re.compile(
    r"n_?nodes|(num|number_of|n)_?(nodes|hosts)|nodes?_(count|num)|multi_?node|\w*(span|single|multi|inter)s?_?(_may)?_?nodes?\w*"
)
_DEPTH = 5


def check(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Probes that a constructor makes, itself or through methods of its class."""
    for call in module.calls:
        if _name(call.func) in options.probes and _unguarded(module, call, _DEPTH):
            name = _name(call.func)
            yield Flaw(
                call,
                f"{name}() is collective and runs in a constructor also on one node, where its answer is known",
                f"ask first: world_size > 1 and nnodes > 1 and not all({name}(...)), in that order",
                Certainty.SUSPECT,
            )


def _name(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _unguarded(module: Module, call: ast.Call, depth: int) -> bool:
    """Whether a constructor gets here without a question for the number of nodes."""
    if not depth or any(_asks(module, condition.test) for condition in conditions(module, call)):
        return False
    functions = module.enclosing_functions(call)
    if not functions or isinstance(functions[0], ast.Lambda):
        return False
    method = functions[0]
    if not isinstance(module.parents[method], ast.ClassDef):
        return False
    if method.name in _CONSTRUCTORS:
        return True
    return any(_unguarded(module, one, depth - 1) for one in _callers(module, method))


def _callers(module: Module, method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    owner = module.parents[method]
    for call in module.calls:
        match call.func:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=method.name):
                if module.enclosing_class(call) is owner:
                    yield call


def _asks(module: Module, test: ast.expr) -> bool:
    """Whether the number of nodes is in a test, or in what its names are assigned to."""
    return any(_NODES.fullmatch(_name(node).lower().strip("_")) for node in _with_origins(module, test))


def _with_origins(module: Module, expr: ast.expr) -> Iterator[ast.expr]:
    for node in ast.walk(expr):
        if isinstance(node, ast.Name):
            for part in origins(module, node):
                yield from (inner for inner in ast.walk(part) if isinstance(inner, ast.expr))
        elif isinstance(node, ast.expr):
            yield node


RULE = Rule(
    "HC006",
    "unguarded-probe",
    "a constructor runs a topology probe without asking for the number of nodes first",
    "The probe needs shared memory and three collectives on the CPU group. On one node its answer is known, and on "
    "some backends it takes the process down.",
    check,
    lambda options: options.probes,
)
