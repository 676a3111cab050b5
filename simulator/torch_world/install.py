"""Puts the simulation in place of what would leave the process, and takes it away again."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c
from torch.distributed import distributed_c10d as c10d

from simulator.fake_pg import GLOO, NCCL, BackendModel, Options, SimProcessGroup
from simulator.records import GroupView
from simulator.torch_world.accelerator import install_accelerator
from simulator.torch_world.batches import install_batches
from simulator.torch_world.clock import install_clock
from simulator.torch_world.context import RankContext
from simulator.torch_world.futures import install_futures
from simulator.torch_world.group_calls import PendingGroup, install_group_calls
from simulator.torch_world.meeting import meet
from simulator.torch_world.patches import Patches
from simulator.torch_world.process import install_process
from simulator.torch_world.randomness import install_randomness
from simulator.torch_world.rank_numbers import install_rank_numbers
from simulator.torch_world.registrations import install_registrations
from simulator.torch_world.selecting import install_selecting
from simulator.torch_world.shared_memory import install_shared_memory
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store import Servers, store_classes
from simulator.torch_world.symmetric_memory import install_symmetric_memory
from simulator.torch_world.threads import install_threads
from simulator.torch_world.zeromq import ZmqHooks
from simulator.triton_world.install import TritonHooks

NCCL_TIMEOUT = timedelta(minutes=10)
GLOO_TIMEOUT = timedelta(minutes=30)


@contextmanager
def installed(sim: Simulation, servers: Servers) -> Iterator[None]:
    """While this is open, code that runs in a rank of `sim` sees the simulation. Afterwards all is as it was.

    Several runs may begin on `sim` meanwhile.
    """
    _keep_device_guard()
    import_module("torch.distributed.nn.functional")  # its default arguments are WORLD as it is at the import
    patches, triton, zmq = Patches(), TritonHooks(sim), ZmqHooks(sim)
    restore_plugins = _plugin_state()
    outer_world = c10d._world
    on_collection = gc.callbacks[:]
    recursion_limit, on_thread_error = sys.getrecursionlimit(), threading.excepthook
    try:
        gc.callbacks.clear()  # they run on whichever rank allocates just then, and may read its clock there
        _install_stores(patches, sim, servers)
        _install_backends(patches, sim)
        install_group_calls(patches, sim)
        install_batches(patches, sim)
        install_clock(patches, sim)
        install_process(patches, sim)
        install_selecting(patches, sim)
        install_randomness(patches, sim)
        install_shared_memory(patches, sim)
        install_symmetric_memory(patches, sim)
        _install_mooncake(patches, sim)
        install_registrations(patches, sim)
        install_threads(patches, sim)
        install_futures(patches, sim)
        install_accelerator(patches, sim)
        install_rank_numbers(patches, sim)
        patches.follow_imports()
        sim.at_begin.append(_plugin_state())
        _isolate_threads(True)
        triton.start()
        zmq.start()
        yield
    finally:
        zmq.stop()
        triton.stop()
        _isolate_threads(False)
        patches.undo()
        c10d._world = outer_world
        restore_plugins()
        gc.callbacks[:] = on_collection
        sys.setrecursionlimit(recursion_limit)
        threading.excepthook = on_thread_error


def _keep_device_guard() -> None:
    """Let this thread be the first that asks for the device guard of fake tensors.

    Without a GPU, torch 2.11 keeps the guard of the first thread that asks (DTensor does), and reads it after that
    thread has ended: a segmentation fault, without a simulation too.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is not None and torch.__version__.startswith(("2.11.", "2.12.")) and torch.cuda.device_count() == 0:
        ensure()


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


