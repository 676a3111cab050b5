"""HC003 and HC004: groups that not all ranks create, or not in one order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from simulator.lint.conditions import Condition, Way, conditions, is_wildcard
from simulator.lint.module import Module, is_function
from simulator.lint.options import LintOptions
from simulator.lint.ranks import what_differs
from simulator.lint.rules.joiners import has_counterpart, only_joiners
from simulator.lint.rules.rule import Flaw, Rule
from simulator.lint.rules.sets import is_set
from simulator.lint.torch_calls import argument, torch_function
from simulator.lint.violations import Certainty

WORLD_CALLS = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"}


def creations(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls that all ranks of the default group have to make, and the functions of this file that make one."""
    makers: dict[ast.AST, str] = {}
    direct = [(call, name) for call in module.calls if (name := _world_call(module, call))]
    yield from direct
    for call, name in direct:
        functions = module.enclosing_functions(call)
        if functions and not isinstance(functions[0], ast.Lambda):
            makers[functions[0]] = name
    for call in module.calls:
        if isinstance(call.func, ast.Name):
            _, bindings = module.scope_of(call).find(call.func.id)
            made = [makers[b.node] for b in bindings if b.node in makers]
            if made and len(bindings) == 1 and not _is_local(call):
                yield call, f"{call.func.id} ({made[0]})"


def _world_call(module: Module, call: ast.Call) -> str | None:
    name = torch_function(module, call)
    return name if name in WORLD_CALLS and not _is_local(call) else None


def _is_local(call: ast.Call) -> bool:
    """Only the members meet; or `**` may say so, which cannot be seen."""
    local = argument(call, "use_local_synchronization")
    if local is not None:
        return not (isinstance(local, ast.Constant) and not local.value)
    return any(keyword.arg is None for keyword in call.keywords)


def check_conditions(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Creations that some ranks skip."""
    for call, name in creations(module):
        for condition in conditions(module, call):
            reason = _what_differs(module, condition)
            if reason is not None and not _is_matched(module, call, condition):
                yield _conditional(call, name, condition, reason)
                break
            if reason is None and only_joiners(condition) and not has_counterpart(module, call):
                yield _by_joiners(call, name, condition)
                break


def _what_differs(module: Module, condition: Condition) -> str | None:
    if condition.way is Way.RAISED or _is_sentinel(condition.test):
        return None
    return what_differs(module, condition.test)


def _is_sentinel(test: ast.expr) -> bool:
    """`rank == -1` and `rank is None` ask whether there are ranks at all."""
    match test:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Compare(comparators=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))]):
            return True
        case ast.Compare(ops=[ast.Lt() | ast.GtE()], comparators=[ast.Constant(value=0)]):
            return True
    return False


def _is_matched(module: Module, call: ast.Call, condition: Condition) -> bool:
    """The other branch makes the same call."""
    at = condition.at
    if isinstance(at, ast.Match):
        return _all_cases_call(at, call)
    if not isinstance(at, ast.If | ast.IfExp):
        return False
    other = (at.orelse if condition.holds else at.body) if condition.way is Way.AROUND else []
    nodes = other if isinstance(other, list) else [other]
    return _has_call(nodes, call)


def _has_call(nodes: Sequence[ast.AST], call: ast.Call) -> bool:
    wanted = ast.dump(call)
    return any(isinstance(one, ast.Call) and ast.dump(one) == wanted for node in nodes for one in ast.walk(node))


def _all_cases_call(at: ast.Match, call: ast.Call) -> bool:
    """Whatever the subject is, the call is made."""
    takes_rest = any(is_wildcard(case) for case in at.cases)
    return takes_rest and all(_has_call(case.body, call) for case in at.cases)


def _conditional(call: ast.Call, name: str, condition: Condition, reason: str) -> Flaw:
    where = "is reached only by ranks for which" if condition.way is Way.AROUND else "is not reached by ranks for which"
    holds = condition.holds if condition.way is Way.AROUND else not condition.holds
    test = ast.unparse(condition.test)
    shown = test if holds else f"not ({test})"
    return Flaw(
        call,
        f"{name}() {where} `{shown}` ({reason} differs between ranks), and all ranks have to call it, members or not",
        "call it on all ranks, in one order, before the condition; or pass use_local_synchronization=True if just the "
        "members call it",
    )


def _by_joiners(call: ast.Call, name: str, condition: Condition) -> Flaw:
    test = ast.unparse(condition.test)
    shown = test if condition.holds else f"not ({test})"
    return Flaw(
        call,
        f"{name}() is reached only by ranks that come later (`{shown}`), and all ranks of the default group have to "
        "call it, those that were launched before as well",
        "pass use_local_synchronization=True on the joiners, or make the group among all ranks",
        Certainty.SUSPECT,
    )


def check_order(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Creations in loops over sets."""
    for call, name in creations(module):
        for iterated in _iterated(module, call):
            if is_set(module, iterated):
                yield Flaw(
                    call,
                    f"{name}() in a loop over the set `{ast.unparse(iterated)}`: sets have no order that ranks share",
                    f"loop over sorted({ast.unparse(iterated)})",
                    Certainty.SUSPECT,
                )
                break


def _iterated(module: Module, node: ast.AST) -> Iterator[ast.expr]:
    for child, parent in module.ancestors(node):
        match parent:
            case ast.For(iter=iterated, body=body) if child in body:
                yield iterated
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                if child not in parent.generators:
                    yield from (generator.iter for generator in parent.generators)
        if is_function(parent):
            return


_WORDS = ("new_group", "new_subgroups", "init_device_mesh")
CONDITIONS = Rule(
    "HC003",
    "group-under-rank-condition",
    "a group is created under a condition that differs between ranks",
    "new_group is collective over all ranks of the default group. Ranks that skip it count one group less, and a later "
    "group hangs or joins strangers.",
    check_conditions,
    lambda options: _WORDS,
)
ORDER = Rule(
    "HC004",
    "group-in-set-order",
    "groups are created in the order of a set",
    "All ranks have to create groups in one order, and the order of a set depends on hashes and on how it was filled.",
    check_order,
    lambda options: _WORDS,
)
