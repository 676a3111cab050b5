"""torch's symmetric memory for simulated ranks: every call, on its good and its bad day."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch._C import _distributed_c10d as _c
from torch._C._autograd import DeviceType

from simulator import cli, simulate
from simulator.memory_records import Access
from tests.unit.memory_runs import accesses, run, start

WORLD_SIZES = (1, 2, 4, 8)


def caught(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    try:
        call(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def results(body: Callable[[int], Any], ranks: int, **options: Any) -> dict[int, Any]:
    return simulate(body, ranks, **options).raise_if_bad().results


def world() -> str:
    return dist.group.WORLD.group_name  # type: ignore[union-attr]


# -- allocation --------------------------------------------------------------------------------------------------------


def test_a_buffer_is_aligned_memory_of_the_cpu_whose_contents_are_the_same_in_every_run() -> None:
    """On all devices that can be named, with the default type and with others; never-written floats are NaN."""

    def body(rank: int) -> Any:
        tensors = [
            symm_mem.empty(3, 5),
            symm_mem.empty((3, 5), dtype=torch.bfloat16, device="cpu"),
            symm_mem.empty([3, 5], dtype=torch.float16, device="cuda"),
            symm_mem.empty(3, 5, dtype=torch.float8_e4m3fn, device=torch.device("cuda", 0)),
        ]
        assert all(t.isnan().all() for t in (t.float() for t in tensors))
        return [(tuple(t.shape), t.is_contiguous(), t.device.type, t.data_ptr() % 128, t.dtype) for t in tensors]

    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
    expected = [((3, 5), True, "cpu", 0, dtype) for dtype in dtypes]
    assert results(body, 2) == {0: expected, 1: expected}


def test_other_strides_and_empty_buffers_are_possible() -> None:
    def body(rank: int) -> Any:
        allocate = symm_mem._SymmetricMemory.empty_strided_p2p
        turned = allocate((2, 3), (1, 2), torch.int32, torch.device("cuda"))
        none = symm_mem.empty(0, device="cuda")
        return turned.stride(), none.numel(), symm_mem.rendezvous(none, init()).buffer_size

    def init() -> Any:
        dist.init_process_group("gloo")
        return dist.group.WORLD

    assert results(body, 2)[1] == ((1, 2), 0, 0)


def test_torch_knows_its_symmetric_tensors() -> None:
    """And rendezvous answers None for others, as torch does. (`is_symm_mem_tensor` came with torch 2.13.)"""

    def body(rank: int) -> Any:
        buffer, handle = start(4)
        asks = getattr(symm_mem, "is_symm_mem_tensor", lambda tensor: symm_mem.rendezvous(tensor, world()) is not None)
        return (
            [asks(t) for t in (buffer, buffer[1:], torch.ones(4))],
            symm_mem.rendezvous(torch.ones(4), world()),
            symm_mem.rendezvous(buffer[2:], world()) is handle,
            isinstance(handle, symm_mem._SymmetricMemory),
            isinstance(buffer, symm_mem._SymmetricMemory),
        )

    assert results(body, 2)[0] == ([True, True, False], None, True, True, False)


def test_persistent_allocations_give_the_same_memory_again() -> None:
    """Once the tensor before is gone, and in the same size."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")

        def allocate(count: int) -> torch.Tensor:
            device = torch.device("cuda", rank)
            return symm_mem._SymmetricMemory.empty_strided_p2p((count,), (1,), torch.float32, device, world(), 7)

        first = allocate(4)
        address, handle = first.data_ptr(), symm_mem._SymmetricMemory.rendezvous(first)
        active = caught(allocate, 4)
        del first
        larger = caught(allocate, 5)
        again = allocate(4)
        return again.data_ptr() == address, symm_mem._SymmetricMemory.rendezvous(again) is handle, active, larger

    where = "RuntimeError: SymmetricMemory::empty_strided_p2p_persistent: "
    assert results(body, 2)[0] == (
        True,
        True,
        f"{where}can not allocate with alloc_id == 7 because a previous allocation with the same alloc_id is still "
        "active.",
        f"{where}requested allocation size (20) is different from the size of a previous allocation with the same "
        "alloc_id 16",
    )


