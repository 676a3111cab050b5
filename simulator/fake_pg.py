"""torch ProcessGroups of the simulated backends (gloo, nccl, mooncake, mooncake-cpu). Real data moves.

torch's own Python layer calls these where it would call the C++ groups. Each rank has its own `SimProcessGroup`; those
that belong together share a `Communicator`.

What is not modelled:
- time: a collective takes no virtual time, only waiting does;
- the mess that a real backend makes of a mismatch (abort, hang, mixed data): the simulator reports a finding, and the
  ranks of that collective wait until they are ended or time out;
- CUDA streams: a synchronous call on `nccl` blocks the host until its peers have come, where the real one returns;
- `nccl` takes CPU tensors, since there is no simulated accelerator yet;
- a rank that *returns* keeps its connections: its peers wait, and the report says that it has finished. Real gloo raises
  `Connection closed by peer` once the process is gone. A rank that fails or is killed does close them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as _c

from simulator.collectives import Entry, op_name, split_rows
from simulator.communicator import ANY_SOURCE, Communicator, Message, Slot
from simulator.engine.scheduler import Wait
from simulator.engine.site import Stack
from simulator.torch_world.simulation import Simulation

Raises = Callable[[int, str], BaseException]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendModel:
    """How one backend differs from the others."""

    name: str
    refused_reduce_ops: frozenset[str] = frozenset()
    """ReduceOps that it does not have."""
    any_source: bool = True
    """It can receive from any source."""
    monitored_barrier: bool = False
    """It has monitored_barrier."""
    notices_death: bool = False
    """Peers of a dead process get an error at once."""
    keeps_time: bool = True
    """It honours time-outs."""
    splits: bool = False
    """It can split a group (split_group)."""
    timed_out: Raises = lambda ms, op: RuntimeError(f"{op} timed out after {ms} ms")
    """The error of a collective that exceeded the group's time-out."""


GLOO = BackendModel(
    name="gloo",
    refused_reduce_ops=frozenset({"AVG", "PREMUL_SUM"}),
    monitored_barrier=True,
    notices_death=True,
    timed_out=lambda ms, op: RuntimeError(f"[gloo] Timed out waiting {ms}ms for {op} operation to complete"),
)
NCCL = BackendModel(
    name="nccl",
    any_source=False,
    splits=True,
    refused_reduce_ops=frozenset({"BAND", "BOR", "BXOR"}),
    timed_out=lambda ms, op: dist.DistBackendError(
        f"[nccl] Watchdog caught collective operation timeout: {op} ran for {ms} milliseconds before timing out."
    ),
)
MOONCAKE = BackendModel(
    name="mooncake",
    any_source=False,
    keeps_time=False,
    refused_reduce_ops=frozenset({"AVG", "PREMUL_SUM", "BAND", "BOR", "BXOR"}),
)
MODELS = {"gloo": GLOO, "nccl": NCCL, "mooncake": MOONCAKE, "mooncake-cpu": MOONCAKE}


def seconds(timeout: timedelta | None) -> float | None:
    """None for a missing time-out, and for the zero or negative ones that mean `use the default`."""
    return None if timeout is None or timeout.total_seconds() <= 0 else timeout.total_seconds()


class SimFuture(torch.futures.Future):  # type: ignore[type-arg, misc]
    """A future whose `wait` suspends the rank instead of its thread."""

    def __new__(cls, work: SimWork) -> SimFuture:
        return super().__new__(cls)

    def __init__(self, work: SimWork) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> Any:
        self._work.wait()
        return super().wait()

    def value(self) -> Any:
        return super().wait() if self.done() else super().value()


