"""Which process-wide state is exchanged when another rank gets the baton.

Only one rank runs at a time, so a value can be exchanged at the switch instead of being looked up at every access:
torch's world, the environment, the CPU generator, the default dtype, sys.argv, sys.path, the working directory, the
filters of `warnings`, `__main__`. Grad mode, inference mode, function and dispatch modes are kept by torch per thread,
and each rank has its thread. Not modelled: what all ranks share (number of threads and precision of torch's kernels,
deterministic algorithms, `sys.stdout`, the locale); threads outside the ranks see what the running rank sees.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from simulator.engine.scheduler import Task
from simulator.torch_world.context import RankContext
from simulator.torch_world.modules import ModuleIsolation

_registry: Any = torch._C._distributed_c10d
_SLOTS: tuple[tuple[dict[str, Any], str], ...] = (
    (vars(c10d), "_world"),
    (vars(c10d), "_backend"),
    (vars(c10d), "_default_pg_init_method"),
    (vars(os.environ), "_data"),
    (vars(os.environb), "_data"),
    (vars(sys), "argv"),
    (vars(sys), "path"),
    (vars(sys), "excepthook"),
    (vars(warnings), "filters"),
    (vars(warnings), "showwarning"),
    (vars(warnings), "_showwarnmsg_impl"),
    (sys.modules, "__main__"),
    (vars(importlib._bootstrap), "_module_locks"),
)
"""Names of which each rank has its own value. Reached through the dictionaries: this runs at each change of rank."""
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)
"""Settings of torch that all ranks share, and that are put back after the run."""


class Switching:
    """Called by the scheduler with the task that had the baton and the task that gets it."""

    def __init__(self, *, shared_thread: bool = False, isolate: Iterable[str] = ()) -> None:
        self._shared_thread = shared_thread
        self._modules = ModuleIsolation(isolate)
        self._generator = torch.default_generator
        self._outside = self._read({})
        self._outside["cwd"] = os.getcwd()
        self._settings = [(put, get()) for get, put in _SETTINGS]

    @property
    def modules(self) -> ModuleIsolation:
        """Which modules each rank has of its own."""
        return self._modules

    def _read(self, into: dict[str, Any]) -> dict[str, Any]:
        into["slots"] = [names.get(name) for names, name in _SLOTS]
        into["torch_rng"] = self._generator.get_state()
        into["dtype"] = torch.get_default_dtype()
        return into

    def __call__(self, old: Task | None, new: Task | None) -> None:
        before: RankContext | None = None if old is None else old.owner
        after: RankContext | None = None if new is None else new.owner
        if before is not None and before.woken_by_threads:
            _wake_selectors(before, old)
        if before is not after:
            if before is not None:
                self._read(before.saved)
            self._load(after)
            self._change_directory(before, after)
            if self._modules.used:
                self._modules.exchange(
                    None if before is None else before.modules, None if after is None else after.modules
                )
        if self._shared_thread:
            self._share_thread(before, after)
        elif new is not None and after is not None:
            if after.gpus is not None:
                after.gpus.attend(new.number)
            if after.watch is not None:
                after.watch.attend(new.number)
            if after.in_flight is not None:
                after.in_flight.attend(new.number)
            known = after.registered_on.setdefault(new.number, {})
            if len(known) != len(after.registered):
                _follow_registry(known, after)
        if after is None:
            for put, value in self._settings:
                put(value)

    def _share_thread(self, before: RankContext | None, after: RankContext | None) -> None:
        """Greenlets share one thread, and so its registry of groups and its grad mode: exchange them too."""
        if before is after:
            return
        (self._outside if before is None else before.saved)["grad"] = grad = torch.is_grad_enabled()
        wanted = (self._outside if after is None else after.saved).get("grad", True)
        if wanted is not grad:
            torch.set_grad_enabled(wanted)
        _registry._unregister_all_process_groups()
        for name, group in () if after is None else after.registered.items():
            _registry._register_process_group(name, group)

    def _load(self, context: RankContext | None) -> None:
        saved = self._outside if context is None else context.saved
        if context is not None and not saved:
            self._begin(context, saved)
        shown = warnings.filters
        for (names, name), value in zip(_SLOTS, saved["slots"], strict=True):
            names[name] = value
        if warnings.filters != shown:
            warnings._filters_mutated()  # type: ignore[attr-defined]
        self._generator.set_state(saved["torch_rng"])
        if saved["dtype"] is not torch.get_default_dtype():
            torch.set_default_dtype(saved["dtype"])

    def _begin(self, context: RankContext, saved: dict[str, Any]) -> None:
        """A rank starts as its launcher is, with lists of its own."""
        saved.update(self._outside)
        own = {"_world": context.world, "_backend": None, "_default_pg_init_method": None, "_data": context.env}
        if self._modules.used:
            own["_module_locks"] = {}  # a rank that waits in an import of its own does not keep others from theirs
        saved["slots"] = [
            own.get(name, list(value) if isinstance(value, list) else value)
            for (_, name), value in zip(_SLOTS, self._outside["slots"], strict=True)
        ]
        saved["torch_rng"] = torch.Generator().manual_seed(context.torch_seed()).get_state()
        context.process.excepthook = sys.excepthook
        if not self._shared_thread:
            threading.current_thread()._daemonic = False  # type: ignore[attr-defined]  # the rank's threads inherit it

    def _change_directory(self, before: RankContext | None, after: RankContext | None) -> None:
        left = None if before is None else before.process.cwd
        entered = None if after is None else after.process.cwd
        if left != entered:
            os.chdir(entered or self._outside["cwd"])


def _wake_selectors(context: RankContext, ran: Task | None) -> None:
    """A thread has run and may have woken an event loop of its rank, through a real pipe."""
    for waiting in [pair for pair in context.woken_by_threads if pair[0] is not ran]:
        context.woken_by_threads.remove(waiting)
        waiting[1].succeed()


def _follow_registry(known: dict[str, None], context: RankContext) -> None:
    """torch keeps its registry of groups per thread: bring this thread's up to its rank's."""
    for name in [name for name in known if name not in context.registered]:
        del known[name]
        _registry._unregister_process_group(name)
    for name, group in context.registered.items():
        if name not in known:
            known[name] = None
            _registry._register_process_group(name, group)