def test_what_is_not_modelled_is_refused() -> None:
    def body(rank: int) -> Any:
        kind = symm_mem._SymmetricMemory
        said = [
            caught(symm_mem.empty, 4, device="meta"),
            caught(symm_mem.set_backend, "NVSHMEM"),
            caught(symm_mem.get_mempool_allocator, "cuda"),
            caught(kind.rendezvous, symm_mem.empty(4)),
        ]
        os.environ["TORCH_SYMMMEM"] = "NCCL"
        said.append(caught(symm_mem.empty, 4))
        symm_mem.set_backend("CUDA")
        return said, symm_mem.get_backend("cuda"), symm_mem.get_backend("cpu")

    said, *backends = results(body, 1)[0]
    assert backends == ["CUDA", "CUDA"]
    assert said == [
        "RuntimeError: SymmetricMemory does not support device type meta",
        "RuntimeError: SymmetricMemory does not find allocation backend NVSHMEM (CUDA alone is modelled)",
        "NotImplementedError: memory pools of symmetric memory are not modelled: allocate with empty()",
        "RuntimeError: CUDASymmetricMemory::rendezvous: `group_name` is neither specified during allocation nor passed "
        "to rendezvous().",
        "RuntimeError: TORCH_SYMMMEM=NCCL: the simulator models the backend CUDA only",
    ]


def test_greenlets_are_refused_with_the_remedy() -> None:
    outcome = simulate(lambda rank: symm_mem.empty(4), 1, carrier="greenlet")
    assert "symmetric memory needs a thread for each rank: use carrier='thread'" in outcome.ranks[0].error


# -- rendezvous --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", WORLD_SIZES)
def test_each_rank_reads_and_writes_the_buffers_of_its_peers(ranks: int) -> None:
    """By tensors on their memory, and by the addresses that kernels get."""

    def body(rank: int) -> Any:
        buffer, handle = start(ranks, dtype=torch.int64)
        dist.barrier()
        for peer in range(ranks):
            handle.get_buffer(peer, (1,), torch.int64, rank).fill_(10 * rank + peer)
        handle.barrier()
        assert handle.buffer_ptrs[rank] == buffer.data_ptr()
        assert (handle.rank, handle.world_size, handle.buffer_size, handle.offset) == (rank, ranks, 8 * ranks, 0)
        pads = [handle.get_signal_pad(peer).data_ptr() for peer in range(ranks)]
        assert pads == handle.signal_pad_ptrs
        views = [handle.get_remote_tensor(peer, (ranks,), torch.int64).data_ptr() for peer in range(ranks)]
        assert views == handle.buffer_ptrs
        assert len({*views, *pads}) == 2 * ranks
        assert handle.device == buffer.device
        return buffer.tolist()

    assert results(body, ranks) == {rank: [10 * peer + rank for peer in range(ranks)] for rank in range(ranks)}


def test_tables_of_addresses_lie_in_memory() -> None:
    """Read as a kernel reads them, by address."""

    def body(rank: int) -> Any:
        import ctypes

        _, handle = start(4)

        def table(address: int) -> list[int]:
            return list((ctypes.c_int64 * 2).from_address(address))

        return (
            table(handle.buffer_ptrs_dev) == handle.buffer_ptrs,
            table(handle.signal_pad_ptrs_dev) == handle.signal_pad_ptrs,
        )

    assert results(body, 2) == {0: (True, True), 1: (True, True)}


def test_a_second_rendezvous_is_answered_without_a_meeting() -> None:
    """Only one rank asks again."""

    def body(rank: int) -> bool:
        buffer, handle = start(4)
        return rank == 1 or symm_mem.rendezvous(buffer, dist.group.WORLD) is handle

    assert results(body, 2) == {0: True, 1: True}


