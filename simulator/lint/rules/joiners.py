"""Which conditions only those ranks meet that come later: `is_joiner`, `recovered_rank`, `rank_offset > 0`.

Goes by names. Not modelled: conditions under other names, and values that other functions return.
"""

from __future__ import annotations

import ast
import re

from simulator.lint.conditions import Condition, Way, conditions
from simulator.lint.module import Module

_FLAG = re.compile(r"_*(?:is_)?(?:\w+_)?(?:joiner|recovered|recovering)(?:_rank)?")
_OFFSET = re.compile(r"_*(?:\w+_)?rank_offset")


def only_joiners(condition: Condition) -> bool:
    """Whether a condition lets through those who come later, and not those who were launched."""
    if condition.way is Way.RAISED:
        return False
    match condition.test:
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=limit)]) if not isinstance(limit, str):
            return _differs_from_start(left, op, limit) is condition.holds
        case test:
            return condition.holds and (_named(test, _FLAG) or _named(test, _OFFSET))


def _differs_from_start(left: ast.expr, op: ast.cmpop, limit: object) -> bool | None:
    """For a comparison with what a launched rank has (offset 0, flag False): whether a joiner meets it."""
    if _named(left, _OFFSET) and limit == 0:
        return {ast.Gt: True, ast.NotEq: True, ast.Eq: False, ast.LtE: False}.get(type(op))
    if _named(left, _FLAG) and isinstance(limit, bool):
        return isinstance(op, ast.Is | ast.Eq) is limit
    return None


def _named(expr: ast.expr, names: re.Pattern[str]) -> bool:
    match expr:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return names.fullmatch(name) is not None
    return False


def has_counterpart(module: Module, call: ast.Call) -> bool:
    """The same function makes the group another time by a call of the same kind: those who were launched call there."""
    functions = module.enclosing_functions(call)
    wanted = ast.dump(call.func), _ranks(call)
    return bool(functions) and any(
        isinstance(other, ast.Call)
        and (ast.dump(other.func), _ranks(other)) == wanted
        and not any(only_joiners(condition) for condition in conditions(module, other))
        for other in ast.walk(functions[0])
    )


def _ranks(call: ast.Call) -> str:
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "ranks"), None)
    return "" if given is None else ast.dump(given)
