"""What the names of a function or module are bound to.

One table for each function, class body and module; comprehensions share that of the function around them. Bindings
keep their order in the text, not the order in which they are run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import StrEnum, auto

ScopeNode = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Dotted = tuple[str, ...]
"""Parts of a dotted name; of an absolute file path, beginning with an empty part, if the import was relative."""


class Kind(StrEnum):
    """How a name came by its value."""

    IMPORT = auto()
    DEFINITION = auto()
    PARAMETER = auto()
    VALUE = auto()
    """Assigned: `value` is the expression on the right."""
    ITEM = auto()
    """One item of `value`, in a loop or a comprehension."""
    ADDED = auto()
    """`value` was appended, added or merged."""
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Binding:
    """One way in which a name gets a value."""

    kind: Kind
    line: int
    value: ast.expr | None = None
    node: ast.AST | None = None
    """The definition, or the parameter."""
    dotted: Dotted = ()
    """What is imported."""


@dataclass(slots=True)
class Scope:
    """One table of names.

    Attributes:
        starred: modules from which all names are imported.
    """

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    starred: list[Dotted] = field(default_factory=list)

    def add(self, name: str, binding: Binding) -> None:
        """Note one more binding."""
        self.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[Scope | None, list[Binding]]:
        """The innermost scope that binds the name, as Python looks it up, and its bindings there."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None, []


def parameters_of(node: FunctionNode) -> list[ast.arg]:
    """All named parameters, those by position first."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