def test_groups_have_views_of_their_own() -> None:
    """Group ranks count within the group; each pair has its own buffers."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        buffer = symm_mem.empty(1, dtype=torch.int32)
        handle = symm_mem.rendezvous(buffer, pairs[rank % 2])
        buffer.fill_(rank)
        handle.barrier()
        return handle.rank, handle.world_size, [handle.get_buffer(r, (1,), torch.int32).item() for r in range(2)]

    assert results(body, 4) == {r: (r // 2, 2, [r % 2, r % 2 + 2]) for r in range(4)}


def test_bounds_are_checked_with_torchs_texts() -> None:
    def body(rank: int) -> Any:
        _, handle = start(4)
        return [
            caught(handle.get_buffer, 0, (5,), torch.float32),
            caught(handle.get_buffer, 0, (4,), torch.float32, 1),
            caught(handle.get_buffer, 0, 4, torch.float32),
            caught(handle.get_buffer, 2, (4,), torch.float32),
            caught(handle.get_signal_pad, -1),
            tuple(handle.get_signal_pad(0, (2, 2), torch.int64, 3).shape),
            handle.get_signal_pad(0, dtype=torch.uint8).shape[0],
            caught(handle.barrier, -1),
        ]

    where = "RuntimeError: SymmetricMemory::get_buffer: the requested size (20 bytes) exceeds the allocated size "
    assert results(body, 2)[0] == [
        f"{where}(16 bytes)",
        f"{where}(16 bytes)",
        "no error",
        "RuntimeError: rank must be in [0, 2) (got 2)",
        "RuntimeError: rank must be in [0, 2) (got -1)",
        (2, 2),
        9216,
        "RuntimeError: channel for barrier(), put_signal() and wait_signal() must be non-negative (got -1)",
    ]


def test_the_workspace_of_a_group_grows() -> None:
    """It is allocated anew when more is asked for, on all ranks; less is there already."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        first = symm_mem.get_symm_mem_workspace(world(), 64)
        assert symm_mem.get_symm_mem_workspace(world(), 32) is first
        return first.buffer_size, symm_mem.get_symm_mem_workspace(world(), 128).buffer_size

    assert results(body, 2) == {0: (64, 128), 1: (64, 128)}


@pytest.mark.filterwarnings("ignore:.*enable_symm_mem_for_group.*:FutureWarning")
def test_a_group_is_enabled_on_the_rank_that_enables_it() -> None:
    """What torch's module keeps in its globals belongs to the rank."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        if rank == 0:
            symm_mem.enable_symm_mem_for_group(world())
        dist.barrier()
        return symm_mem.is_symm_mem_enabled_for_group(world())

    assert results(body, 2) == {0: True, 1: False}
    assert not symm_mem.is_symm_mem_enabled_for_group("0")


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", WORLD_SIZES)
def test_barriers_hold_everybody_back(ranks: int) -> None:
    """Used again and again, on channels that do not disturb each other; the pads are clean afterwards."""

    def body(rank: int) -> Any:
        buffer, handle = start(1, dtype=torch.int32)
        seen = []
        for turn in range(3):
            buffer.fill_(turn)
            handle.barrier(channel=turn)
            seen.append([handle.get_buffer(peer, (1,), torch.int32).item() for peer in range(ranks)])
            handle.barrier(channel=5)
        assert not handle.get_signal_pad(rank).to(torch.int64).any()
        return seen

    assert results(body, ranks) == {rank: [[turn] * ranks for turn in range(3)] for rank in range(ranks)}


def test_a_signal_hands_data_on() -> None:
    """Around a ring: each rank waits for the one before it and tells the next."""

    def body(rank: int) -> int:
        buffer, handle = start(1, dtype=torch.int32)
        buffer.fill_(1)
        handle.barrier()
        if rank:
            handle.wait_signal(rank - 1, channel=3)
            buffer.add_(handle.get_buffer(rank - 1, (1,), torch.int32))
        if rank < 3:
            handle.put_signal(rank + 1, channel=3)
        return int(buffer.item())

    assert results(body, 4) == {0: 1, 1: 2, 2: 3, 3: 4}


def test_a_put_waits_until_the_signal_before_was_taken() -> None:
    """The slot holds one signal."""

    def body(rank: int) -> None:
        _, handle = start(1)
        for _ in range(3):
            if rank == 0:
                handle.put_signal(1, timeout_ms=1000)
            else:
                handle.wait_signal(0, timeout_ms=1000)

    assert results(body, 2) == {0: None, 1: None}


def test_a_signal_from_and_to_itself() -> None:
    def body(rank: int) -> None:
        _, handle = start(1)
        handle.put_signal(rank)
        handle.wait_signal(rank)

    assert results(body, 2) == {0: None, 1: None}


def test_signals_are_recorded_as_the_atomics_that_they_are() -> None:
    """Put: 0 to 1, release. Taken: 1 to 0, acquire. In slot channel * size + rank."""

    def body(rank: int) -> None:
        _, handle = start(1)
        if rank == 0:
            handle.put_signal(1, channel=2)
        else:
            handle.wait_signal(0, channel=2)

    outcome, log = run(body, 2)
    assert outcome.ok
    slots = [event for event in log.events if getattr(event, "kind", "") == "rmw"]
    assert [(log.actors[e.actor].rank, e.order, e.scope, e.compare, e.wrote, e.by_one_lane) for e in slots] == [
        (0, "release", "sys", 0, 1, True),
        (1, "acquire", "sys", 1, 0, True),
    ]
    assert accesses(log, "pad") == [(0, "rmw", ((1, 16, 20),)), (1, "rmw", ((1, 16, 20),))]


def test_peers_are_served_in_any_order() -> None:
    """A barrier goes on with whoever is there, as the threads of torch's kernel do: here rank 1 comes last and late."""

    def body(rank: int) -> None:
        _, handle = start(1)
        if rank == 1:
            handle.wait_signal(2, channel=1)
        if rank == 2:
            handle.put_signal(1, channel=1)
        handle.barrier()
        handle.barrier()

    assert results(body, 3) == dict.fromkeys(range(3))