class SimWork(_c.Work):
    """A handle on a collective or a message. `wait` blocks in virtual time."""

    def __init__(self, group: SimProcessGroup, op: str, outputs: Sequence[Tensor], stack: Stack) -> None:
        super().__init__()
        self._group = group
        self._op = op
        self._outputs = list(outputs)
        self._stack = stack
        self._error: BaseException | None = None
        self._future: SimFuture | None = None

    # -- what subclasses know ------------------------------------------------------------------------------------

    def _met(self) -> Any:
        """The simpy event that triggers when the work can go on (done, or a member lost)."""
        raise NotImplementedError

    def _done(self) -> bool:
        raise NotImplementedError

    def _waiting_for(self) -> Wait:
        raise NotImplementedError

    def _withdraw(self) -> None:
        """A time-out struck."""

    # -- torch's interface ---------------------------------------------------------------------------------------

    def wait(self, timeout: timedelta | None = None) -> bool:
        explicit = seconds(timeout)
        if not self._done():
            self._block(explicit)
        if self._error is not None:
            raise self._error
        return True

    def _block(self, explicit_s: float | None) -> None:
        group = self._group
        wait = self._waiting_for()
        wait.deadline_is_explicit = explicit_s is not None
        limit_s = explicit_s if explicit_s is not None else group.timeout_s
        in_time = group.sim.wait(self._met(), wait, limit_s if group.model.keeps_time else None)
        if not in_time:
            self._time_out(explicit_s, limit_s)
        elif not self._done():
            self._error = group.lost_error()

    def _time_out(self, explicit_s: float | None, limit_s: float) -> None:
        if explicit_s is not None:
            raise RuntimeError("Operation timed out!")
        self._withdraw()
        group = self._group
        self._error = group.model.timed_out(int(limit_s * 1000), self._op)
        group.sim.note("timeout", str(self._error), stack=self._stack, group=group.comm.view)
        group.comm.lost.setdefault(group.global_rank, "Application timeout caused pair closure")

    def is_completed(self) -> bool:
        if not self._done() and self._error is None:
            self._group.sim.scheduler.poll(f"{self._op}.is_completed()")
        return self._done() or self._error is not None

    def is_success(self) -> bool:
        return self._done()

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[Tensor]:
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        raise RuntimeError("sourceRank() may only be called on work objects that correspond to a recv call.")

    def get_future(self) -> Any:
        if self._future is None:
            self._future = SimFuture(self)
            self._resolve(self._future)
        return self._future

    def _resolve(self, future: SimFuture) -> None:
        if self._done():
            future.set_result(self._outputs)
            return
        self._met().callbacks.append(lambda _: self._settle(future))

    def _settle(self, future: SimFuture) -> None:
        if self._done():
            future.set_result(self._outputs)
        else:
            future.set_exception(self._error or self._group.lost_error())

    def get_future_result(self) -> Any:
        return self.get_future()


class CollectiveWork(SimWork):
    """One rank's part in a collective."""

    def __init__(self, group: SimProcessGroup, slot: Slot, outputs: Sequence[Tensor], stack: Stack) -> None:
        super().__init__(group, slot.gathering.op, outputs, stack)
        self._slot = slot

    def _met(self) -> Any:
        return self._slot.barrier.released

    def _done(self) -> bool:
        return self._slot.done

    def _waiting_for(self) -> Wait:
        gathering = self._slot.gathering
        text = f"{gathering.op} on group '{gathering.group.label}' seq {gathering.seq}"
        return Wait("collective", text, self._stack, gathering)


class MessageWork(SimWork):
    """A posted send or receive."""

    def __init__(self, group: SimProcessGroup, message: Message) -> None:
        super().__init__(group, message.wait.op, [message.tensor], message.stack)
        self._message = message

    def _met(self) -> Any:
        return self._message.met

    def _done(self) -> bool:
        return self._message.partner is not None

    def _waiting_for(self) -> Wait:
        peer = self._message.wait
        other = "any rank" if peer.peer == ANY_SOURCE else f"rank {peer.peer}"
        direction = "to" if peer.op == "send" else "from"
        text = f"{peer.op} {direction} {other} on group '{peer.group.label}'"
        return Wait(peer.op, text, self._stack, peer)

    def _withdraw(self) -> None:
        self._group.comm.withdraw(self._message)

    def _source_rank(self) -> int:
        assert self._message.partner is not None
        return self._group.comm.view.ranks.index(self._message.partner)


class FinishedWork(SimWork):
    """Work that was done when it was issued."""

    def _done(self) -> bool:
        return True


class AllWork(SimWork):
    """Several pieces of work behind one handle (a coalesced batch)."""

    def __init__(self, group: SimProcessGroup, parts: Sequence[SimWork]) -> None:
        outputs = [tensor for part in parts for tensor in part.result()]
        super().__init__(group, "coalesced", outputs, ())
        self._parts = list(parts)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([part.wait(timeout) for part in self._parts])

    def is_completed(self) -> bool:
        return all([part.is_completed() for part in self._parts])

    def _done(self) -> bool:
        return all(part._done() for part in self._parts)

    def _met(self) -> Any:
        env = self._group.sim.scheduler.env
        return env.all_of([part._met() for part in self._parts])


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


