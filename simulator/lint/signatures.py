"""What the functions of a file accept, and the calls in it that leave something out; plain data, without trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.lint.conditions import Condition, conditions
from simulator.lint.flow import is_made_of
from simulator.lint.module import Module
from simulator.lint.scopes import Dotted, FunctionNode, parameters_of
from simulator.lint.torch_calls import is_opaque
from simulator.lint.violations import Span, span_of

_RECORDS = {"dataclass", "dataclasses", "define", "frozen", "attrs", "struct"}


@dataclass(frozen=True, slots=True)
class Signature:
    """A function or class that can be called.

    Attributes:
        module: absolute parts of its module; name: its name with classes around it.
        positional: parameters in order, without `self`; keywords: all that can be given by name.
    """

    module: Dotted
    name: Dotted
    positional: tuple[str, ...]
    keywords: frozenset[str]
    line: int


@dataclass(frozen=True, slots=True)
class ClassBases:
    """A class that does not say itself how it is made, or inherits methods."""

    module: Dotted
    name: Dotted
    bases: tuple[Dotted, ...]


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call in a function that has parameters which the call does not pass on by name.

    Attributes:
        means: what is called, one or several ways to say it, the first that is found counts.
        missing: those parameters.
        given: number of arguments by position.
    """

    path: str
    span: Span
    source: str
    means: tuple[Dotted, ...]
    shown: str
    function: str
    missing: tuple[str, ...]
    given: int


@dataclass(frozen=True, slots=True)
class Interface:
    """What one file has to say to others."""

    signatures: tuple[Signature, ...] = ()
    bases: tuple[ClassBases, ...] = ()
    calls: tuple[OpenCall, ...] = ()


NOTHING = Interface()


def interface_of(module: Module, watched: Sequence[str]) -> Interface:
    """Signatures of a file, and its calls that may have forgotten one of the watched parameters."""
    classes = tuple(_bases(module, node) for node in module.classes)
    return Interface(tuple(_signatures(module)), classes, tuple(_open_calls(module, watched)))


def _signatures(module: Module) -> Iterator[Signature]:
    for function in module.functions:
        if isinstance(function, ast.Lambda):
            continue
        name = module.qualified_name(function)
        in_class = isinstance(module.parents[function], ast.ClassDef)
        made = _signature(module, function, name, bound=in_class and not _is_static(function))
        yield made
        if in_class and function.name == "__init__":
            yield Signature(made.module, name[:-1], made.positional, made.keywords, made.line)
    for node in module.classes:
        if _is_record(node):
            yield Signature(module.parts, module.qualified_name(node), (), frozenset(), node.lineno)


def _signature(
    module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef, name: Dotted, *, bound: bool
) -> Signature:
    positional = [one.arg for one in (*function.args.posonlyargs, *function.args.args)][1 if bound else 0 :]
    keywords = {one.arg for one in parameters_of(function)} - {one.arg for one in function.args.posonlyargs}
    return Signature(module.parts, name, tuple(positional), frozenset(keywords), function.lineno)


def _is_static(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)


def _is_record(node: ast.ClassDef) -> bool:
    """Made from its fields, as dataclasses and named tuples are: options of a group, not a group; accepts nothing."""
    named = [*node.decorator_list, *node.bases]
    return any(
        isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one).split(".")[-1] in {*_RECORDS, "NamedTuple"}
        for one in (part.func if isinstance(part, ast.Call) else part for part in named)
    )


def _bases(module: Module, node: ast.ClassDef) -> ClassBases:
    found = [module.dotted(base) for base in node.bases]
    return ClassBases(module.parts, module.qualified_name(node), tuple(base for base in found if base is not None))


def _open_calls(module: Module, watched: Sequence[str]) -> Iterator[OpenCall]:
    for call in module.calls:
        owners = _owners(module, call, watched)
        if not owners or is_opaque(call) or not (means := _meanings(module, call)):
            continue
        named = {keyword.arg for keyword in call.keywords}
        missing = tuple(name for name in watched if name in owners and name not in named)
        missing = tuple(name for name in missing if not _is_settled(module, call, name))
        if missing:
            owner = owners[missing[0]]
            yield OpenCall(
                module.source.path, span_of(call, module.source.lines), module.source.line(call.lineno), means,
                ast.unparse(call.func), getattr(owner, "name", "lambda"), missing, len(call.args),
            )  # fmt: skip


def _owners(module: Module, call: ast.Call, watched: Sequence[str]) -> dict[str, FunctionNode]:
    """From each watched name to the function around the call that has it as a parameter."""
    found: dict[str, FunctionNode] = {}
    for function in module.enclosing_functions(call):
        for parameter in parameters_of(function):
            if parameter.arg in watched:
                found.setdefault(parameter.arg, function)
    return found


def _is_settled(module: Module, call: ast.Call, name: str) -> bool:
    """The parameter goes into an argument in another way, or is known to say nothing here."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(is_made_of(module, one, name, call.lineno) for one in arguments):
        return True
    return any(says_nothing(condition, name) for condition in conditions(module, call, outside=True))


def says_nothing(condition: Condition, name: str) -> bool:
    """Whether a condition means that the parameter is 0, None or False."""
    match condition.test:
        case ast.Name(id=found):
            return found == name and not condition.holds
        case ast.Compare(left=ast.Name(id=found), ops=[op], comparators=[ast.Constant(value=value)]) if found == name:
            return _means_nothing(op, value, condition.holds)
    return False


def _means_nothing(op: ast.cmpop, value: object, holds: bool) -> bool:
    match op:
        case ast.Eq() | ast.Is():
            return holds and not value
        case ast.NotEq() | ast.IsNot():
            return not holds and not value
        case ast.Gt():
            return not holds and value == 0
        case ast.GtE():
            return not holds and value == 1
        case ast.LtE():
            return holds and value == 0
        case ast.Lt():
            return holds and value == 1
    return False


def _meanings(module: Module, call: ast.Call) -> tuple[Dotted, ...]:
    match call.func:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
            node = module.enclosing_class(call)
            return () if node is None else ((*module.parts, *module.qualified_name(node), attr),)
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
            node = module.enclosing_class(call)
            bases = [] if node is None else [module.dotted(base) for base in node.bases]
            return tuple((*base, attr) for base in bases if base is not None)
        case ast.Name(id="cls"):
            node = module.enclosing_class(call)
            return () if node is None else ((*module.parts, *module.qualified_name(node)),)
    dotted = module.dotted(call.func)
    return () if dotted is None else (dotted,)
