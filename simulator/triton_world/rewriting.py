"""Kernels as Triton's interpreter wants them, in a namespace of their own: the user's module stays as it is.

Triton rewrites assignments (so that Python numbers become tensors) and chained comparisons. On top of that, an `if`
asks `lanes.Branch`, since its condition may differ between threads.

Not modelled: a function whose source cannot be found runs as it is.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from simulator.triton_world import triton_api

BRANCH = "_hangcheck_branch"
_TAKEN = "_hangcheck_taken"
_ATOMIC = "atomic_"
_ABSENT = object()


@dataclass(slots=True, eq=False)
class Rewritten:
    """One function.

    Attributes:
        run: the rewritten function; its namespace is brought up to date with `refresh`.
        original: the user's.
        unused: lines on which an atomic operation stands whose result nobody uses.
    """

    run: Callable[..., Any]
    original: FunctionType
    names: dict[str, Any]
    wanted: tuple[str, ...]
    unused: frozenset[int]
    replaced: Mapping[int, Any]

    def refresh(self) -> None:
        """Take over what the globals and the closure of the user's function hold now."""
        outer, closure = self.original.__globals__, _closure(self.original)
        for name in self.wanted:
            value = closure[name] if name in closure else outer.get(name, _ABSENT)
            if value is _ABSENT:
                self.names.pop(name, None)
            else:
                self.names[name] = self.replaced.get(id(value), value)


def rewrite(kernel: Any, helpers: Mapping[str, Any], replaced: Mapping[int, Any]) -> Rewritten:
    """Rewrite the function of a `@triton.jit` kernel.

    Args:
        helpers: names that the rewritten code looks up.
        replaced: by identity, functions of the language that the interpreter replaces, for modules that imported them
            by name.
    """
    function: FunctionType = kernel.fn
    try:
        lines, first = triton_api.source_of(kernel)
    except (OSError, TypeError):
        return Rewritten(function, function, {}, (), frozenset(), replaced)
    tree = _tree(lines, first)
    unused = frozenset(_unused_atomics(tree))
    tree = triton_api.transformer().visit(_Branches().visit(tree))
    ast.fix_missing_locations(tree)
    code = compile(tree, function.__code__.co_filename, "exec", __future__.annotations.compiler_flag, True)
    names: dict[str, Any] = {"__name__": function.__module__, **helpers}
    place: dict[str, Any] = {}
    exec(code, names, place)
    run: FunctionType = place[function.__name__]
    run.__defaults__, run.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    wanted = tuple(name for name in sorted(_names_in(run.__code__)) if name not in helpers)
    return Rewritten(run, function, names, wanted, unused, replaced)


def _names_in(code: CodeType) -> set[str]:
    """What a function and the functions in it may look up."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*(_names_in(each) for each in inner))


def _closure(function: FunctionType) -> dict[str, Any]:
    """Variables of an enclosing function, as far as they are set."""
    out = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            out[name] = cell.cell_contents
        except ValueError:
            continue
    return out


def _tree(lines: list[str], first: int) -> ast.Module:
    """The function's definition without decorators, with the line numbers of its file."""
    source, indented = "".join(lines), lines[0][:1].isspace()
    tree = ast.parse(f"if True:\n{source}" if indented else source)
    body = tree.body[0].body if indented and isinstance(tree.body[0], ast.If) else tree.body
    definition = next(each for each in body if isinstance(each, ast.FunctionDef))
    definition.decorator_list = []
    arguments = definition.args  # their defaults are the original's, which may be gone by now
    arguments.defaults = [ast.copy_location(ast.Constant(None), each) for each in arguments.defaults]
    arguments.kw_defaults = [each and ast.copy_location(ast.Constant(None), each) for each in arguments.kw_defaults]
    module = ast.Module([definition], [])
    ast.increment_lineno(module, first - 1 - indented)
    return module


def _unused_atomics(tree: ast.AST) -> list[int]:
    calls = [each.value for each in ast.walk(tree) if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    return [
        line
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith(_ATOMIC)
        for line in range(call.lineno, (call.end_lineno or call.lineno) + 1)
    ]


class _Branches(ast.NodeTransformer):
    """`if test:` becomes `with branch(test) as taken: if taken:`."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        arguments = [node.test, ast.Constant(bool(node.orelse))]
        call = ast.Call(ast.Name(BRANCH, ast.Load()), arguments, [])
        name = ast.Name(_TAKEN, ast.Store())
        inner = ast.If(ast.Name(_TAKEN, ast.Load()), node.body, node.orelse)
        outer = ast.With([ast.withitem(call, name)], [inner])
        for each in (call, *arguments[1:], name, inner, inner.test, outer):
            ast.copy_location(each, node.test)
        return outer