class SimProcessGroup(dist.ProcessGroup):
    """One rank's handle on a group.

    Args:
        comm: what the members share.
        rank: this rank's place in `comm.view.ranks`.
        store: the store under which torch made the group.
        timeout: limit of each collective, in virtual time.
        ranks: global ranks as this rank declares them, if that is more than those who meet now.
    """

    supports_coalescing = False
    supports_time_estimate = False

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
        self._name = comm.view.name
        self._desc = comm.view.desc
        self._store = store
        self._coalescing: list[SimWork] | None = None

    # -- identity ------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return self.model.name

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

    def _get_backend(self, device: torch.device) -> SimProcessGroup:
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: sequence numbers are kept in any case."""

    def _get_sequence_number_for_group(self) -> int:
        return self.comm.next_seq.get(self.global_rank, 0)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Nothing: connections cost no time."""

    def shutdown(self) -> None:
        self.closed = True
        self.sim.log("shutdown", self.comm.view.label)

    abort = shutdown

    def __repr__(self) -> str:
        return f"<{self.model.name} group {self.comm.view.label!r} ranks {list(self.comm.view.ranks)} (simulated)>"

    # -- collectives ---------------------------------------------------------------------------------------------

    def _join(self, entry: Entry) -> SimWork:
        self._check(entry)
        stack = self.sim.sites.capture(2)
        if self.sim.probe_watch is not None:
            self.sim.probe_watch(entry.op, stack)
        slot = self._slot(entry, stack)
        return self._issued(CollectiveWork(self, slot, entry.outputs, stack))

    def _slot(self, entry: Entry, stack: Stack) -> Slot:
        return self.comm.enter(self.global_rank, entry, stack)

    def _check(self, entry: Entry) -> None:
        self._check_open(entry.op)
        if entry.reduce in self.model.refused_reduce_ops:
            raise RuntimeError(f"Cannot use ReduceOp.{entry.reduce} with {self.model.name.capitalize()}")

    def _check_open(self, op: str) -> None:
        self.sim.must_be_here(f"{op} on group '{self.comm.view.label}'")
        if self.closed:
            raise RuntimeError(f"{op} on group '{self.comm.view.label}' after destroy_process_group")
        if self.model.notices_death and self.comm.lost:
            raise self.lost_error()

    def lost_error(self) -> RuntimeError:
        """What the backend raises once a member is gone."""
        rank, reason = self.comm.lost_member() or (self.global_rank, "Connection closed by peer")
        if rank == self.global_rank:
            return RuntimeError(f"[gloo] {reason}")
        return RuntimeError(f"[gloo] Connection closed by peer [rank {rank}: {reason}]")

    def _issued(self, work: SimWork) -> SimWork:
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        held = _listed(tensors)
        name, factor = _reduction(opts)
        return self._join(Entry("all_reduce", held, held, reduce=name, factor=factor))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        held = _listed(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._join(Entry("broadcast", held, held, root=root))

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> SimWork:
        held = _listed(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        name, factor = _reduction(op if isinstance(opts, int) else opts)
        return self._join(Entry("reduce", held, held, reduce=name, root=root, factor=factor))

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        lists = [output_lists] if isinstance(output_lists[0], Tensor) else output_lists
        self._check_list(lists[0])
        return self._join(Entry("all_gather", _listed(inputs), [t for row in lists for t in row]))

    def allgather_coalesced(self, output_lists: Any, inputs: list[Tensor], opts: Any = None) -> SimWork:
        """`output_lists` holds, for each input, one tensor per rank."""
        return self.allgather(output_lists, inputs, opts)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        return self._join(Entry("all_gather", [source], self._parts(output, source)))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        parts = [part for output, source in zip(outputs, inputs, strict=True) for part in self._parts(output, source)]
        return self._join(Entry("all_gather", inputs, parts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _parts(self, whole: Tensor, part: Tensor) -> list[Tensor]:
        """`whole` seen as one piece per rank, each with as many elements as `part`."""
        size = self.size()
        if whole.numel() != part.numel() * size:
            raise ValueError(
                f"output tensor has {whole.numel()} elements, expected {size} times the input's {part.numel()}"
            )
        return list(whole.view(-1).chunk(size)) if whole.numel() else [whole] * size

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        root = opts if isinstance(opts, int) else opts.rootRank
        rows = output_lists[0] if output_lists and isinstance(output_lists[0], (list, tuple)) else output_lists
        if self._group_rank == root:
            self._check_list(rows)
        return self._join(Entry("gather", _listed(inputs), list(rows), root=root))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        root = opts if isinstance(opts, int) else opts.rootRank
        rows = input_lists[0] if input_lists and isinstance(input_lists[0], (list, tuple)) else input_lists
        if self._group_rank == root:
            self._check_list(rows)
        return self._join(Entry("scatter", list(rows), _listed(outputs), root=root))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> SimWork:
        lists = [input_lists] if isinstance(input_lists[0], Tensor) else input_lists
        self._check_list(lists[0])
        name, factor = _reduction(opts)
        flat = [t for row in lists for t in row]
        return self._join(Entry("reduce_scatter", flat, _listed(outputs), reduce=name, factor=factor))

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> SimWork:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> SimWork:
        name, factor = _reduction(opts)
        parts = [part for output, source in zip(outputs, inputs, strict=True) for part in self._parts(source, output)]
        return self._join(Entry("reduce_scatter", parts, outputs, reduce=name, factor=factor))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        self._check_list(outputs)
        self._check_list(inputs)
        return self._join(Entry("all_to_all", inputs, outputs))

    def all_to_all_single(
        self, output: Tensor, source: Tensor, out_splits: list[int], in_splits: list[int], opts: Any = None
    ) -> SimWork:
        size = self.size()
        entry = Entry("all_to_all_single", split_rows(source, in_splits, size), split_rows(output, out_splits, size))
        return self._join(entry)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        return self._join(Entry("barrier", [], []))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        if not self.model.monitored_barrier:
            raise RuntimeError(f"ProcessGroup {self.model.name} does not support monitoredBarrier")
        monitored_barrier(self, timeout, wait_all_ranks)

    def _check_list(self, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self.size():
            raise ValueError(f"tensor list has {len(tensors)} entries, expected one per rank of the group: {self.size()}")

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> SimWork:
        self._check_open("send")
        stack = self.sim.sites.capture(1)
        ranks = self.comm.view.ranks
        message = self.comm.post_send(self.global_rank, ranks[peer], tensors[0], tag, stack)
        return self._issued(MessageWork(self, message))

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> SimWork:
        self._check_open("recv")
        source = ANY_SOURCE if peer == ANY_SOURCE else self.comm.view.ranks[peer]
        message = self.comm.post_receive(self.global_rank, source, tensors[0], tag, self.sim.sites.capture(1))
        return self._issued(MessageWork(self, message))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> SimWork:
        if not self.model.any_source:
            raise RuntimeError(f"ProcessGroup {self.model.name} does not support recvAnysource")
        return self.recv(tensors, ANY_SOURCE, tag)

    # -- batches and splits --------------------------------------------------------------------------------------

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: Any) -> SimWork:
        parts, self._coalescing = self._coalescing or [], None
        return AllWork(self, parts)

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> SimProcessGroup | None:
        """Collective over this group; the parts are told apart by their ranks."""
        return split(self, new_ranks, timeout, group_name or "", group_desc or "")


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _reduction(opts: Any) -> tuple[str, Any]:
    """The name of a reduction, and the factor of PREMUL_SUM (torch hides it in the ReduceOp's state)."""
    if opts is None:
        return "SUM", None
    reduce_op = getattr(opts, "reduceOp", opts)
    name = op_name(reduce_op)
    factor = reduce_op.__getstate__()[1] if name == "PREMUL_SUM" else None
    return name, factor


def split(
    group: SimProcessGroup, new_ranks: list[int], timeout: timedelta | None, name: str, desc: str
) -> SimProcessGroup | None:
    """`ProcessGroup.split_group`: `new_ranks` are group ranks of the parent."""
    from simulator.torch_world.meeting import meet

    if group._group_rank not in new_ranks:
        return None
    parent = group.comm.view
    ranks = tuple(parent.ranks[rank] for rank in new_ranks)
    store = type(group._store)(f"{name}/", group._store)
    room = meet(group.sim, store, type(parent)(name, desc, ranks, parent.backend), wait_s=None)
    child = SimProcessGroup(
        group.sim,
        group.model,
        room.comm,
        new_ranks.index(group._group_rank),
        store,
        timeout or timedelta(seconds=group.timeout_s),
    )
    child._set_group_name(name)
    child._set_group_desc(desc)
    return child


def monitored_barrier(group: SimProcessGroup, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """Rank 0 hears from each rank in turn, then tells all; it names those that do not come in time.

    Source: ProcessGroupGloo::monitoredBarrier.
    """
    limit = timeout or timedelta(seconds=group.timeout_s)
    tag, token = -2, torch.zeros(1, dtype=torch.uint8)
    if group.rank() != 0:
        try:
            group.send([token], 0, tag).wait(limit)
            group.recv([token], 0, tag).wait(limit)
        except RuntimeError as error:
            raise RuntimeError(
                f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
            ) from None
        return
    late = _hear_from_all(group, limit, wait_all_ranks, tag)
    if late:
        who = f"Rank {late[0]}" if len(late) == 1 else f"Ranks {', '.join(map(str, late))}"
        millis = int(limit.total_seconds() * 1000)
        raise RuntimeError(f"[Rank 0]: {who} failed to pass monitoredBarrier in {millis} ms")
    for peer in range(1, group.size()):
        group.send([token], peer, tag).wait(limit)


def _hear_from_all(group: SimProcessGroup, limit: timedelta, wait_all_ranks: bool, tag: int) -> list[int]:
    late: list[int] = []
    for peer in range(1, group.size()):
        work = group.recv([torch.zeros(1, dtype=torch.uint8)], peer, tag)
        try:
            work.wait(limit)
        except RuntimeError:
            assert isinstance(work, MessageWork)
            work._withdraw()
            late.append(peer)
            if not wait_all_ranks:
                break
    return late
