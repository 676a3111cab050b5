"""Symmetric memory used wrongly, with the finding that it deserves; and right programs that look like it, with none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from simulator import Certainty, Finding, Level, Outcome, Verdict, simulate
from simulator.memory_records import WordWait
from tests.unit.memory_runs import start


def gloo() -> Any:
    dist.init_process_group("gloo")
    return dist.group.WORLD


def first(outcome: Outcome) -> Finding:
    assert outcome.findings, outcome.report()
    return outcome.findings[0]


def silent(body: Callable[[int], Any], ranks: int = 2, **options: Any) -> None:
    """No finding, and no warning either."""
    outcome = simulate(body, ranks, **options)
    assert outcome.findings == (), outcome.report()


# -- what does not fit together ----------------------------------------------------------------------------------------


def sizes(rank: int, more: int = 1) -> None:
    start(8 + rank * more)


def test_buffers_of_different_sizes() -> None:
    """torch raises on all ranks; the report says who brought what from where."""
    outcome = simulate(sizes, 3)
    finding = first(outcome)
    assert (outcome.verdict, finding.level, finding.certainty) == (Verdict.MISMATCH, Level.TORCH, Certainty.CAUSE)
    assert finding.title == "rendezvous seq 0 of group 'WORLD' [0, 1, 2]: the buffers differ in size"
    assert [(side.ranks, side.doing) for side in finding.sides] == [
        ((0,), "32 bytes, float32 [8]"),
        ((1,), "36 bytes, float32 [9]"),
        ((2,), "40 bytes, float32 [10]"),
    ]
    assert all(record.error_type == "RuntimeError" for record in outcome.ranks.values())
    silent(lambda rank: sizes(rank, more=0), 3)


def test_shapes_and_types_that_differ_in_buffers_of_one_size() -> None:
    """torch's documentation asks for equal ones, its code does not."""

    def body(rank: int, dtype: torch.dtype = torch.int32) -> Any:
        buffer, _ = start(*((4, 2) if rank else (2, 4)), dtype=dtype if rank else torch.float32)
        return buffer.shape[0]

    outcome = simulate(body, 2)
    finding = first(outcome)
    assert (finding.level, finding.certainty) == (Level.CONTRACT, Certainty.CAUSE)
    assert finding.title == "rendezvous seq 0 of group 'WORLD' [0, 1]: the tensors differ in shape or type"
    assert [side.doing for side in finding.sides] == ["32 bytes, float32 [2, 4]", "32 bytes, int32 [4, 2]"]
    assert outcome.results == {0: 2, 1: 4}
    silent(lambda rank: start(4, 2))


def test_pads_of_different_sizes() -> None:
    def body(rank: int, who: tuple[int, ...] = (1,)) -> None:
        if rank in who:
            symm_mem.set_signal_pad_size(64)
        start(4)

    finding = first(simulate(body, 2))
    assert finding.title.endswith("the signal pads differ in size")
    assert [side.doing for side in finding.sides] == ["a signal pad of 9216 bytes", "a signal pad of 64 bytes"]
    assert "on all ranks, before the first buffer is allocated" in finding.remedy
    silent(lambda rank: body(rank, (0, 1)))


def test_one_device_for_two_ranks_of_a_node() -> None:
    """torch compares host names and device numbers. A device of its own, or none that is named, is fine."""

    def body(rank: int, device: str = "cuda:0") -> None:
        start(4, device=device.format(rank=rank))

    finding = first(simulate(body, 2))
    assert finding.title.endswith("ranks of one node gave the same device")
    assert finding.sides[0].doing == "cuda:0 of node 0"
    for device in ("cuda:{rank}", "cuda", "cpu"):
        silent(lambda rank, device=device: body(rank, device))