def test_time_outs_strike_in_virtual_time() -> None:
    """torch's kernel traps then; the time-out belongs to the call, so it always strikes."""

    def body(rank: int) -> Any:
        _, handle = start(1)
        if rank == 1:
            return None
        return [
            caught(handle.wait_signal, 1, timeout_ms=50),
            caught(handle.barrier, channel=4, timeout_ms=50),
            caught(lambda: [handle.put_signal(1, 1, timeout_ms=50) for _ in range(2)]),
        ]

    outcome = simulate(body, 2)
    assert outcome.virtual_s == pytest.approx(0.15)
    where = "RuntimeError: CUDASymmetricMemory::"
    assert outcome.results[0] == [
        f"{where}wait_signal: rank 0 failed to receive signal from rank 1 on channel 0 after 50 milliseconds (the "
        "kernel traps)",
        f"{where}barrier: rank 0 failed to receive signal from rank 1 on channel 4 after 50 milliseconds (the kernel "
        "traps)",
        f"{where}put_signal: rank 0 failed to send signal to rank 1 on channel 1 after 50 milliseconds (the kernel "
        "traps)",
    ]


# -- words on the stream -----------------------------------------------------------------------------------------------


def test_words_are_written() -> None:
    """On a signal pad or on any other flat uint32 tensor; a written value is released to the whole system."""

    def body(rank: int) -> Any:
        _, handle = start(1)
        kind, pad, plain = (
            symm_mem._SymmetricMemory,
            handle.get_signal_pad(1 - rank),
            torch.zeros(4, dtype=torch.uint32),
        )
        kind.memset32(plain, offset=1, val=7, count=2)
        kind.stream_write_value32(plain, 3, 9)
        kind.memset32(pad, 100 + rank, 5)
        kind.stream_write_value32(pad, 104 + rank, 6)
        dist.barrier()
        return plain.tolist(), handle.get_signal_pad(rank)[100:106].tolist()

    outcome, log = run(body, 2)
    assert outcome.results == {0: ([0, 7, 7, 9], [0, 5, 0, 0, 0, 6]), 1: ([0, 7, 7, 9], [5, 0, 0, 0, 6, 0])}
    writes = [e for e in log.events if isinstance(e, Access) and e.kind == "write" and log.actors[e.actor].rank == 0]
    assert [(e.order, e.scope, e.spans[0][1:]) for e in writes] == [
        ("weak", "", (400, 404)),
        ("release", "sys", (416, 420)),
    ]


