"""Puts the simulation in place of what would leave the process, and takes it away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as _c
from torch.distributed import distributed_c10d as c10d

from simulator.fake_pg import GLOO, NCCL, BackendModel, Options, SimProcessGroup
from simulator.records import GroupView
from simulator.torch_world.clock import install_clock
from simulator.torch_world.futures import install_futures
from simulator.torch_world.group_calls import PendingGroup, install_group_calls
from simulator.torch_world.meeting import meet
from simulator.torch_world.patches import Patches
from simulator.torch_world.process import install_process
from simulator.torch_world.randomness import install_randomness
from simulator.torch_world.shared_memory import install_shared_memory
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import Servers, store_classes
from simulator.torch_world.threads import install_threads

NCCL_TIMEOUT = timedelta(minutes=10)
GLOO_TIMEOUT = timedelta(minutes=30)


@contextmanager
def installed(sim: Simulation, servers: Servers) -> Iterator[None]:
    """While this is open, code that runs in a rank of `sim` sees the simulation. Afterwards all is as it was."""
    import_module("torch.distributed.nn.functional")  # its default arguments are WORLD as it is at the import
    patches = Patches()
    restore_plugins = _plugin_state()
    outer_world = c10d._world
    try:
        _install_stores(patches, sim, servers)
        _install_backends(patches, sim)
        install_group_calls(patches, sim)
        install_clock(patches, sim)
        install_process(patches, sim)
        install_randomness(patches, sim)
        install_shared_memory(patches, sim)
        _install_mooncake(patches, sim)
        install_threads(patches, sim)
        install_futures(patches, sim)
        _isolate_threads(True)
        yield
    finally:
        _isolate_threads(False)
        patches.undo()
        c10d._world = outer_world
        restore_plugins()


def _isolate_threads(on: bool) -> None:
    """Whether torch's C++ registry of groups is kept per thread."""
    switch: Callable[[bool], None] = vars(_c)["_set_thread_isolation_mode"]
    switch(on)


def _install_stores(patches: Patches, sim: Simulation, servers: Servers) -> None:
    for name, replacement in store_classes(sim, servers).items():
        for module in (dist, c10d, import_module("torch.distributed.rendezvous"), _c):
            if hasattr(module, name):
                patches.set(module, name, replacement)


def view_of(sim: Simulation, size: int, backend: str) -> GroupView:
    """The group that torch is making on the calling rank."""
    context = sim.must_be_here("a process group")
    pending: PendingGroup | None = context.pending
    if pending is None or pending.ranks is None:
        return GroupView("0", "WORLD", tuple(range(size)), backend)
    return GroupView(pending.name, pending.desc, pending.ranks, backend)


def _backend_class(sim: Simulation, model: BackendModel, waits: bool, default: timedelta) -> type[SimProcessGroup]:
    class Group(SimProcessGroup):
        def __init__(
            self, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None, **_later: Any
        ) -> None:  # torch 2.14 adds enable_reconfigure, which a simulated group has no use for
            limit = timeout or getattr(options, "_timeout", None) or default
            view = view_of(sim, size, model.name)
            room = meet(sim, store, view, wait_s=limit.total_seconds() if waits else None)
            SimProcessGroup.__init__(self, sim, model, room.comm, rank, store, limit)
            sim.must_be_here("a process group").groups.append(self)

    Group.Options = Options  # type: ignore[attr-defined]
    return Group


def _install_backends(patches: Patches, sim: Simulation) -> None:
    classes = {
        "ProcessGroupGloo": _backend_class(sim, GLOO, True, GLOO_TIMEOUT),
        "ProcessGroupNCCL": _backend_class(sim, NCCL, False, NCCL_TIMEOUT),
    }
    for name, replacement in classes.items():
        replacement.__name__ = replacement.__qualname__ = name
        for module in (dist, c10d, _c):
            patches.set(module, name, replacement)
    patches.set(c10d, "_NCCL_AVAILABLE", True)
    patches.set(c10d, "_GLOO_AVAILABLE", True)
    patches.set(c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT)


def _install_mooncake(patches: Patches, sim: Simulation) -> None:
    """The stand-in for `mooncake.pg`: the real module, where there is one, would open sockets."""
    from simulator.torch_world import mooncake_pg
    from simulator.torch_world.mooncake_host import MooncakeHost

    host = MooncakeHost(sim, view_of)
    module = mooncake_pg.build_module(host)
    for name, part in mooncake_pg.build_package(module).items():
        patches.set_module(name, part)
    for name, creator, devices in mooncake_pg.BACKENDS:
        c10d.Backend.register_backend(name, getattr(module, creator), extended_api=True, devices=devices)


_PLUGIN_TABLES = ("_plugins", "backend_list", "default_device_backend_map", "backend_capability", "backend_type_map")


def _plugin_state() -> Callable[[], None]:
    """Registering a backend edits five tables of torch's class `Backend`; the result puts them back."""
    saved = {name: type(table)(table) for name in _PLUGIN_TABLES if (table := getattr(c10d.Backend, name, None))}
    saved["_plugins"] = dict(c10d.Backend._plugins)
    names = set(vars(c10d.Backend))

    def restore() -> None:
        for name, value in saved.items():
            setattr(c10d.Backend, name, value)
        for name in set(vars(c10d.Backend)) - names:
            delattr(c10d.Backend, name)

    return restore