def test_a_group_across_nodes() -> None:
    """Memory does not reach that far. Groups within the nodes are fine, and so is one device number on each node."""

    def body(rank: int) -> None:
        start(4)

    finding = first(simulate(body, 4, nodes=2))
    assert finding.title == "rendezvous seq 0 of group 'WORLD' [0, 1, 2, 3]: the group spans nodes"
    assert [(side.ranks, side.doing) for side in finding.sides] == [
        ((0, 1), "a buffer on node 0"),
        ((2, 3), "a buffer on node 1"),
    ]
    assert "`Failed to send fd`" in finding.at_other_level

    def within(rank: int) -> None:
        gloo()
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        symm_mem.rendezvous(symm_mem.empty(4, device=f"cuda:{rank % 2}"), groups[rank // 2])

    silent(within, 4, nodes=2)


# -- orders ------------------------------------------------------------------------------------------------------------


def swapped(rank: int, on: tuple[int, ...] = (1,)) -> None:
    group = gloo()
    left = symm_mem.empty(4)
    right = symm_mem.empty(4)
    for buffer in (right, left) if rank in on else (left, right):
        symm_mem.rendezvous(buffer, group)


def test_buffers_brought_in_different_orders() -> None:
    """A suspect, since a program may pair its buffers so on purpose; with both orders."""
    outcome = simulate(swapped, 3)
    finding = first(outcome)
    assert (outcome.verdict, finding.level, finding.certainty) == (Verdict.MISMATCH, Level.CONTRACT, Certainty.SUSPECT)
    assert finding.title == "group 'WORLD' [0, 1, 2]: the ranks bring their buffers in different orders"
    assert (finding.seq, [side.ranks for side in finding.sides]) == (0, [(0, 2), (1,)])
    line = swapped.__code__.co_firstlineno
    orders = [re.findall(r":(\d+)", side.doing) for side in finding.sides]
    assert orders == [[str(line + 2), str(line + 3)], [str(line + 3), str(line + 2)]]
    silent(lambda rank: swapped(rank, (0, 1, 2)), 3)
    silent(lambda rank: swapped(rank, ()), 3)


def test_buffers_of_different_sizes_in_different_orders() -> None:
    """The sizes tell; the cause shows the orders."""

    def body(rank: int) -> None:
        group = gloo()
        left, right = symm_mem.empty(4), symm_mem.empty(8)
        for buffer in (right, left) if rank else (left, right):
            symm_mem.rendezvous(buffer, group)

    finding = first(simulate(body, 2))
    assert finding.title.endswith("the buffers differ in size")


def make_buffer() -> torch.Tensor:
    return symm_mem.empty(4)


def test_a_helper_that_allocates_does_not_hide_the_order() -> None:
    """The lines that call it tell."""

    def body(rank: int) -> None:
        group = gloo()
        buffers = {}
        for name in ("a", "b") if rank == 0 else ("b", "a"):
            if name == "a":
                buffers[name] = make_buffer()
            else:
                buffers[name] = make_buffer()
            symm_mem.rendezvous(buffers[name], group)

    finding = first(simulate(body, 2))
    assert finding.title.endswith("in different orders")
    assert all("called at" in side.doing for side in finding.sides)


def test_ranks_that_take_different_paths_to_one_helper_are_fine() -> None:
    """A leader and its followers: other lines, the same buffers in the same order."""

    def leader(group: Any) -> None:
        symm_mem.rendezvous(make_buffer(), group)
        symm_mem.rendezvous(make_buffer(), group)

    def follower(group: Any) -> None:
        for _ in range(2):
            symm_mem.rendezvous(make_buffer(), group)

    silent(lambda rank: (follower if rank else leader)(gloo()), 3)


def test_buffers_from_different_lines_are_a_warning_only() -> None:
    def body(rank: int) -> None:
        group = gloo()
        if rank == 0:
            symm_mem.rendezvous(symm_mem.empty(4), group)
        else:
            symm_mem.rendezvous(symm_mem.empty(4), group)

    outcome = simulate(body, 2)
    assert outcome.ok
    assert first(outcome).warning
    assert first(outcome).title == "group 'WORLD' [0, 1]: the ranks bring their buffers from different places"


def test_ranks_with_other_groups_besides_are_fine() -> None:
    """A rank in the middle has more buffers from the same line; in each group they come in order."""

    def body(rank: int) -> None:
        gloo()
        for ranks in ([0, 1], [1, 2], [2, 3]):
            group = dist.new_group(ranks)
            if rank in ranks:
                symm_mem.rendezvous(symm_mem.empty(4), group)

    silent(body, 4)


# -- pads and multicast ------------------------------------------------------------------------------------------------


def test_one_buffer_in_two_groups_is_a_warning() -> None:
    """The pad belongs to the buffer. Two buffers are fine, and so are groups of one rank."""

    def body(rank: int, again: bool = True, ranks: tuple[int, ...] = (0, 1)) -> None:
        buffer, handle = start(4)
        other = dist.new_group(list(ranks), group_desc="pair")
        if rank in ranks:
            symm_mem.rendezvous(buffer if again else symm_mem.empty(4), other)
        handle.barrier()

    outcome = simulate(body, 2)
    finding = first(outcome)
    assert outcome.ok
    assert (finding.warning, finding.certainty) == (True, Certainty.SUSPECT)
    assert finding.title == "groups 'WORLD', 'pair' share the signal pads of their buffers"
    assert finding.sides[0].ranks == (0, 1)
    silent(lambda rank: body(rank, again=False))
    silent(lambda rank: body(rank, ranks=(0,)))


def test_a_channel_beyond_the_pad() -> None:
    """The finding says what the pad has and what is needed."""

    def body(rank: int, channel: int = 2, pad: int = 16) -> None:
        symm_mem.set_signal_pad_size(pad)
        _, handle = start(4)
        handle.barrier(channel)

    outcome = simulate(body, 2)
    finding = first(outcome)
    assert outcome.verdict == Verdict.MISMATCH
    assert finding.title == "barrier needs channel 2 of the signal pads of group 'WORLD', which are too small"
    assert finding.cause == "the pads have 16 bytes, and 24 are needed: a channel takes 4 bytes for each of 2 ranks"
    assert "set_signal_pad_size with 24 or more on all ranks before the buffer is allocated" in finding.remedy
    error = "RuntimeError: The maximum supported channel for barrier(), put_signal() and wait_signal() is 1 (got 2)"
    assert outcome.ranks[0].error == error
    silent(lambda rank: body(rank, channel=1))
    silent(lambda rank: body(rank, pad=24))


def test_a_pad_that_is_enlarged_after_the_allocation() -> None:
    """torch believes the new size, and would write behind the pad."""

    def body(rank: int, late: bool = True) -> None:
        if not late:
            symm_mem.set_signal_pad_size(1 << 16)
        _, handle = start(4)
        if late:
            symm_mem.set_signal_pad_size(1 << 16)
        handle.get_signal_pad(rank, (1 << 14,))

    finding = first(simulate(body, 2))
    assert finding.title.startswith("get_signal_pad needs a tensor up to byte 65536 of the signal pads")
    assert finding.cause.endswith("set_signal_pad_size(65536) came after the buffer was allocated")
    assert "behind the pad" in finding.at_other_level
    silent(lambda rank: body(rank, late=False))


def test_a_rank_that_handles_a_small_pad_gets_a_warning() -> None:
    def body(rank: int) -> None:
        _, handle = start(4)
        with pytest.raises(RuntimeError):
            handle.get_signal_pad(0, (10_000,))

    outcome = simulate(body, 2)
    assert outcome.ok
    assert first(outcome).warning


def test_multicast_that_is_off_on_some_ranks() -> None:
    def body(rank: int, off: tuple[int, ...] = (1,)) -> int:
        if rank in off:
            os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        return int(start(4)[1].multicast_ptr)

    outcome = simulate(body, 3)
    finding = first(outcome)
    assert finding.title == "group 'WORLD' [0, 1, 2]: some of its ranks have multicast turned off"
    assert [side.ranks for side in finding.sides] == [(0, 2), (1,)]
    assert outcome.results == {0: 0, 1: 0, 2: 0}
    silent(lambda rank: body(rank, (0, 1, 2)), 3)
    silent(lambda rank: body(rank, ()), 3)


@pytest.mark.parametrize("off", ["option", "environment"])
def test_an_operator_that_needs_multicast_where_there_is_none(off: str) -> None:
    """A program that asks first is fine."""

    def body(rank: int, asks: bool = False) -> None:
        if off == "environment":
            os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        buffer, handle = start(4)
        if not asks or handle.multicast_ptr:
            torch.ops.symm_mem.multimem_all_reduce_(buffer, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]

    outcome = simulate(body, 2, multicast=off != "option")
    finding = first(outcome)
    assert (outcome.verdict, finding.ranks("called")) == (Verdict.MISMATCH, (0, 1))
    assert finding.title == "torch.ops.symm_mem.multimem_all_reduce_ needs multicast, and there is none"
    assert ("option" in finding.cause) is (off == "option")
    assert outcome.ranks[0].error == "RuntimeError: multimem_all_reduce_: requires multicast support."
    silent(lambda rank: body(rank, asks=True), multicast=off != "option")


def test_operators_that_are_not_modelled_say_so() -> None:
    def body(rank: int) -> None:
        buffer, _ = start(4)
        torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]

    outcome = simulate(body, 2)
    assert outcome.verdict == Verdict.EXCEPTION
    assert "torch.ops.symm_mem.one_shot_all_reduce is not modelled" in outcome.ranks[0].error


# -- deadlocks ---------------------------------------------------------------------------------------------------------


def test_a_rank_that_skips_a_rendezvous() -> None:
    """Found at once, with who waits where, and what the missing rank did instead."""

    def body(rank: int) -> None:
        group = gloo()
        buffer = symm_mem.empty(4)
        if rank != 2:
            symm_mem.rendezvous(buffer, group)

    outcome = simulate(body, 4)
    finding = first(outcome)
    assert (outcome.verdict, outcome.virtual_s) == (Verdict.DEADLOCK, 0.0)
    assert (finding.waiting, finding.missing, finding.seq) == ((0, 1, 3), (2,), 0)
    assert finding.title == "rendezvous seq 0 of group 'WORLD' [0, 1, 2, 3] cannot complete"
    assert "test_symmetric_findings.py" in str(finding.sides[0].site)
    assert "DistStoreError" in finding.at_other_level


def test_a_rendezvous_times_out_with_its_groups_store() -> None:
    def body(rank: int) -> None:
        group = gloo()
        if rank == 0:
            symm_mem.rendezvous(symm_mem.empty(4), group)

    outcome = simulate(body, 2, on_hang="timeout")
    assert outcome.verdict == Verdict.DEADLOCK
    assert re.match(r"DistStoreError: wait timeout after \d+ms, keys: /CUDASymmetricMemory/0/1", outcome.ranks[0].error)


REPORT = """\
deadlock: barrier(channel=1) on group 'WORLD' cannot complete
  waiting: ranks 0, 1, 3  barrier(channel=1) on group 'WORLD'  tests/unit/test_symmetric_findings.py:LINE
  missing: rank 2         finished at 0 s
  cause:   rank 2 has not put its signal (slot of rank 2 in channel 1 of the signal pad of rank 0 is 0); ranks 1, 3
           likewise
  remedy:  let all ranks of the group make the same barrier, put_signal and wait_signal calls on the same channels
  real:    the kernel spins on the device without end; the host goes on until it synchronises with its stream
  level:   torch    certainty: cause
"""


def test_a_rank_that_skips_a_barrier() -> None:
    def body(rank: int) -> None:
        _, handle = start(4)
        if rank != 2:
            handle.barrier(channel=1)

    outcome = simulate(body, 4)
    assert (first(outcome).waiting, first(outcome).missing) == ((0, 1, 3), (2,))
    assert re.sub(r"py:\d+", "py:LINE", outcome.report()).endswith(REPORT)


def test_a_signal_that_nobody_puts_and_one_that_nobody_takes() -> None:
    def waits(rank: int) -> None:
        _, handle = start(4)
        if rank == 0:
            handle.wait_signal(1, channel=2)

    def puts(rank: int) -> None:
        _, handle = start(4)
        if rank == 0:
            handle.put_signal(1)
            handle.put_signal(1)

    told = "rank 1 has not put its signal (slot of rank 1 in channel 2 of the signal pad of rank 0 is 0)"
    assert first(simulate(waits, 2)).cause == told
    told = "rank 1 has not taken the signal before (slot of rank 0 in channel 0 of the signal pad of rank 1 is still 1)"
    assert first(simulate(puts, 2)).cause == told


def test_barriers_on_different_channels_wait_for_each_other() -> None:
    def body(rank: int) -> None:
        _, handle = start(4)
        handle.barrier(channel=rank)

    finding = first(simulate(body, 2))
    assert (finding.kind, finding.waiting, finding.missing) == (Verdict.DEADLOCK, (0,), (1,))
    assert finding.cause.startswith("a cycle: rank 0 in barrier(channel=0) on group 'WORLD' waits for rank 1; rank 1")


def test_a_signal_and_a_collective_wait_for_each_other() -> None:
    """Also across what they are waits for."""

    def body(rank: int) -> None:
        _, handle = start(4)
        if rank == 0:
            handle.wait_signal(1)
        dist.barrier()
        if rank == 1:
            handle.put_signal(0)

    finding = first(simulate(body, 2))
    assert "rank 1 in barrier on group 'WORLD' seq 0 waits for rank 0" in finding.cause


def test_a_peer_that_failed_explains_the_barrier_that_waits_for_it() -> None:
    def body(rank: int) -> None:
        _, handle = start(4)
        if rank == 1:
            raise ValueError("no")
        handle.barrier()

    outcome = simulate(body, 2)
    assert outcome.verdict == Verdict.EXCEPTION
    assert [side.doing for side in first(outcome).sides if side.role == "stranded"] == [
        "waits in barrier(channel=0) on group 'WORLD'"
    ]


def test_a_time_out_of_a_signal_shows_the_deadlock_before_it() -> None:
    def body(rank: int) -> None:
        _, handle = start(4)
        if rank == 0:
            handle.wait_signal(1, timeout_ms=100)

    outcome = simulate(body, 2)
    finding = first(outcome)
    assert (outcome.verdict, outcome.virtual_s, finding.missing) == (Verdict.DEADLOCK, 0.1, (1,))
    assert finding.ranks("then") == (0,)


def test_kernels_that_wait_for_a_peer_which_launches_none() -> None:
    """Programs of a kernel poll a word that nobody writes: who could write it, and what that rank does instead."""

    def body(rank: int) -> None:
        _, handle = start(4)
        if rank == 1:
            return
        sim = symm_mem._SymmetricMemory._choose()._sim
        program = sim.memory.program(rank, "gather", (0, 0, 0), sim.memory.next_launch(rank))
        text = f"kernel gather, program 0: word at byte 4 of the signal pad of rank {rank} (is 0)"
        block = sim.memory.find(handle.signal_pad_ptrs[rank])
        wait = WordWait(program.number, ((block.region.number, 4),), block.ranks)
        sim.memory.wait_written(wait, text, sim.sites.capture(0))
        raise AssertionError("somebody wrote")

    outcome = simulate(body, 3)
    finding = first(outcome)
    assert (finding.waiting, finding.missing, finding.group_ranks) == ((0, 2), (1,), (0, 1, 2))
    assert finding.title == "kernel gather cannot end on ranks 0, 2"
    assert finding.cause == (
        "nobody writes what it waits for: kernel gather, program 0: word at byte 4 of the signal pad of rank 0 (is 0); "
        "rank 2 likewise"
    )


def test_a_wait_for_a_word_names_what_it_waits_for() -> None:
    """As data, for those who read `records`."""
    wait = WordWait(0, ((1, 4),), (0, 1), (1,), "barrier", "told")
    assert (wait.expected, wait.op, wait.told) == ((1,), "barrier", "told")