def test_words_are_checked_with_torchs_texts() -> None:
    def body(rank: int) -> Any:
        kind, words = symm_mem._SymmetricMemory, torch.zeros(4, dtype=torch.uint32)
        return [
            caught(kind.memset32, torch.zeros(4), 0, 1),
            caught(kind.memset32, words, -1, 1),
            caught(kind.memset32, words, 0, 1, 0),
            caught(kind.memset32, words, 2, 1, 3),
            caught(kind.stream_write_value32, words, 4, 1),
            caught(kind.stream_write_value32, words, 0, 1 << 32),
        ]

    assert results(body, 1)[0] == [
        "RuntimeError: symm_mem::memset32_: input must be a flat, contiguous uint32 tensor.",
        "RuntimeError: symm_mem::memset32_: offset must be greater than or equal to 0 (got -1)",
        "RuntimeError: symm_mem::memset32_: count must be a positive integer (got 0)",
        "RuntimeError: symm_mem::memset32_: offset + count (5) exceeded the numel of the input (4)",
        "RuntimeError: symm_mem::stream_write_value32_: offset (4) exceeded the numel of the input (4)",
        "RuntimeError: symm_mem::stream_write_value32_: val must be in the range of [0, 4294967295] (uint32_t).",
    ]


# -- multicast ---------------------------------------------------------------------------------------------------------


def test_a_group_on_one_node_has_a_multicast_address() -> None:
    """It belongs to no tensor, and stands for the buffers of all ranks, in group-rank order."""

    def body(rank: int) -> Any:
        _, handle = start(4)
        memory = symm_mem._SymmetricMemory._choose()._sim.memory
        places = [(block.base, offset) for block, offset in memory.places(handle.multicast_ptr + 4, 4)]
        assert places == [(base, 4) for base in handle.buffer_ptrs]
        assert handle.has_multicast_support(DeviceType.CUDA, rank)
        return handle.multicast_ptr

    addresses = results(body, 2)
    assert addresses[0] == addresses[1] != 0


@pytest.mark.parametrize("way", ["option", "environment", "overlapping devices"])
def test_multicast_can_be_off(way: str) -> None:
    """Then the address is 0, as torch gives it, and a program that asks is fine."""

    def body(rank: int) -> Any:
        if way == "environment":
            os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        if way == "overlapping devices":
            os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        _, handle = start(4, device="cuda:0" if way == "overlapping devices" else "cuda")
        return handle.multicast_ptr, handle.has_multicast_support(DeviceType.CUDA, 0)

    has = way == "overlapping devices"
    assert results(body, 2, multicast=way != "option") == {0: (0, has), 1: (0, has)}


