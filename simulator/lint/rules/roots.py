"""HC005: a rank within a group where torch wants a global rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from simulator.lint.module import Module
from simulator.lint.options import LintOptions
from simulator.lint.ranks import group_rank_in, is_default_group
from simulator.lint.rules.rule import Flaw, Rule
from simulator.lint.torch_calls import argument, torch_function

_ROOTS = {
    "broadcast": ("src", 1, 2),
    "broadcast_object_list": ("src", 1, 2),
    "reduce": ("dst", 1, 3),
    "gather": ("dst", 2, 3),
    "gather_object": ("dst", 2, 3),
    "scatter": ("src", 2, 3),
    "scatter_object_list": ("src", 2, 3),
    "send": ("dst", 1, 2),
    "isend": ("dst", 1, 2),
    "recv": ("src", 1, 2),
    "irecv": ("src", 1, 2),
    "send_object_list": ("dst", 1, 2),
    "recv_object_list": ("src", 1, 2),
    "P2POp": ("peer", 2, 3),
}
"""From functions of torch to the name and the position of the root or peer, and the position of the group."""


def check(module: Module, options: LintOptions) -> Iterator[Flaw]:
    """Calls of torch on a sub-group whose root is a rank within a group."""
    for call in module.calls:
        name = torch_function(module, call)
        if name not in _ROOTS:
            continue
        parameter, position, group_position = _ROOTS[name]
        root, group = argument(call, parameter, position), argument(call, "group", group_position)
        if root is None or group is None or is_default_group(group):
            continue
        shown = group_rank_in(module, root, group)
        if shown is not None:
            yield _flaw(call, root, group, name, parameter, shown)


def _flaw(call: ast.Call, root: ast.expr, group: ast.expr, name: str, parameter: str, shown: str) -> Flaw:
    of, written = ast.unparse(group), ast.unparse(root)
    return Flaw(
        call,
        f"{name}() takes a global rank as {parameter}, and {shown} counts within a group",
        f"write group_{parameter}={written}, or {parameter}=dist.get_global_rank({of}, {written})",
    )


RULE = Rule(
    "HC005",
    "group-rank-as-global",
    "src= or dst= of a collective on a sub-group is a rank within the group",
    "It is right on the group that begins with rank 0, by chance. The others name a stranger: torch raises, or the "
    "wrong member sends.",
    check,
    lambda options: ("group_rank", "rank_in_group", "group_local_rank", "get_rank(", ".rank("),
)
