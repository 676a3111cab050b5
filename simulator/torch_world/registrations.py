"""Operators that isolated modules register with torch, of which there is one for all ranks.

A module that each rank executes anew defines `mylib::all_reduce` once for each rank, and torch refuses the second time.
In a rank a definition that another has made counts as its own, and the operator calls the function of the rank that
runs. Fake kernels are those of the first rank: they say shapes. Not modelled: `torch.library.custom_op` and modules
that ask whether an operator is there and then leave it be: there the first rank's function runs for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.library import Library

from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation

_TWICE = "with the same name and overload name multiple times"
_Functions = dict[RankContext, Callable[..., Any]]


def install_registrations(patches: Patches, sim: Simulation) -> None:
    """Replace what registers operators, for ranks."""
    kind: Any = Library
    define, impl, fake = kind.define, kind.impl, kind._register_fake
    routes: dict[tuple[str, str, str], _Functions] = {}
    fakes: dict[tuple[str, str], RankContext] = {}
    defined: dict[tuple[RankContext, str], None] = {}

    def forget() -> None:
        """A later run begins anew; what torch has stays there."""
        for functions in routes.values():
            functions.clear()
        defined.clear()

    def define_once(self: Library, schema: str, *args: Any, **kwargs: Any) -> Any:
        context, name = sim.here(), schema.partition("(")[0]
        if context is None or (context, f"{self.ns}::{name}") in defined:
            return define(self, schema, *args, **kwargs)
        defined[context, f"{self.ns}::{name}"] = None
        try:
            return define(self, schema, *args, **kwargs)
        except RuntimeError as error:
            if _TWICE not in str(error):
                raise
            return name

    def impl_routed(self: Library, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        context, name = sim.here(), op_name if isinstance(op_name, str) else op_name.name()
        if context is None or not callable(fn):
            return impl(self, op_name, fn, dispatch_key, **kwargs)
        functions = routes.get((self.ns, name, dispatch_key))
        if functions is not None:
            functions[context] = fn
            return None
        functions = routes[self.ns, name, dispatch_key] = {context: fn}

        def of_the_running_rank(*args: Any, **values: Any) -> Any:
            context = sim.here()
            mine = None if context is None else functions.get(context)
            return (fn if mine is None else mine)(*args, **values)

        return impl(self, op_name, of_the_running_rank, dispatch_key, **kwargs)

    def fake_once(self: Library, op_name: str, fn: Any, *args: Any, **kwargs: Any) -> Any:
        context = sim.here()
        if context is not None and fakes.setdefault((self.ns, op_name), context) is not context:
            return None
        return fake(self, op_name, fn, *args, **kwargs)

    sim.at_begin.append(forget)
    patches.set(Library, "define", define_once)
    patches.set(Library, "impl", impl_routed)
    patches.set(Library, "_register_fake", fake_once)
