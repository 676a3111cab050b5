"""torch ProcessGroups of the simulated backends (gloo, nccl, mooncake, mooncake-cpu). Real data moves.

torch's own Python layer calls these where it would call the C++ groups. Each rank has its own `SimProcessGroup`; those
that belong together share a `Communicator`. Neighbours: collective_calls (the other half of the class), backends (how
they differ), arguments (what they refuse), work (what asynchronous calls return), collectives (how data moves),
device_work (what `nccl` does while the host goes on).

What is not modelled:
- time: a collective takes no virtual time, only waiting does;
- the mess that a real backend makes of a mismatch (abort, hang, mixed data): the simulator reports a finding, and the
  ranks of that collective wait until they are ended or time out;
- an accelerator: `nccl` takes CPU tensors, and counts as its own those that its device has still to do with;
- `torch.ops.c10d.*` called by hand: those operators want a backend of C++, and raise;
- a rank that *returns* keeps its connections: its peers wait, and the report says that it has finished. Real gloo
  raises `Connection closed by peer` once the process is gone. A rank that fails or is killed does close them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simulator.arguments import run_error
from simulator.backends import GLOO, MODELS, MOONCAKE, NCCL, BackendModel
from simulator.collective_calls import CollectiveCalls
from simulator.collectives import Entry
from simulator.communicator import Communicator, Slot
from simulator.device import settle
from simulator.device_work import Batch, CollectiveUnit, MessageUnit, holds_host, launch
from simulator.engine.site import Stack
from simulator.engine.task import Task
from simulator.gpu_groups import check_devices, devices_of
from simulator.message_calls import MessageCalls
from simulator.monitored import monitored_barrier
from simulator.records import Gathering
from simulator.torch_world import host_order
from simulator.torch_world.gpu.place import is_on_gpu
from simulator.torch_world.in_flight import begin, leave
from simulator.torch_world.simulation import Simulation
from simulator.work import CollectiveWork, FinishedWork, LambdaWork, SimFuture, SimWork

__all__ = [
    "GLOO", "MODELS", "MOONCAKE", "NCCL", "BackendModel", "FinishedWork", "Options", "SimFuture", "SimProcessGroup",
    "SimWork",
]  # fmt: skip


class Options:
    """Stands for a backend's Options object: torch sets attributes on it and reads them back."""

    def __init__(self, backend: str = "", timeout: timedelta | None = None, **facts: Any) -> None:
        self.backend = backend
        self._timeout = timeout
        self.is_high_priority_stream = False
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.split_from: Any = None
        self.split_color: int | None = None
        vars(self).update(facts)

    def __deepcopy__(self, memo: dict[int, Any]) -> Options:
        """torch copies the options of a group that it splits; the groups that they name are not copied."""
        return copy(self)


_TorchGroup: Any = dist.ProcessGroup
"""Any, since torch's stubs of this class differ between versions and from what C++ calls."""