def test_groups_within_their_nodes_have_multicast_on_a_cluster_of_two() -> None:
    def body(rank: int) -> bool:
        dist.init_process_group("gloo")
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        return bool(symm_mem.rendezvous(symm_mem.empty(4), groups[rank // 2]).multicast_ptr)

    assert results(body, 4, nodes=2) == dict.fromkeys(range(4), True)


# -- beside other things -----------------------------------------------------------------------------------------------


def test_threads_of_a_rank_share_its_memory() -> None:
    def body(rank: int) -> Any:
        buffer, handle = start(2)

        def work() -> None:
            handle.get_buffer(1 - rank, (2,), torch.float32).fill_(rank)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        handle.barrier()
        return buffer.tolist()

    assert results(body, 2) == {0: [1.0, 1.0], 1: [0.0, 0.0]}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_buffers_are_good_for_collectives(backend: str) -> None:
    """What the device has still to do comes before a signal, as on one stream."""

    def body(rank: int) -> Any:
        buffer, handle = start(2, backend=backend)
        buffer.fill_(rank + 1)
        dist.all_reduce(buffer)
        handle.barrier()
        return handle.get_buffer(1 - rank, (2,), torch.float32).tolist()

    assert results(body, 2) == {0: [3.0, 3.0], 1: [3.0, 3.0]}


def everything(rank: int) -> Any:
    buffer, handle = start(8)
    for turn in range(3):
        buffer.fill_(rank + turn)
        handle.barrier(turn)
        total = sum(handle.get_buffer(peer, (8,), torch.float32) for peer in range(handle.world_size))
        handle.barrier(turn)
    dist.all_reduce(buffer)
    return total.tolist(), buffer.tolist()  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_log_and_trace() -> None:
    """Addresses differ from run to run; nothing that is recorded does."""
    first, second = (run(everything, 4, seed=3) for _ in range(2))
    assert first[0].trace.to_text() == second[0].trace.to_text()
    assert first[0].results == second[0].results
    assert (first[1].regions, first[1].actors, first[1].events) == (
        second[1].regions,
        second[1].actors,
        second[1].events,
    )
    assert len(first[1].events) > 100


# -- nothing stays behind ----------------------------------------------------------------------------------------------


def _state() -> dict[str, Any]:
    return {
        "module": {name: id(value) for name, value in vars(symm_mem).items()},
        "class": vars(_c)["_SymmetricMemory"],
        "size": symm_mem.get_signal_pad_size(),
        "stores": dict(symm_mem._group_name_to_store),
        "tolist": "tolist" in vars(torch.Tensor),
        "modes": torch._C._len_torch_dispatch_stack(),
    }


def test_after_a_run_torch_is_what_it_was() -> None:
    """Also its module of symmetric memory, whose functions say again that this machine has none."""
    before = _state()

    def body(rank: int) -> None:
        symm_mem.set_signal_pad_size(1 << 16)
        everything(rank)

    simulate(body, 2).raise_if_bad()
    assert _state() == before
    assert caught(symm_mem.empty, 4, device="cpu") == ("RuntimeError: SymmetricMemory does not support device type cpu")
    assert symm_mem.get_backend("cpu") is None
    assert not getattr(symm_mem, "is_symm_mem_tensor", lambda tensor: False)(torch.ones(1))


def test_outside_the_ranks_the_class_is_torchs_own_while_a_simulation_runs() -> None:
    """The watchdog's thread asks, which belongs to no rank."""
    said: list[Any] = []

    def ask(scheduler: object) -> None:
        said.append(
            (symm_mem.get_signal_pad_size(), caught(symm_mem.empty, 4, device="cpu"), symm_mem.get_backend("cpu"))
        )

    def body(rank: int) -> int:
        symm_mem.set_signal_pad_size(64)
        for _ in range(10_000):
            if said:
                break
            sum(range(10_000))
        return symm_mem.get_signal_pad_size()

    assert results(body, 1, on_tick=ask) == {0: 64}
    assert said[0] == (9216, "RuntimeError: SymmetricMemory does not support device type cpu", None)


def test_the_memory_of_a_run_is_gone_with_it() -> None:
    """Buffers of 64 MiB, run after run: the process does not grow."""

    def body(rank: int) -> None:
        start(16 << 20)

    simulate(body, 2).raise_if_bad()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        simulate(body, 2).raise_if_bad()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_a_run_without_symmetric_memory_records_nothing() -> None:
    """No mode on the ranks' threads, no event, and torch's `tolist` is its own."""

    def body(rank: int) -> Any:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        return torch._C._len_torch_dispatch_stack(), "tolist" in vars(torch.Tensor)

    outcome, log = run(body, 2)
    assert outcome.results == {0: (0, False), 1: (0, False)}
    assert (log.regions, log.actors, log.events, log.meetings) == ([], [], [], [])


def test_the_command_takes_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hangcheck run --no-multicast`."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for flags, address in ((["--no-multicast"], 0), ([], 1)):
        assert cli.main(["run", *flags, "--nproc-per-node", "1", str(script)]) == 0
        assert f"multicast {address}" in capsys.readouterr().out


SCRIPT = """
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

dist.init_process_group("gloo")
handle = symm_mem.rendezvous(symm_mem.empty(4, device="cuda"), dist.group.WORLD)
print("multicast", int(handle.multicast_ptr != 0))
"""
