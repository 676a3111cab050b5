"""A parsed file with parents, scopes, and what names stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from simulator.lint.scopes import FUNCTIONS, Binding, Dotted, FunctionNode, Kind, Scope, ScopeNode, parameters_of
from simulator.lint.source import Source

_ADDING = {"append", "extend", "add", "update", "insert", "appendleft"}


class Module:
    """One file, ready for the rules.

    Attributes:
        parts: absolute path of the module, package or file, as parts of a dotted name.
        calls: all calls, in the order of the text.
        functions: all functions and lambdas; classes: all classes.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.parts = module_parts(source.file)
        self.calls: list[ast.Call] = []
        self.functions: list[FunctionNode] = []
        self.classes: list[ast.ClassDef] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {}
        self._is_package = source.file.name == "__init__.py"
        self._read(source.tree, Scope(source.tree, None))
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, root: ast.Module, scope: Scope) -> None:
        self.scopes[root] = scope
        waiting: list[tuple[ast.AST, Scope]] = [(root, scope)]
        while waiting:
            node, scope = waiting.pop()
            inner = self._note(node, scope)
            children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
            for child in children:
                self.parents[child] = node
            waiting.extend((child, inner) for child in reversed(children))

    def _note(self, node: ast.AST, scope: Scope) -> Scope:
        """Note what a node binds; returns the scope of what is inside it."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return self._enter_function(node, scope)
            case ast.ClassDef():
                self.classes.append(node)
                scope.add(node.name, Binding(Kind.DEFINITION, node.lineno, node=node))
                return self._enter(node, scope)
            case ast.Call():
                self.calls.append(node)
                self._note_adding(node, scope)
            case ast.Import() | ast.ImportFrom():
                self._note_import(node, scope)
            case _:
                self._note_binding(node, scope)
        return scope

    def _enter(self, node: ScopeNode, parent: Scope) -> Scope:
        self.scopes[node] = Scope(node, parent)
        return self.scopes[node]

    def _enter_function(self, node: FunctionNode, scope: Scope) -> Scope:
        self.functions.append(node)
        if not isinstance(node, ast.Lambda):
            scope.add(node.name, Binding(Kind.DEFINITION, node.lineno, node=node))
        inner = self._enter(node, scope)
        for parameter in (*parameters_of(node), node.args.vararg, node.args.kwarg):
            if parameter is not None:
                inner.add(parameter.arg, Binding(Kind.PARAMETER, parameter.lineno, node=parameter))
        return inner

    def _note_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = tuple(alias.name.split("."))
                name, target = (alias.asname, dotted) if alias.asname else (dotted[0], dotted[:1])
                scope.add(name, Binding(Kind.IMPORT, node.lineno, dotted=target))
            return
        base = self._base_of(node)
        for alias in node.names:
            if alias.name == "*":
                scope.starred.append(base)
            else:
                scope.add(alias.asname or alias.name, Binding(Kind.IMPORT, node.lineno, dotted=(*base, alias.name)))

    def _base_of(self, node: ast.ImportFrom) -> Dotted:
        named = tuple(node.module.split(".")) if node.module else ()
        up = node.level - 1 if self._is_package else node.level
        return (*self.parts[: len(self.parts) - up], *named) if node.level else named

    def _note_binding(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _bind(scope, target, Kind.VALUE, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                _bind(scope, target, Kind.VALUE, value)
            case ast.NamedExpr(target=target, value=value):
                _bind(scope, target, Kind.VALUE, value)
            case ast.AugAssign(target=target, value=value):
                _bind(scope, target, Kind.ADDED, value)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                _bind(scope, target, Kind.ITEM, value)
            case ast.comprehension(target=target, iter=value):
                _bind(scope, target, Kind.ITEM, value)
            case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
                _bind(scope, target, Kind.UNKNOWN, value)

    def _note_adding(self, call: ast.Call, scope: Scope) -> None:
        """`ranks.append(x)` adds to `ranks`."""
        match call.func:
            case ast.Attribute(attr=attr, value=ast.Name(id=name)) if attr in _ADDING:
                for argument in call.args:
                    scope.add(name, Binding(Kind.ADDED, call.lineno, value=argument))

    # -- asking ----------------------------------------------------------------------------------------------------

    def ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Pairs of a node and its parent, from the node upwards."""
        while node in self.parents:
            yield node, self.parents[node]
            node = self.parents[node]

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which the names of an expression are looked up."""
        for child, parent in self.ancestors(node):
            if parent in self.scopes and not _is_outside(child, parent):
                return self.scopes[parent]
        return self.scopes[self.source.tree]

    def enclosing_functions(self, node: ast.AST) -> list[FunctionNode]:
        """Functions whose parameters an expression can name, innermost first."""
        found: list[FunctionNode] = []
        scope: Scope | None = self.scope_of(node)
        while scope is not None:
            if is_function(scope.node):
                found.append(scope.node)
            scope = scope.parent
        return found

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around a node."""
        return next((parent for _, parent in self.ancestors(node) if isinstance(parent, ast.ClassDef)), None)

    def dotted(self, expr: ast.expr, depth: int = 4) -> Dotted | None:
        """What an expression such as `dist.new_group` stands for: a full name; None for anything else.

        A name that nothing binds stands for itself, one that is defined here has the path of this module in front.
        """
        match expr:
            case ast.Attribute(value=value, attr=attr):
                base = self.dotted(value, depth)
                return None if base is None else (*base, attr)
            case ast.Name(id=name):
                return self._named(name, expr, depth)
        return None

    def _named(self, name: str, at: ast.expr, depth: int) -> Dotted | None:
        scope, bindings = self.scope_of(at).find(name)
        imports = [binding for binding in bindings if binding.kind is Kind.IMPORT]
        if imports:
            return imports[-1].dotted
        if scope is None:
            return (name,)
        match bindings:
            case [Binding(kind=Kind.DEFINITION)]:
                return (*self.parts, *self._qualified(scope), name)
            case [Binding(kind=Kind.VALUE, value=ast.Name() | ast.Attribute() as value)] if depth:
                return self.dotted(value, depth - 1)
        return None

    def _qualified(self, scope: Scope) -> Dotted:
        """Names of the classes and functions around what a scope defines."""
        names: list[str] = []
        inner: Scope | None = scope
        while inner is not None and isinstance(inner.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.insert(0, inner.node.name)
            inner = inner.parent
        return tuple(names)

    def qualified_name(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Dotted:
        """Of a definition, with the classes and functions around it."""
        return (*self._qualified(self.scope_of(node)), node.name)


def is_function(node: ast.AST) -> TypeGuard[FunctionNode]:
    """Functions, methods and lambdas."""
    return isinstance(node, FUNCTIONS)


def module_parts(file: Path) -> Dotted:
    """The parts of a file's absolute path, as of a module: `("", "src", "pkg", "mod")`."""
    parts = file.with_suffix("").parts
    return ("", *(parts[1:-1] if file.name == "__init__.py" else parts[1:]))


def _is_outside(child: ast.AST, scope_node: ast.AST) -> bool:
    """Decorators, bases, defaults and annotations are looked up outside the function or class."""
    if isinstance(scope_node, ast.Module):
        return False
    if isinstance(scope_node, ast.Lambda):
        return child is scope_node.args
    return child not in getattr(scope_node, "body", ())


def _bind(scope: Scope, target: ast.expr, kind: Kind, value: ast.expr) -> None:
    match target:
        case ast.Name(id=name):
            scope.add(name, Binding(kind, target.lineno, value=value))
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            _bind_all(scope, targets, kind, value)
        case ast.Starred(value=inner):
            _bind(scope, inner, Kind.UNKNOWN, value)


def _bind_all(scope: Scope, targets: list[ast.expr], kind: Kind, value: ast.expr) -> None:
    """`a, b = 1, 2` binds one by one, `a, b = f()` binds items."""
    pairwise = kind is Kind.VALUE and isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets)
    for index, target in enumerate(targets):
        part = value.elts[index] if pairwise and isinstance(value, ast.Tuple | ast.List) else value
        _bind(scope, target, kind if pairwise else Kind.ITEM if kind is Kind.VALUE else kind, part)