def _backend_class(
    sim: Simulation, model: BackendModel, waits: bool, default: timedelta, sources: dict[RankContext, Any]
) -> type[SimProcessGroup]:
    class Group(SimProcessGroup):
        def __init__(
            self, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None, **_later: Any
        ) -> None:  # torch 2.14 adds enable_reconfigure, which a simulated group has no use for
            if rank >= size:
                raise RuntimeError(f"[enforce fail at gloo/context.cc] rank < size. {rank} vs {size}")
            limit = timeout or getattr(options, "_timeout", None) or default
            view = view_of(sim, size, model.name)
            room = meet(sim, store, view, wait_s=limit.total_seconds() if waits else None)
            SimProcessGroup.__init__(self, sim, model, room.comm, rank, store, limit)
            self.options.split_from = sources.pop(sim.must_be_here("a process group"), None)
            frame = _helper_frame()
            self.bound_device_id = None if frame is None else frame.f_locals.get("device_id")
            context = sim.must_be_here("a process group")
            context.groups.append(self)
            if frame is not None and context.gpus is not None:
                self.gpu_half = _gpu_half(self, frame)

    Group.Options = Options
    return Group


def _helper_frame() -> FrameType | None:
    """That of the torch function which makes the group and sets attributes on one that ours replaces."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back if frame.f_globals is vars(c10d) else None
    return frame


def _gpu_half(group: SimProcessGroup, frame: FrameType) -> SimProcessGroup | None:
    """Of `cpu:gloo,cuda:nccl` torch makes the first backend, which stands for the group; this is the other one."""
    known = frame.f_locals
    backends = known["backend_config"].get_device_backend_map()
    if str(backends.get("cuda")) != "nccl" or str(backends.get("cpu")) != "gloo" or group.model is not GLOO:
        return None
    store = c10d.PrefixStore("cuda/", known["prefix_store"])
    kind: Any = c10d.ProcessGroupNCCL
    half: SimProcessGroup = kind(store, group.rank(), group.size(), timeout=known["timeout"])
    half.bound_device_id = group.bound_device_id
    return half


def _watch_split_sources(patches: Patches, sim: Simulation) -> dict[RankContext, Any]:
    """For each rank, the group that the one it is making is split from (those that connect eagerly are).

    torch gives it to the C++ class, which takes C++ groups only; so a member keeps it here instead.
    """
    sources: dict[RankContext, Any] = {}
    real = c10d._get_split_source

    def _get_split_source(group: Any) -> Any:
        source, context = real(group), sim.here()
        if source is None or context is None:
            return source
        members = None if context.pending is None else context.pending.ranks
        if members is not None and context.rank not in members:
            return source
        sources[context] = source
        return None

    patches.set(c10d, "_get_split_source", _get_split_source)
    return sources


def _install_backends(patches: Patches, sim: Simulation) -> None:
    sources = _watch_split_sources(patches, sim)
    classes = {
        "ProcessGroupGloo": _backend_class(sim, GLOO, True, GLOO_TIMEOUT, sources),
        "ProcessGroupNCCL": _backend_class(sim, NCCL, False, NCCL_TIMEOUT, sources),
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
    from simulator.torch_world.mooncake import pg as mooncake_pg
    from simulator.torch_world.mooncake.host import MooncakeHost

    host = MooncakeHost(sim, view_of)
    module = mooncake_pg.build_module(host)
    for name, part in mooncake_pg.build_package(module).items():
        patches.set_module(name, part)
    for name, creator, devices in mooncake_pg.BACKENDS:
        c10d.Backend.register_backend(name, getattr(module, creator), extended_api=True, devices=devices)


_PLUGIN_TABLES = ("_plugins", "backend_list", "default_device_backend_map", "backend_capability", "backend_type_map")


def _plugin_state() -> Callable[[], None]:
    """Registering a backend edits five tables of torch's class `Backend`; the result puts copies of them back."""
    saved = {name: type(table)(table) for name in _PLUGIN_TABLES if (table := getattr(c10d.Backend, name, None))}
    saved["_plugins"] = dict(c10d.Backend._plugins)
    names = set(vars(c10d.Backend))

    def restore() -> None:
        for name, value in saved.items():
            setattr(c10d.Backend, name, type(value)(value))
        for name in set(vars(c10d.Backend)) - names:
            delattr(c10d.Backend, name)

    return restore
