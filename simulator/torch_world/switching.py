"""Which process-wide state is exchanged when another rank gets the baton.

Only one rank runs at a time, so a value can be exchanged at the switch instead of being looked up at every access:
torch's world, the environment, the CPU generator, the default dtype, sys.argv, the working directory, `__main__`.
Grad mode, inference mode, function and dispatch modes are kept by torch per thread, and each rank has its thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch._C import _distributed_c10d as _c
from torch.distributed import distributed_c10d as c10d

from simulator.engine.scheduler import Task
from simulator.torch_world.context import RankContext
from simulator.torch_world.modules import ModuleIsolation

DEFAULT_TORCH_SEED = 67280421310721
"""What a fresh torch process starts with (c10::detail default_rng_seed_val)."""


class Switching:
    """Called by the scheduler with the task that had the baton and the task that gets it."""

    def __init__(self, *, shared_thread: bool = False, isolate: Iterable[str] = ()) -> None:
        self._shared_thread = shared_thread
        self._modules = ModuleIsolation(isolate)
        self._generator = torch.default_generator
        self._fresh_state = torch.Generator().manual_seed(DEFAULT_TORCH_SEED).get_state()
        self._outside = self._read(self._outer_context())

    @staticmethod
    def _outer_context() -> dict[str, Any]:
        return {"world": c10d._world, "env": os.environ._data}  # type: ignore[attr-defined]

    def _read(self, into: dict[str, Any]) -> dict[str, Any]:
        into["torch_rng"] = self._generator.get_state()
        into["dtype"] = torch.get_default_dtype()
        into["argv"] = sys.argv
        into["main"] = sys.modules.get("__main__")
        into["excepthook"] = sys.excepthook
        into["cwd"] = None
        return into

    def __call__(self, old: Task | None, new: Task | None) -> None:
        before: RankContext | None = None if old is None else old.owner
        after: RankContext | None = None if new is None else new.owner
        if before is not after:
            if before is not None:
                self._save(before)
            self._load(after)
            if self._modules.used:
                self._modules.exchange(
                    None if before is None else before.modules, None if after is None else after.modules
                )
        if self._shared_thread:
            self._share_thread(before, after)
        elif new is not None and after is not None:
            known = after.registered_on.setdefault(new.number, {})
            if len(known) != len(after.registered):
                _follow_registry(known, after)

    def _share_thread(self, before: RankContext | None, after: RankContext | None) -> None:
        """Greenlets share one thread, and so its registry of groups and its grad mode: exchange them too."""
        if before is after:
            return
        (self._outside if before is None else before.saved)["grad"] = torch.is_grad_enabled()
        torch.set_grad_enabled((self._outside if after is None else after.saved).get("grad", True))
        _c._unregister_all_process_groups()
        for name, group in () if after is None else after.registered.items():
            _c._register_process_group(name, group)

    def _save(self, context: RankContext) -> None:
        cwd = context.saved.get("cwd")
        self._read(context.saved)
        context.saved["cwd"] = cwd

    def _load(self, context: RankContext | None) -> None:
        if context is None:
            saved, world, env = self._outside, self._outside["world"], self._outside["env"]
        else:
            saved, world, env = context.saved, context.world, context.env
            if not saved:
                self._begin(saved)
        c10d._world = world
        os.environ._data = env  # type: ignore[attr-defined]
        self._generator.set_state(saved["torch_rng"])
        if saved["dtype"] is not torch.get_default_dtype():
            torch.set_default_dtype(saved["dtype"])
        sys.argv = saved["argv"]
        sys.excepthook = saved["excepthook"]
        if saved["main"] is not sys.modules.get("__main__"):
            sys.modules["__main__"] = saved["main"]
        self._change_directory(saved["cwd"])

    def _begin(self, saved: dict[str, Any]) -> None:
        saved.update(self._outside)
        saved["torch_rng"] = self._fresh_state
        saved["argv"] = list(self._outside["argv"])
        if not self._shared_thread:
            threading.current_thread()._daemonic = False  # type: ignore[attr-defined]  # the rank's threads inherit it

    def _change_directory(self, wanted: str | None) -> None:
        if self._outside["cwd"] is not None or wanted is not None:
            os.chdir(wanted or self._outside["cwd"])


def _follow_registry(known: dict[str, None], context: RankContext) -> None:
    """torch keeps its registry of groups per thread: bring this thread's up to its rank's."""
    for name in [name for name in known if name not in context.registered]:
        del known[name]
        _c._unregister_process_group(name)
    for name, group in context.registered.items():
        if name not in known:
            known[name] = None
            _c._register_process_group(name, group)
