"""Triton kernels of simulated ranks: real kernels, Triton's interpreter, memory of torch's symmetric memory."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from simulator import Outcome, Verdict, explore, simulate
from simulator.memory_records import Access, CtaBarrier, Fence, MemoryLog, Observe, Publish
from simulator.torch_world.simulation import Simulation
from simulator.triton_world.errors import KernelError

triton = pytest.importorskip("triton")

MODULES = ("tests.unit.triton_device_functions", "tests.unit.triton_kernels")
HERE = str(Path(__file__).with_name("triton_kernels.py"))
BLOCK = 64


@pytest.fixture(params=["compiled", "interpreted"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The kernels, decorated without and with TRITON_INTERPRET=1."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if request.param == "interpreted" else "0")
    yield _fresh_modules()
    _forget_modules()


@pytest.fixture(autouse=True)
def _one_way_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton 3.9 warns if this is not said."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def plain() -> Iterator[Any]:
    """The kernels as `@triton.jit` makes them by default."""
    yield _fresh_modules()
    _forget_modules()


def _fresh_modules() -> ModuleType:
    _forget_modules()
    return importlib.import_module(MODULES[1])


def _forget_modules() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
        package, _, own = name.rpartition(".")
        vars(sys.modules.get(package, sys)).pop(own, None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[MemoryLog]:
    """The memory log of the run that ended last."""
    kept: list[MemoryLog] = []
    begin = Simulation.begin

    def keep(self: Simulation, *args: Any) -> None:
        begin(self, *args)
        kept[:] = [self.records.memory]

    monkeypatch.setattr(Simulation, "begin", keep)
    return kept


class Memory:
    """Symmetric memory of the default group, on one rank."""

    def __init__(self, rank: int, world: int, nbytes: int = 1 << 14) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=rank, world_size=world, init_method="tcp://127.0.0.1:29500")
        self.buffer = symm_mem.empty(nbytes, dtype=torch.uint8, device="cpu")
        self.handle = symm_mem.rendezvous(self.buffer, dist.group.WORLD)
        self.buffers = int(self.handle.buffer_ptrs_dev)
        self.pads = int(self.handle.signal_pad_ptrs_dev)
        self.pad = self.handle.get_signal_pad(rank, (64,), torch.int32)


def message_of(outcome: Outcome, rank: int = 0) -> str:
    """What the rank was told."""
    assert outcome.ranks[rank].error_type == "KernelError", outcome.ranks[rank].error
    return outcome.ranks[rank].error


def line_of(text: str) -> str:
    """`file:line` of the only line of the kernels that has `text`."""
    lines = [at for at, line in enumerate(Path(HERE).read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1, (text, lines)
    return f"tests/unit/triton_kernels.py:{lines[0]}"


# -- kernels run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_ranks_launch_a_kernel_on_their_own_data(kernels: Any, carrier: str) -> None:
    """A grid of several programs, a mask, a constexpr; each rank has its own result."""

    def body(rank: int) -> Any:
        x, y, out = torch.arange(1000.0) + rank, torch.full((1000,), 0.5), torch.zeros(1000)
        returned = kernels.add[(triton.cdiv(1000, 128),)](x, y, out, 1000, BLOCK=128, num_warps=8, num_stages=3)
        return returned, torch.equal(out, x + y)

    assert simulate(body, 4, carrier=carrier).raise_if_bad().results == dict.fromkeys(range(4), (None, True))


def test_device_functions_of_other_modules_see_their_own_globals(kernels: Any) -> None:
    """Nested calls, defaults, Triton's own reductions."""

    def body(rank: int) -> list[float]:
        x, out = torch.arange(8.0) + rank, torch.zeros(8)
        kernels.nested[(1,)](x, out, BLOCK=8)
        return out.tolist()

    outcome = simulate(body, 2).raise_if_bad()
    for rank, out in outcome.results.items():
        x = [rank + at for at in range(8)]
        assert out == [2 * x[at] + (1 if 0 < at < 3 else 5) + -(-sum(x) // 2) for at in range(8)]


@pytest.mark.parametrize("how", ["cas", "threads", "elements"])
def test_ranks_exchange_data_through_pointers_and_signals(kernels: Any, how: str) -> None:
    """Peer stores, a barrier over the signal pads in three spellings; pads are clean afterwards, and used again."""
    _exchange(kernels, 2, how)


@pytest.mark.parametrize(("world", "how"), [(4, "cas"), (8, "threads"), (8, "elements")])
def test_more_ranks_exchange_data(plain: Any, world: int, how: str) -> None:
    """Up to 8."""
    _exchange(plain, world, how)


def _exchange(kernels: Any, world: int, how: str) -> None:
    def body(rank: int) -> Any:
        memory = Memory(rank, world)
        good = []
        for turn in range(3):
            x, out = torch.arange(float(BLOCK)) + 1000 * rank + turn, torch.zeros(world * BLOCK)
            kernels.gather[(1,)](memory.buffers, memory.pads, x, out, rank, WORLD=world, BLOCK=BLOCK, HOW=how)
            want = torch.cat([torch.arange(float(BLOCK)) + 1000 * peer + turn for peer in range(world)])
            good.append(torch.equal(out, want))
            dist.barrier()
        return good, int(memory.pad.sum())

    assert simulate(body, world).raise_if_bad().results == dict.fromkeys(range(world), ([True] * 3, 0))


def test_a_multicast_store_reaches_all_members(kernels: Any, log: list[MemoryLog]) -> None:
    """Data, and the record: one access with the bytes of all members."""
    world = 4

    def body(rank: int) -> Any:
        memory = Memory(rank, world)
        x = torch.arange(BLOCK, dtype=torch.int32) + 100 * rank
        kernels.multicast_store[(1,)](memory.handle.multicast_ptr, x, rank * BLOCK * 4, BLOCK=BLOCK)
        dist.barrier()
        return memory.buffer[: world * BLOCK * 4].view(torch.int32).tolist()

    want = [100 * rank + at for rank in range(world) for at in range(BLOCK)]
    assert simulate(body, world).raise_if_bad().results == dict.fromkeys(range(world), want)
    stores = [each for each in accesses(log[0]) if each.order == "relaxed" and each.kind == "write"]
    buffers = [each.number for each in log[0].regions if each.kind == "buffer"]
    ranks = {actor.number: actor.rank for actor in log[0].actors}
    assert [each.spans for each in sorted(stores, key=lambda each: ranks[each.actor])] == [
        tuple((buffer, rank * 256, rank * 256 + 256) for buffer in buffers) for rank in range(world)
    ]


def test_a_multicast_load_sums_and_a_reduction_adds_to_all(kernels: Any) -> None:
    """multimem.ld_reduce and multimem.red."""

    def body(rank: int) -> Any:
        memory = Memory(rank, 2)
        mine = memory.buffer[: BLOCK * 4].view(torch.float32)
        mine.copy_(torch.arange(float(BLOCK)) * (rank + 1))
        dist.barrier()
        out = torch.zeros(BLOCK)
        if rank == 0:
            kernels.multicast_sum[(1,)](memory.handle.multicast_ptr, out, BLOCK=BLOCK)
        dist.barrier()
        return out.tolist(), mine.tolist()

    results = simulate(body, 2).raise_if_bad().results
    assert results[0][0] == [3.0 * at for at in range(BLOCK)]
    assert [results[rank][1] for rank in (0, 1)] == [[at * (rank + 1.0) + 1 for at in range(BLOCK)] for rank in (0, 1)]


def test_halves_are_summed_in_full_precision_over_all_members(plain: Any) -> None:
    """bf16x2 in vectors of four, as all-reduce kernels have it: rounded once, bit for bit."""
    world, n = 4, 6

    def body(rank: int) -> Any:
        memory = Memory(rank, world)
        mine = memory.buffer[: n * 16].view(torch.bfloat16)
        mine.copy_(torch.randn(n * 8, generator=torch.Generator().manual_seed(rank)))
        values = mine.clone()
        out = torch.zeros(n * 8, dtype=torch.bfloat16)
        dist.barrier()
        if rank == 0:
            plain.multicast_halves[(1,)](memory.handle.multicast_ptr, out.view(torch.int32), n, BLOCK=8)
        dist.barrier()
        return values.float(), out.view(torch.int16).tolist(), mine.view(torch.int16).tolist()

    results = simulate(body, world).raise_if_bad().results
    total = results[0][0] + results[1][0] + results[2][0] + results[3][0]
    want = total.to(torch.bfloat16).view(torch.int16).tolist()
    assert results[0][1] == want
    assert [results[rank][2] for rank in range(world)] == [want] * world


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_programs_of_one_grid_wait_for_each_other(kernels: Any, carrier: str) -> None:
    """A barrier over the grid, in memory that is private to each rank."""

    def body(rank: int) -> Any:
        counter, data, out = (torch.zeros(size, dtype=torch.int32) for size in (1, 12, 12))
        kernels.grid_barrier[(12,)](counter, data, out)
        return out.tolist()

    assert simulate(body, 2, carrier=carrier).raise_if_bad().results == dict.fromkeys(range(2), [78] * 12)


def test_a_lock_by_test_and_set_lets_one_program_in(plain: Any) -> None:
    """An exchange that changes nothing is a look: those who wait do not wake each other for ever."""

    def body(rank: int) -> int:
        lock, data = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        plain.under_lock[(9,)](lock, data, 5)
        return int(data)

    assert simulate(body, 1).raise_if_bad().results == {0: 45}


def test_program_numbers_run_along_three_axes(kernels: Any) -> None:
    """The grid may be a function of the arguments, and have any number of axes up to three."""

    def body(rank: int) -> Any:
        out = torch.zeros(24, dtype=torch.int32)
        kernels.grid_of_three[lambda arguments: (2, 3, 4)](out)
        return out.tolist()

    assert simulate(body, 1).raise_if_bad().results == {
        0: [100 * x + 10 * y + z for x in range(2) for y in range(3) for z in range(4)]
    }


def test_integers_have_the_types_of_their_annotations(kernels: Any) -> None:
    """A small number is 64 bits wide where the kernel says so."""

    def body(rank: int) -> Any:
        out = torch.zeros(1, dtype=torch.int64)
        kernels.typed[(1,)](1, 2, out)
        return int(out)

    assert simulate(body, 1).raise_if_bad().results == {0: 3}


def test_a_tuned_kernel_runs_with_its_first_configuration(kernels: Any) -> None:
    """Nothing is timed; heuristics are asked."""

    def body(rank: int) -> Any:
        out = torch.zeros(2, dtype=torch.int32)
        kernels.tuned[(1,)](out, 4)
        return out.tolist()

    assert simulate(body, 2).raise_if_bad().results == {0: [32, 1], 1: [32, 1]}


def test_names_are_looked_up_where_the_kernel_was_written(kernels: Any) -> None:
    """Operations imported by name, later globals, variables of a function around; a new value is seen."""

    def body(rank: int) -> Any:
        x, out, one = torch.arange(4.0), torch.zeros(4), torch.zeros(2, dtype=torch.int32)
        kernels.by_name[(1,)](x, out, BLOCK=4)
        kernels.make_closure(17)[(1,)](one)
        kernels.make_closure(18)[(1,)](one[1:])
        return out.tolist(), one.tolist()

    assert simulate(body, 1).raise_if_bad().results == {0: ([7.0, 12.0, 17.0, 22.0], [17, 18])}


def test_descriptors_reach_memory_as_pointers_do(kernels: Any) -> None:
    """One made on the host, one made in the kernel."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    def body(rank: int) -> Any:
        x, out = torch.arange(24.0).view(3, 8), torch.zeros(3, 8)
        kernels.described[(1,)](TensorDescriptor.from_tensor(x, [4, 8]), out, M=3, N=8)
        return torch.equal(out, x + 1)

    assert simulate(body, 1).raise_if_bad().results == {0: True}


def test_floats_that_overflow_are_no_warnings(plain: Any) -> None:
    """Neither in the interpreter's arithmetic nor elsewhere."""

    def body(rank: int) -> Any:
        out = torch.zeros(4)
        plain.every_float[(1,)](torch.ones(4), out, BLOCK=4)
        return out.tolist()

    assert simulate(body, 1).raise_if_bad().results == {0: [float("inf")] * 4}


def test_warming_up_runs_nothing(kernels: Any) -> None:
    """`kernel.warmup` compiles on a device."""

    def body(rank: int) -> Any:
        out = torch.zeros(1, dtype=torch.int64)
        return kernels.typed.warmup(1, 2, out, grid=(1,)), int(out)

    assert simulate(body, 1).raise_if_bad().results == {0: (None, 0)}


needs_new_atomics = pytest.mark.skipif(not hasattr(triton.language, "atomic_poll"), reason="needs Triton 3.9")


@needs_new_atomics
def test_atomic_loads_stores_and_polls_of_newer_triton(plain: Any, log: list[MemoryLog]) -> None:
    """A poll waits for a peer, or until its time is over."""

    def body(rank: int) -> Any:
        memory = Memory(rank, 2)
        words = memory.buffer[:64].zero_().view(torch.int32)
        dist.barrier()
        out = torch.zeros(2, dtype=torch.int32)
        if rank == 0:
            plain.poll[(1,)](words, out, LIMIT=1_000_000)
            plain.poll[(1,)](words, out[1:], LIMIT=None)
        else:
            time.sleep(0.1)
            address = memory.handle.get_buffer(0, (16,), torch.int32)
            plain.atomic_words[(1,)](address, out)
        return out.tolist()

    outcome = simulate(body, 2).raise_if_bad()
    assert outcome.results == {0: [0, 1], 1: [3, 0]}
    orders = {(each.kind, each.order) for each in accesses(log[0])}
    assert {("read", "acquire"), ("write", "release")} <= orders


# -- kernels wait ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cas", "threads", "elements"])
def test_a_rank_that_does_not_launch_is_a_deadlock_at_the_kernels_line(plain: Any, how: str) -> None:
    """The report has the line of the kernel, the word, and its value."""

    def body(rank: int) -> None:
        memory = Memory(rank, 4)
        if rank != 1:
            x, out = torch.zeros(BLOCK), torch.zeros(4 * BLOCK)
            plain.gather[(1,)](memory.buffers, memory.pads, x, out, rank, WORLD=4, BLOCK=BLOCK, HOW=how)

    outcome = simulate(body, 4)
    assert outcome.verdict is Verdict.DEADLOCK, outcome.findings
    text = " ".join(outcome.report().split())
    assert "kernel gather cannot end on ranks 0, 2, 3" in text
    assert "kernel gather, program 0: word at byte 4 of the signal pad of rank 0 (is 0)" in text
    assert "tests/unit/triton_device_functions.py" in text
    assert outcome.virtual_s < 0.01


def test_a_wait_by_volatile_loads_ends_when_a_peer_stores(kernels: Any) -> None:
    """The waiting kernel lets the others run."""

    def body(rank: int) -> int:
        memory = Memory(rank, 2)
        memory.buffer.zero_()
        dist.barrier()
        out = torch.zeros(1, dtype=torch.int32)
        if rank == 0:
            kernels.wait_volatile[(1,)](memory.buffer.view(torch.int32), out)
        else:
            kernels.plain_store[(1,)](memory.handle.buffer_ptrs[0], 41)
        return int(out)

    assert simulate(body, 2).results == {0: 41, 1: 0}


def test_a_wait_by_plain_loads_lets_others_run(plain: Any) -> None:
    """It is no deadlock, and nobody else is kept from writing."""

    def body(rank: int) -> int:
        memory = Memory(rank, 2)
        memory.buffer.zero_()
        dist.barrier()
        out = torch.zeros(1, dtype=torch.int32)
        if rank == 0:
            plain.wait_plainly[(1,)](memory.buffer.view(torch.int32), out)
        else:
            time.sleep(0.01)
            plain.plain_store[(1,)](memory.handle.buffer_ptrs[0], 1)
        return int(out)

    assert simulate(body, 2).results == {0: 1, 1: 0}


def test_kernels_run_under_schedules(plain: Any) -> None:
    """A rank may fall behind before it touches a word of a signal pad; a right kernel is right in every order."""

    def body(rank: int) -> Any:
        memory = Memory(rank, 2)
        x, out = torch.full((BLOCK,), float(rank)), torch.zeros(2 * BLOCK)
        plain.gather[(1,)](memory.buffers, memory.pads, x, out, rank, WORLD=2, BLOCK=BLOCK, HOW="cas")
        return out.tolist()

    exploration = explore(body, 2, schedules=8, workers=1, policy="random", seed=3)
    assert exploration.verdict is Verdict.OK, exploration.report()


def test_a_thread_of_the_host_may_let_a_kernel_go_on(plain: Any) -> None:
    """It writes to memory that nobody watches; so such a kernel looks again and again."""

    def body(rank: int) -> int:
        flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)

        def write() -> None:
            time.sleep(5)
            flag.fill_(3)

        writer = threading.Thread(target=write)
        writer.start()
        plain.wait_volatile[(1,)](flag, out)
        writer.join()
        return int(out)

    outcome = simulate(body, 1).raise_if_bad()
    assert outcome.results == {0: 3}
    assert 5 <= outcome.virtual_s < 5.2


def test_a_private_word_that_nobody_writes_is_a_deadlock(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier of more programs than run at once; the report says how many have not started."""
    monkeypatch.setattr("simulator.triton_world.launch.MULTIPROCESSORS", 2)

    def body(rank: int) -> None:
        counter, data, out = (torch.zeros(size, dtype=torch.int32) for size in (1, 6, 6))
        plain.grid_barrier[(6,)](counter, data, out, num_warps=32)

    outcome = simulate(body, 1)
    assert outcome.verdict is Verdict.DEADLOCK
    assert "2 programs have not started, as 4 at most run at once" in " ".join(outcome.report().split())


def test_a_loop_that_gives_up_is_no_deadlock(plain: Any) -> None:
    """A few looks end by themselves."""

    def body(rank: int) -> int:
        flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        plain.look_at_most[(1,)](flag, out, 10)
        return int(out)

    assert simulate(body, 1).raise_if_bad().results == {0: 10}


def test_a_flag_that_is_set_may_be_looked_at_again_and_again(plain: Any) -> None:
    """A consumer that finds everything there already is not taken to wait."""

    def body(rank: int) -> int:
        flag, data = torch.full((1,), 100, dtype=torch.int32), torch.arange(100, dtype=torch.int32)
        out = torch.zeros(1, dtype=torch.int32)
        plain.consume[(1,)](flag, data, out, 100)
        return int(out)

    assert simulate(body, 1).raise_if_bad().results == {0: 4950}


def test_a_loop_that_reads_the_clock_ends_in_virtual_time(plain: Any) -> None:
    """It gives up after a microsecond of virtual time, or finds the flag."""

    def body(rank: int) -> list[int]:
        out = torch.zeros(2, dtype=torch.int32)
        plain.until_the_clock[(1,)](torch.zeros(1, dtype=torch.int32), out)
        plain.until_the_clock[(1,)](torch.ones(1, dtype=torch.int32), out[1:])
        return out.tolist()

    assert simulate(body, 1).raise_if_bad().results == {0: [2, 1]}


# -- kernels go wrong ------------------------------------------------------------------------------------------------


def test_an_access_beyond_the_end_is_told_at_the_launch(kernels: Any) -> None:
    """Kernel, program, line, address and the nearest memory; the process lives."""

    def body(rank: int) -> None:
        x, out = torch.zeros(256), torch.zeros(100)
        kernels.add[(2,)](x, x, out, 256, BLOCK=128)

    outcome = simulate(body, 1)
    message = message_of(outcome)
    assert message.startswith(f"KernelError: kernel add, program 0, {line_of('tl.store(out + at, tl.load(x + at')}: ")
    assert "illegal memory access: 4 bytes at 0x" in message
    assert outcome.ranks[0].stack[0].file == __file__


def test_an_address_of_nobody_is_told(plain: Any) -> None:
    """Null, and an address between buffers."""

    def body(rank: int) -> Any:
        keep, texts = torch.zeros(16), []
        for address in (64, keep.data_ptr() + 2):
            with pytest.raises(KernelError) as caught:
                plain.plain_store[(1,)](address, 1)
            texts.append(str(caught.value))
        plain.plain_store[(1,)](keep.data_ptr() + 4, 1)
        return keep.view(torch.int32)[1].item(), texts

    stored, texts = simulate(body, 1).raise_if_bad().results[0]
    assert stored == 1
    assert "illegal memory access: 4 bytes at 0x40, " in texts[0]
    assert "misaligned access: 4 bytes at 0x" in texts[1]


def test_memory_that_was_not_mapped_is_told(plain: Any) -> None:
    """An address of symmetric memory whose rendezvous this rank did not take part in."""
    addresses: dict[int, int] = {}

    def body(rank: int) -> None:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29500")
        buffer = symm_mem.empty(64, dtype=torch.uint8, device="cpu")
        addresses[rank] = buffer.data_ptr()
        dist.barrier()
        if rank == 0:
            plain.plain_store[(1,)](addresses[1], 1)

    assert "the buffer of rank 1 is not mapped on rank 0" in message_of(simulate(body, 2))


def test_ordinary_and_multicast_addresses_are_not_mixed(plain: Any) -> None:
    """Both ways are undefined by the PTX ISA."""

    def body(rank: int) -> list[str]:
        memory = Memory(rank, 2)
        texts = []
        for kernel, address in (
            (plain.plain_store, memory.handle.multicast_ptr),
            (plain.multimem_store, memory.handle.buffer_ptrs[rank]),
        ):
            with pytest.raises(KernelError) as caught:
                kernel[(1,)](address, 1) if kernel is plain.plain_store else kernel[(1,)](address)
            texts.append(str(caught.value))
        return texts

    texts = simulate(body, 2).raise_if_bad().results[1]
    assert "an ordinary access to a multicast address is undefined: use multimem instructions" in texts[0]
    assert "byte 0 of the buffer of rank 1, which is no multicast address" in texts[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("elect.sync _|p, -1;", "the instruction 'elect' is not modelled"),
        ("tanh.approx.f32 $0, $1;", "the instruction 'tanh' is not modelled"),
        ("ld.shared.u32 $0, [$1];", ".shared is not modelled"),
        ("mov.u32 $0, %envreg1;", "%envreg1 is not modelled"),
        ("mov.u32 $0, nowhere;", "'nowhere' is not declared"),
        ("bra nowhere;", "'nowhere' is neither a register nor a label"),
        ("st.relaxed.global.u32 [$1], 1;", ".relaxed needs a scope"),
        ("trap;", "trap, in line 1 of the assembly"),
        ("mov.u32 $0, 1", "no ';' after"),
        ("{ mov.u32 $0, 1;", "a '{' is not closed"),
    ],
)
def test_assembly_that_cannot_run_is_told_with_the_kernels_line(plain: Any, text: str, told: str) -> None:
    """What is unknown, and what an assembler would refuse."""

    def body(rank: int) -> None:
        plain.asm[(1,)](torch.zeros(1, dtype=torch.int32), TEXT=text.replace("_|p", "_"), CONSTRAINTS="=r,l")

    message = message_of(simulate(body, 1))
    assert told in message
    assert message.startswith(f"KernelError: kernel asm, program 0, {line_of('tl.inline_asm_elementwise(TEXT')}: ")


def test_an_error_ends_the_other_programs_too(plain: Any) -> None:
    """Programs that wait for the one that failed do not keep the rank from hearing of it."""

    def body(rank: int) -> None:
        counter, data, out = (torch.zeros(size, dtype=torch.int32) for size in (1, 2, 6))
        plain.grid_barrier[(6,)](counter, data, out)

    message = message_of(simulate(body, 1))
    assert message.startswith("KernelError: kernel grid_barrier, program 2, ")


def test_device_asserts_fail_if_they_are_asked_for(kernels: Any) -> None:
    """As with Triton: only with `debug=True`."""

    def body(rank: int) -> int:
        x = torch.zeros(2, dtype=torch.int32)
        kernels.asserting[(2,)](x, 7)
        kernels.asserting[(2,)](x, 7, debug=True)
        return int(x.sum())

    outcome = simulate(body, 1)
    assert "AssertionError: n is too large" in message_of(outcome)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_ctas": 2}, "clusters of programs is not modelled"),
        ({"launch_pdl": True}, "launch_pdl"),
        ({"launch_cooperative_grid": True, "grid": 5000}, "of which 2112 programs at most run at once"),
        ({"nonsense": 1}, "Keyword argument nonsense was specified but unrecognised"),
        ({"num_warps": 3}, "give a power of two"),
    ],
)
def test_options_that_are_not_modelled_are_refused(plain: Any, options: dict[str, Any], told: str) -> None:
    """Harmless ones are accepted."""
    grid = options.pop("grid", 1)

    def body(rank: int) -> None:
        out = torch.zeros(1, dtype=torch.int64)
        plain.typed[(1,)](1, 2, out, num_stages=4, maxnreg=64)
        plain.typed[(grid,)](1, 2, out, **options)

    assert told in simulate(body, 1).ranks[0].error


ATOMICS: list[tuple[str, str, int, int]] = [
    ("add.u32", "7", 5, 12),
    ("add.s32", "-7", 5, 2**32 - 2),
    ("min.s32", "-7", 5, 2**32 - 7),
    ("min.u32", "3", 5, 3),
    ("max.s32", "-7", 5, 5),
    ("max.u32", "9", 5, 9),
    ("and.b32", "6", 5, 4),
    ("or.b32", "6", 5, 7),
    ("xor.b32", "6", 5, 3),
    ("exch.b32", "6", 5, 6),
    ("inc.u32", "6", 5, 6),
    ("inc.u32", "5", 5, 0),
    ("dec.u32", "9", 5, 4),
    ("dec.u32", "9", 0, 9),
    ("cas.b32", "5, 8", 5, 8),
    ("cas.b32", "4, 8", 5, 5),
    ("add.f32", "0f3F800000", 0x40000000, 0x40400000),
]
BY_THREAD_ZERO = """
{
    .reg .pred others; .reg .u32 t, a, b, c, d, e, f, g, h; .reg .s32 s; .reg .u64 w, x; .reg .u16 n;
    mov.u32 t, %%tid.x;
    setp.ne.u32 others, t, 0;
    @others bra over;
    %s
over:
    mov.u32 $0, 0;
}
"""


def _run_asm(plain: Any, text: str, words: torch.Tensor) -> list[int]:
    """Memory after thread 0 has run a text, as unsigned words."""

    def body(rank: int) -> Any:
        memory = words.clone()
        plain.asm[(1,)](memory, TEXT=BY_THREAD_ZERO % text, CONSTRAINTS="=r,l")
        return [each % 2**32 for each in memory.tolist()]

    return simulate(body, 1).raise_if_bad().results[0]


@pytest.mark.parametrize(("operation", "operands", "before", "after"), ATOMICS)
def test_atomic_instructions_change_memory_and_return_what_was_there(
    plain: Any, operation: str, operands: str, before: int, after: int
) -> None:
    """atom, and red where there is one."""
    words = torch.tensor([before, before, 0, 0], dtype=torch.int32)
    text = f"atom.global.acq_rel.sys.{operation} a, [$1], {operands}; st.global.u32 [$1+8], a;"
    if not operation.startswith(("cas", "exch")):
        text += f"red.relaxed.gpu.global.{operation} [$1+4], {operands};"
        assert _run_asm(plain, text, words) == [after, after, before, 0]
    else:
        assert _run_asm(plain, text, words) == [after, before, before, 0]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("st.global.v4.u32 [$1], {1, 2, 3, 4};", [1, 2, 3, 4, 14, 15, 16, 17]),
        ("st.weak.global.L1::no_allocate.v2.b64 [$1+16], {1, 2};", [10, 11, 12, 13, 1, 0, 2, 0]),
        ("st.global.v8.b32 [$1], {1,2,3,4,5,6,7,8};", [1, 2, 3, 4, 5, 6, 7, 8]),
        (
            "ld.global.nc.v4.u32 {a,b,c,d}, [$1]; st.global.cs.v4.u32 [$1+16], {d,c,b,a};",
            [10, 11, 12, 13, 13, 12, 11, 10],
        ),
        ("ld.relaxed.sys.global.u64 w, [$1+8]; st.release.gpu.u64 [$1], w;", [12, 13, 12, 13, 14, 15, 16, 17]),
        ("ld.volatile.global.u8 a, [$1+4]; st.volatile.u8 [$1], a;", [11, 11, 12, 13, 14, 15, 16, 17]),
        ("ld.mmio.relaxed.sys.u32 a, [$1]; st.mmio.relaxed.sys.u32 [$1+4], a;", [10, 10, 12, 13, 14, 15, 16, 17]),
        ("mov.u32 a, 255; st.u8 [$1], a; ld.s8 s, [$1]; st.s32 [$1+4], s;", [255, 2**32 - 1, 12, 13, 14, 15, 16, 17]),
        ("ld.u16 n, [$1]; st.u16 [$1+6], n;", [10, 11 + (10 << 16), 12, 13, 14, 15, 16, 17]),
        ("atom.cas.b64 w, [$1], 1, 2; cvt.u32.u64 a, w; st.u32 [$1+16], a;", [10, 11, 12, 13, 10, 15, 16, 17]),
        ("fence.proxy.alias; fence.sc.cta; nanosleep.u32 100; st.u32 [$1], 1;", [1, 11, 12, 13, 14, 15, 16, 17]),
        ("mov.u32 a, %ntid.x; mov.u32 b, %nctaid.x; st.v2.u32 [$1], {a, b};", [128, 1, 12, 13, 14, 15, 16, 17]),
        ("mov.u32 a, %laneid; mov.u32 b, %warpid; st.v2.u32 [$1], {a, b};", [0, 0, 12, 13, 14, 15, 16, 17]),
    ],
)
def test_loads_and_stores_of_every_width(plain: Any, text: str, after: list[int]) -> None:
    """Vectors, narrow values, orders and hints."""
    assert _run_asm(plain, text, torch.arange(10, 18, dtype=torch.int32)) == after


# -- threads of a program --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [0, 5, 127])
def test_one_thread_takes_a_branch_on_its_number(plain: Any, thread: int) -> None:
    """The assembly in it runs once."""

    def body(rank: int) -> int:
        count = torch.zeros(1, dtype=torch.int32)
        plain.by_one_thread[(1,)](count, THREAD=thread)
        return int(count)

    assert simulate(body, 1).raise_if_bad().results == {0: 1}


def test_threads_have_values_of_their_own(plain: Any) -> None:
    """Arithmetic on %tid.x, and loads through addresses that depend on it."""

    def body(rank: int) -> Any:
        out = torch.zeros(64, dtype=torch.int32)
        plain.by_threads[(1,)](out, torch.arange(10, dtype=torch.int32) * 100, 10, num_warps=2)
        return out.tolist()

    assert simulate(body, 1).raise_if_bad().results == {0: [102 * at + 1 if at < 10 else 0 for at in range(64)]}


def test_threads_meet_in_an_assembly(plain: Any) -> None:
    """bar.sync: what a neighbour stored before it is there."""

    def body(rank: int) -> Any:
        x = torch.zeros(64, dtype=torch.int32)
        plain.barrier_in_asm[(1,)](x, num_warps=2)
        return x.tolist()

    assert simulate(body, 1).raise_if_bad().results == {0: [at ^ 1 for at in range(64)]}


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ("barrier_in_branch", "tl.debug_barrier in a branch that only 8 of 128 threads take"),
        ("tensor_of_thread", "an element of a tensor depends on the thread (%tid.x)"),
    ],
)
def test_what_threads_cannot_do_alone_is_told(plain: Any, kernel: str, told: str) -> None:
    """Triton takes a scalar to be the same for all."""

    def body(rank: int) -> None:
        x = torch.zeros(128, dtype=torch.int32)
        getattr(plain, kernel)[(1,)](x, BLOCK=128) if kernel == "tensor_of_thread" else plain.barrier_in_branch[(1,)](x)

    assert told in message_of(simulate(body, 1))


# -- records ---------------------------------------------------------------------------------------------------------


def accesses(log: MemoryLog) -> list[Access]:
    """Of kernels."""
    programs = {actor.number for actor in log.actors if actor.kernel}
    return [each for each in log.events if isinstance(each, Access) and each.actor in programs]


def test_accesses_are_recorded_with_order_scope_and_line(plain: Any, log: list[MemoryLog]) -> None:
    """One line of the kernel, one access; weak accesses of blocks are nobody's in particular."""

    def body(rank: int) -> None:
        memory = Memory(rank, 2)
        if rank == 0:
            words = memory.buffer[:64].zero_().view(torch.int32)
            plain.orders[(1,)](words, memory.handle.buffer_ptrs[1], memory.buffer[64:].view(torch.float32), BLOCK=8)

    simulate(body, 2).raise_if_bad()
    seen = [
        (each.kind, each.order, each.scope, each.by_one_lane, each.compare, each.wrote) for each in accesses(log[0])
    ]
    assert seen[:8] == [
        ("read", "weak", "", False, None, None),
        ("write", "weak", "", False, None, None),
        ("write", "weak", "", True, None, None),
        ("read", "relaxed", "sys", False, None, None),
        ("rmw", "relaxed", "gpu", True, None, 1),
        ("rmw", "acquire", "cta", True, None, 2),
        ("rmw", "release", "sys", True, None, 1),
        ("rmw", "acq_rel", "sys", True, 0, 5),
    ]
    assert seen[8:] == [("write", "release", "gpu", True, None, None)]
    lines = [each.stack[0] for each in accesses(log[0])]
    assert {line.file for line in lines} == {HERE}
    assert [line.line for line in lines][:3] == sorted(line.line for line in lines)[:3]
    assert all(stack[-1].file == __file__ for stack in (each.stack for each in accesses(log[0])))
    assert [each[1:] for each in log[0].events if isinstance(each, Fence)] == [("acq_rel", "sys"), ("sc", "gpu")]


def test_launches_are_ordered_against_the_host(plain: Any, log: list[MemoryLog]) -> None:
    """The host publishes, each program observes; each program publishes, the host observes."""

    def body(rank: int) -> None:
        memory = Memory(rank, 1)
        for _ in range(2):
            plain.grid_barrier[(3,)](*(memory.buffer[at : at + 12].view(torch.int32).zero_() for at in (0, 16, 32)))

    simulate(body, 1).raise_if_bad()
    actors = {actor.number: actor for actor in log[0].actors}
    marks = [each for each in log[0].events if isinstance(each, Publish | Observe) and "launch" in str(each.token)]
    told = [(type(each).__name__, actors[each.actor].kernel, actors[each.actor].launch) for each in marks]
    for launch in range(2):
        mine = [each for each in told if each[2] in (launch, -1)]
        assert mine.count(("Observe", "grid_barrier", launch)) == 3
        assert mine.count(("Publish", "grid_barrier", launch)) == 3
    assert [each[0] for each in told if not each[1]] == ["Publish", "Observe"] * 2


def _pattern_of_barriers(log: MemoryLog) -> list[str]:
    kinds = []
    programs = {actor.number for actor in log.actors if actor.kernel}
    for each in log.events:
        if isinstance(each, CtaBarrier):
            kinds.append("barrier")
        elif isinstance(each, Access) and each.actor in programs and each.kind == "rmw":
            kinds.append(each.order)
    return kinds


def test_barriers_around_atomics_are_those_that_triton_compiles(plain: Any, log: list[MemoryLog]) -> None:
    """The PTX of the installed Triton for sm_90 has them at the same places."""
    import re

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def body(rank: int) -> None:
        memory = Memory(rank, 1)
        words = memory.buffer[:64].zero_().view(torch.int32)
        plain.orders[(1,)](words, memory.handle.buffer_ptrs[0], memory.buffer[64:].view(torch.float32), BLOCK=8)

    simulate(body, 1).raise_if_bad()
    signature = {"word": "*i32", "wide": "i64", "data": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(fn=plain.orders, signature=signature, constexprs={"BLOCK": 8})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    found = re.findall(r"\b(bar\.sync|(?:atom|red)\.global\.\S+)", ptx)
    compiled = [
        "barrier" if each == "bar.sync" else next(o for o in ("relaxed", "acquire", "acq_rel", "release") if o in each)
        for each in found
    ]
    merged = [each for at, each in enumerate(compiled) if each != "barrier" or compiled[at - 1 : at] != ["barrier"]]
    ours = _pattern_of_barriers(log[0])
    assert [each for at, each in enumerate(ours) if each != "barrier" or ours[at - 1 : at] != ["barrier"]] == merged


# -- nothing is left -------------------------------------------------------------------------------------------------


def _names_of_triton() -> dict[str, int]:
    """Everything that is patched, by identity."""
    import triton.language as tl
    from triton.runtime import autotuner, interpreter, jit

    owners: list[Any] = [tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base, tl.core.condition]
    owners += [jit.JITFunction, interpreter.InterpretedFunction, autotuner.Autotuner, interpreter, jit, tl.standard]
    return {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in list(vars(owner).items())}


def test_nothing_is_left_and_kernels_compile_and_interpret_as_before(plain: Any) -> None:
    """Names are what they were; the user's modules are untouched; sm_90 code; Triton's own interpreter."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.interpreter import InterpretedFunction

    before, globals_before = _names_of_triton(), dict(vars(plain))
    metas = list(sys.meta_path)

    def body(rank: int) -> None:
        x, out = torch.arange(8.0), torch.zeros(8)
        plain.nested[(1,)](x, out, BLOCK=8)

    simulate(body, 2).raise_if_bad()
    assert {name: value for name, value in _names_of_triton().items() if before.get(name) != value} == {}
    assert dict(vars(plain)) == globals_before
    assert sys.meta_path == metas
    source = ASTSource(
        plain.add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 128}
    )
    assert "ld.global" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    x, out = torch.arange(8.0), torch.zeros(8)
    InterpretedFunction(plain.add.fn)[(1,)](x, x, out, 8, BLOCK=8)
    assert out.tolist() == [2.0 * at for at in range(8)]


def test_a_rank_compiles_while_a_kernel_of_another_waits(plain: Any) -> None:
    """The language is interpreted for kernels of ranks, and for nobody else."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def body(rank: int) -> Any:
        memory = Memory(rank, 2)
        memory.buffer.zero_()
        dist.barrier()
        out = torch.zeros(1, dtype=torch.int32)
        if rank == 0:
            plain.wait_volatile[(1,)](memory.buffer.view(torch.int32), out)
            return int(out)
        signature = {"x": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
        made = triton.compile(ASTSource(plain.nested, signature, {"BLOCK": 8}), target=GPUTarget("cuda", 90, 32))
        plain.plain_store[(1,)](memory.handle.buffer_ptrs[0], 5)
        return "st.global" in made.asm["ptx"]

    assert simulate(body, 2).results == {0: 5, 1: True}


def test_outside_the_ranks_a_launch_is_what_it_was(plain: Any) -> None:
    """Without a driver Triton itself says so."""
    with pytest.raises(RuntimeError, match="driver"):
        plain.plain_store[(1,)](64, 1)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        plain.device.twice(1)


def test_triton_is_imported_by_the_program_alone() -> None:
    """A simulation without kernels does not import it; one whose ranks import it patches it then, and undoes that."""
    script = """
    import sys
    from simulator import simulate

    simulate(lambda rank: None, 2).raise_if_bad()
    assert "triton" not in sys.modules

    def body(rank):
        import torch
        from tests.unit import triton_kernels
        x, out = torch.ones(64), torch.zeros(64)
        triton_kernels.add[(1,)](x, x, out, 64, BLOCK=64)
        return float(out.sum())

    assert simulate(body, 2).raise_if_bad().results == {0: 128.0, 1: 128.0}
    import triton.runtime.jit as jit
    assert jit.JITFunction.run.__module__ == "triton.runtime.jit"
    assert type(jit.__spec__.loader).__name__ == "SourceFileLoader" and jit.__loader__ is jit.__spec__.loader
    print("as before")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "as before\n", done.stderr


def test_the_same_run_leaves_the_same_log(plain: Any, log: list[MemoryLog]) -> None:
    """Regions, actors, events: equal in each run."""

    def run() -> tuple[Any, ...]:
        def body(rank: int) -> None:
            memory = Memory(rank, 4)
            x, out = torch.zeros(BLOCK), torch.zeros(4 * BLOCK)
            plain.gather[(1,)](memory.buffers, memory.pads, x, out, rank, WORLD=4, BLOCK=BLOCK, HOW="threads")

        outcome = simulate(body, 4).raise_if_bad()
        return tuple(log[0].actors), tuple(log[0].events), str(list(outcome.trace))

    first = run()
    gc.collect()
    assert run() == first