class SimProcessGroup(CollectiveCalls, MessageCalls, _TorchGroup):  # type: ignore[misc]
    """One rank's handle on a group.

    Args:
        comm: what the members share.
        rank: this rank's place in `comm.view.ranks`.
        store: the store under which torch made the group.
        timeout: limit of each collective, in virtual time.
        ranks: global ranks as this rank declares them, if that is more than those who meet now.

    Attributes:
        gpu_half: in a group of two backends, `cpu:gloo,cuda:nccl`, the one for tensors on simulated GPUs.
        unwaited: work that torch's C++ registry of functional collectives holds until somebody waits for it.
    """

    supports_time_estimate = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_tensor_alloc = False
    supports_window = False
    use_pg_for_symm_mem_rendezvous = False

    def __init__(
        self,
        sim: Simulation,
        model: BackendModel,
        comm: Communicator,
        rank: int,
        store: Any,
        timeout: timedelta,
        ranks: tuple[int, ...] | None = None,
    ) -> None:
        ranks = comm.view.ranks if ranks is None else ranks
        super().__init__(rank, len(ranks))
        self.sim = sim
        self.model = model
        self.comm = comm
        self.global_rank = ranks[rank]
        self.options = Options(comm.view.backend, timeout)
        self.closed = False
        self.timeout_s = timeout.total_seconds()
        self._group_rank = rank
        self._declared_size = len(ranks)
        self._name = comm.view.name
        self._desc = comm.view.desc
        self._store = store
        self.unwaited: dict[int, SimWork] = {}
        self._last_call: tuple[Task | None, Gathering, Stack] | None = None
        self._batch: Batch | None = None
        self._splits = 0
        self.gpu_half: SimProcessGroup | None = None

    # -- identity ------------------------------------------------------------------------------------------------

    def rank(self) -> int:
        """The base class asks a virtual C++ method, which asks Python back: this is twenty times as fast."""
        return self._group_rank

    def size(self) -> int:
        return self._declared_size

    def getBackendName(self) -> str:
        """For C++: DistributedDataParallel's logger takes a group called `gloo` for a ProcessGroupGloo of C++."""
        return "simulated"

    def _get_backend_name(self) -> str:
        return self.model.name

    @property
    def _device_types(self) -> list[torch.device]:
        return devices_of(self)

    def name(self) -> str:
        return self.comm.view.backend

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def get_group_store(self) -> Any:
        return self._store

    @property
    def supports_splitting(self) -> bool:
        return self.model.splits

    @property
    def supports_coalescing(self) -> bool:
        return self.model.coalesces

    def _get_backend(self, device: torch.device) -> SimProcessGroup:
        is_gpu = device is not None and torch.device(device).type == "cuda"
        return self.gpu_half if is_gpu and self.gpu_half is not None else self

    get_backend = _get_backend

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: sequence numbers are kept in any case."""

    def _get_sequence_number_for_group(self) -> int:
        return self.comm.next_seq.get(self.global_rank, 0)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing: this is for hooks, of which there are none."""

    def _enable_collectives_timing(self) -> None:
        """Nothing: collectives take no time."""

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()
        self.options._timeout = timeout

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Nothing: it would extend the next call's time-out."""

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Connect now: wait for all members, or for all members of the group that this one is split from."""
        source = self.options.split_from
        self.comm.eager = True
        (self if source is None else source)._meet("connect" if source is None else "split")

    def perform_nocolor_split(self, device: Any = None) -> None:
        """Take part in a split as a rank that is in no part of it."""
        self._meet("split")

    def _meet(self, op: str) -> None:
        self._join(Entry(op, [], [])).wait()

    def comm_split_count(self) -> int:
        return self._splits

    def shutdown(self) -> None:
        """Close the group. On a device, first wait for what it has still to do (unless an exception is on its way)."""
        if self.gpu_half is not None:
            self.gpu_half.shutdown()
        context = self.sim.here()
        if context is not None and not self.closed and sys.exc_info()[0] is None:
            leave(self.sim, context, self)
        if self.model.on_device and context is not None and context.device is not None:
            if sys.exc_info()[0] is None and not self.closed:
                context.device.finish(self.comm)
            context.device.give_up(self.comm)
        self.closed = True
        self.sim.log("shutdown", self.comm.view.label)

    def abort(self) -> None:
        """Close the group, and drop what its device has still to do."""
        if self.gpu_half is not None:
            self.gpu_half.abort()
        context = self.sim.here()
        if context is not None and context.device is not None:
            context.device.give_up(self.comm)
        self.closed = True
        self.sim.log("shutdown", self.comm.view.label)

    def __repr__(self) -> str:
        return f"<{self.model.name} group {self.comm.view.label!r} ranks {list(self.comm.view.ranks)} (simulated)>"

    # -- collectives ---------------------------------------------------------------------------------------------

    def _join(self, entry: Entry, depth: int = 2) -> SimWork:
        half = self.half_for((*entry.inputs, *entry.outputs))
        if half is not self:
            return half._join(entry, depth + 1)
        stack = self.sim.sites.capture(depth)
        self._strike(entry.op)
        if any(tensor.is_meta for tensor in entry.inputs):
            return FinishedWork(self, entry.op, entry.outputs, stack)
        lost = self._check(entry)
        if lost is not None:
            return FinishedWork(self, entry.op, entry.outputs, stack, lost)
        if self.sim.probe_watch is not None:
            self.sim.probe_watch(entry.op, stack)
        caller = sys._getframe(depth)
        on_device = self.model.on_device and entry.op not in ("connect", "split")
        work = self._on_device(entry, stack, caller) if on_device else self._on_host(entry, stack)
        if caller.f_globals.get("__name__") == "torch._ops":
            self.unwaited[id(work)] = work
        elif not isinstance(work, FinishedWork):
            tensors = (entry.inputs, entry.outputs)
            begin(self.sim, work, entry.op, self, stack, tensors, is_async=entry.terms.is_async)
        return work

    def _on_host(self, entry: Entry, stack: Stack) -> SimWork:
        settle(self.sim, [*entry.inputs, *entry.outputs])
        part = self._part(entry, stack)
        slot = self._slot(entry, stack)
        self._note_threads(slot.gathering, stack)
        lazy = entry.op == "reduce_scatter" and self.model.lazy_messages
        kind = LambdaWork if lazy else CollectiveWork
        work = kind(self, slot, entry.outputs, stack, entry.terms.limit_s)
        work.part = part
        return work

    def _note_threads(self, mine: Gathering, stack: Stack) -> None:
        """Another thread of this rank is in a collective of this group: nothing can have ordered the two calls."""
        task, last = self.sim.scheduler.current, self._last_call
        self._last_call = (task, mine, stack)
        if last is None or last[0] is task or last[0] is None or last[0].wait is None:
            return
        if last[0].wait.what is last[1]:
            self.sim.note(
                "threads_at_once",
                "two threads are in collectives of one group",
                stack=stack,
                group=self.comm.view,
                op=mine.op,
                other_op=last[1].op,
                other=last[2],
            )

    def _on_device(self, entry: Entry, stack: Stack, caller: FrameType) -> SimWork:
        refused = run_error(self.model, entry)
        if refused is not None:
            raise refused
        part = self._part(entry, stack)
        slot, calling = self.comm.call(self.global_rank, entry, stack)
        unit = CollectiveUnit(self.comm, self.global_rank, entry, stack, slot, calling, part)
        if self._batch is not None:
            return self._in_batch(unit, entry.op, stack, is_async=entry.terms.is_async)
        batch = Batch([unit], entry.terms.is_async, entry.terms.limit_s, holds_host(caller))
        return launch(self, batch, entry.op, stack, "group")

    def _in_batch(self, unit: CollectiveUnit | MessageUnit, op: str, stack: Stack, *, is_async: bool = True) -> SimWork:
        assert self._batch is not None
        self._batch.units.append(unit)
        self._batch.is_async = is_async
        return FinishedWork(self, op, unit.tensors, stack)

    def _part(self, entry: Entry, stack: Stack) -> host_order.Part | None:
        token = ("collective", self.comm.number, self.comm.next_seq.get(self.global_rank, 0))
        is_root = entry.root == self._group_rank
        return host_order.enter(self.sim, token, entry.op, is_root, entry.inputs, entry.outputs, stack)

    def _slot(self, entry: Entry, stack: Stack) -> Slot:
        return self.comm.enter(self.global_rank, entry, stack)

    def _check(self, entry: Entry) -> BaseException | None:
        """Raise what the call itself raises; return what its work will."""
        self._check_open(entry.op)
        check_devices(self, [*entry.inputs, *entry.outputs])
        if entry.reduce in self.model.refused_reduce_ops:
            raise self.model.error(f"Cannot use ReduceOp.{entry.reduce} with {self.model.title}")
        return self.fails_at_once(entry.op) if self.model.notices_death and self.comm.lost else None

    def _check_open(self, op: str) -> None:
        self.sim.must_be_here(f"{op} on group '{self.comm.view.label}'")
        if self.closed and not self.model.usable_after_destroy:
            raise RuntimeError(f"{op} on group '{self.comm.view.label}' after destroy_process_group")

    def fails_at_once(self, op: str) -> RuntimeError:
        """The error of a call on lost connections. It costs a poll: a loop that calls again and again gets nowhere."""
        self.sim.scheduler.poll(f"{op} that fails at once")
        return self.lost_error()

    def lost_error(self) -> RuntimeError:
        """What the backend raises once a member is gone, or this rank has closed its connections."""
        mine = self.comm.lost.get(self.global_rank)
        if mine is not None:
            return RuntimeError(f"[gloo] {mine}")
        rank, reason = self.comm.lost_member() or (self.global_rank, "unknown")
        return RuntimeError(f"[gloo] Connection closed by peer [rank {rank}: {reason}]")

    def release(self) -> None:
        """The run is over: take what nobody has waited for out of torch's registry."""
        self._last_call = None
        for work in self.unwaited.copy().values():
            for tensor in work.result():
                with suppress(RuntimeError):
                    torch.ops._c10d_functional.wait_tensor(tensor)
        self.unwaited.clear()

    def give_up(self, reason: str) -> None:
        """A time-out struck here: gloo closes all connections of the group."""
        if self.model.notices_death:
            self.comm.give_up(self.global_rank, reason)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        if not self.model.monitored_barrier:
            name = self.model.name
            raise RuntimeError(
                f"Backend {name} does not support monitoredBarrier, only GLOO supports monitored barrier."
            )
        monitored_barrier(self, timeout, wait_all_ranks)

    def half_for(self, tensors: Sequence[Tensor]) -> SimProcessGroup:
        """The backend of a mixed group that takes these tensors; the group itself, if it is not mixed."""
        return self if self.gpu_half is None or not any(map(is_on_gpu, tensors)) else self.gpu_half

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> SimProcessGroup | None:
        """Collective over this group; the parts are told apart by their ranks (group ranks of this group)."""
        from simulator.torch_world.meeting import meet

        self._splits += 1
        self._meet("split")
        if self._group_rank not in new_ranks:
            return None
        parent, name, desc = self.comm.view, group_name or "", group_desc or ""
        ranks = tuple(parent.ranks[rank] for rank in new_ranks)
        store = type(self._store)(f"{name}/", self._store)
        room = meet(self.sim, store, type(parent)(name, desc, ranks, parent.backend), wait_s=None)
        room.comm.eager = True
        limit = timeout or timedelta(seconds=self.timeout_s)
        child = SimProcessGroup(
            self.sim, self.model, room.comm, new_ranks.index(self._group_rank), store, limit
        )  # fmt: skip
        self.sim.must_be_here("a process group").groups.append(child)
        return child
