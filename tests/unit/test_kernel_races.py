"""Races of a real kernel on simulated ranks: none as it is, and one for each thing that is taken out of it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from refimpl.distributed import MultimemAllGatherer, ParallelLayout, get_tp_group
from refimpl.kernels import ptx
from refimpl.kernels.symmetric import build_workspace
from refimpl.kernels.workspace import Workspace
from simulator import Certainty, Finding, Level, Outcome, simulate
from tests.unit.refimpl.bodies import running

SOURCES = Path(ptx.__file__).parent
ROWS, COLUMNS = 32, 128
"""A shard of float32 for more than one program."""
ROW_BYTES = 4 * COLUMNS


def gather(calls: int, *, skip: bool, meet: bool, safe: bool) -> Callable[[int, int], None]:
    """Each rank gathers and reads, again and again."""

    def body(rank: int, world: int) -> None:
        with running(rank, "env://", ParallelLayout(tp=world)):
            group = get_tp_group()
            gatherer = MultimemAllGatherer(group, max_tokens=ROWS, nnodes=lambda: 1, skip_entry_sync=skip, safe=safe)
            for call in range(calls):
                out = gatherer(torch.full((ROWS, COLUMNS), float(rank + call)))
                float(out.sum())
                if meet:
                    group.barrier()

    return body


def bad(outcome: Outcome) -> list[Finding]:
    return [finding for finding in outcome.findings if not finding.warning]


# -- as it is ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_kernel_as_it_is_has_no_race(world: int, multicast: bool) -> None:
    """With its entry barrier, however the result is used; without it, if the ranks meet between two calls."""
    for skip, meet, safe in ((False, False, True), (False, False, False), (True, True, False)):
        outcome = simulate(gather(2, skip=skip, meet=meet, safe=safe), world, args=(world,), multicast=multicast)
        assert outcome.findings == (), outcome.report()


@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_without_entry_barrier_a_fast_rank_overwrites_what_a_slow_one_reads(world: int, multicast: bool) -> None:
    """Back-to-back calls, the result read in between, nothing else that synchronises."""
    outcome = simulate(gather(2, skip=True, meet=False, safe=True), world, args=(world,), multicast=multicast)
    (finding,) = outcome.findings
    assert outcome.verdict == "race"
    assert (finding.level, finding.certainty) == (Level.TORCH, Certainty.CAUSE)
    reader, writer = finding.sides
    assert (reader.site is not None and reader.site.file.endswith("gatherer.py")) and "the host reads" in reader.doing
    assert writer.site is not None and writer.site.file.endswith("ptx.py")
    written = re.search(r"writes bytes (\d+) to", writer.doing)
    assert written is not None and int(written[1]) // ROW_BYTES % world == writer.ranks[0]
    assert finding.cause.startswith(f"nothing orders rank {reader.ranks[0]}'s read of its buffer before rank ")
    assert finding.cause.endswith("'s next write to it")
    assert "two buffers in turn" in finding.remedy


def test_the_report_shows_both_accesses() -> None:
    """As people read it."""
    report = simulate(gather(2, skip=True, meet=False, safe=True), 2, args=(2,), multicast=True).report()
    lines = {path.name: path.read_text().splitlines() for path in SOURCES.glob("*.py")}
    store = next(n for n, text in enumerate(lines["ptx.py"], 1) if "def multimem_store16" in text) + 5
    call = next(n for n, text in enumerate(lines["multimem_all_gather.py"], 1) if "ptx.multimem_store16" in text)
    assert f"at refimpl/kernels/ptx.py:{store}\n" in report
    assert f"from refimpl/kernels/multimem_all_gather.py:{call} in all_gather_kernel\n" in report
    assert "race: rank 0 reads and rank 1 writes the buffer of rank 0, and nothing orders the two" in report


# -- with something taken out -----------------------------------------------------------------------------------------

EXIT = """    tl.debug_barrier()
    ptx.exchange_signals(pads, first_slot, rank, WORLD)
    tl.debug_barrier()
"""
ENTRY = """        ptx.exchange_signals(pads, first_slot, rank, WORLD)
        tl.debug_barrier()
"""


@pytest.fixture
def mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Makes the module of the kernel with other text in place of some of its own."""

    def make(*changes: tuple[str, str]) -> ModuleType:
        loaded = None
        for name in ("ptx", "multimem_all_gather"):
            text = (SOURCES / f"{name}.py").read_text()
            for old, new in changes:
                text = text.replace(old, new)
            text = text.replace("from refimpl.kernels import ptx", "import mutant_ptx as ptx")
            path = tmp_path / f"mutant_{name}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None and spec.loader is not None
            loaded = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, path.stem, loaded)
            spec.loader.exec_module(loaded)
        assert loaded is not None
        whole = "".join((tmp_path / f"mutant_{name}.py").read_text() for name in ("ptx", "multimem_all_gather"))
        assert all(old not in whole or old in new for old, new in changes)
        return loaded

    return make


def use(module: ModuleType, *, entry_sync: bool = True, meet: bool = False) -> Callable[[int, int], None]:
    """Two gathers by the kernel of `module`, each result read."""

    def body(rank: int, world: int) -> None:
        with running(rank, "env://", ParallelLayout(tp=world)):
            group = get_tp_group()
            workspace, reason = build_workspace(group, ROWS * COLUMNS * 4 * world)
            assert workspace is not None, reason
            for call in range(2):
                out = module.all_gather(workspace, torch.full((ROWS, COLUMNS), float(call)), entry_sync=entry_sync)
                float(out.sum())
                if meet:
                    group.barrier()

    return body


def races(outcome: Outcome) -> Sequence[Finding]:
    """All findings, which are races."""
    assert outcome.findings
    assert {finding.kind for finding in outcome.findings} == {"race"}, outcome.report()
    return outcome.findings


BOTH = pytest.mark.parametrize("multicast", [True, False])


def test_a_mutant_without_a_change_has_no_race(mutant: Any) -> None:
    """What the other tests find lies in the change."""
    outcome = simulate(use(mutant()), 2, args=(2,))
    assert outcome.findings == (), outcome.report()


@BOTH
def test_without_exit_barrier_the_result_is_read_before_it_is_written(mutant: Any, multicast: bool) -> None:
    """Nothing says that the peers have stored."""
    outcome = simulate(use(mutant((EXIT, ""))), 2, args=(2,), multicast=multicast)
    found = races(outcome)
    assert all("the host reads" in finding.sides[1].doing for finding in found)
    assert all(re.search(r"before rank \d's read of it$", finding.cause) for finding in found)


@BOTH
@pytest.mark.parametrize(
    ("old", "new", "needed"),
    [
        ("atom.release.sys", "atom.relaxed.sys", "release at scope sys"),
        ("atom.acquire.sys", "atom.relaxed.sys", "acquire at scope sys"),
        ("atom.release.sys", "atom.release.gpu", "release at scope sys"),
        ("atom.acquire.sys", "atom.acquire.gpu", "acquire at scope sys"),
    ],
)
def test_a_signal_that_is_too_weak_is_named(mutant: Any, old: str, new: str, needed: str, multicast: bool) -> None:
    """The remedy is the order or the scope that was taken out, at the line of the exit barrier."""
    module = mutant((old, new))
    found = races(simulate(use(module, entry_sync=False, meet=True), 2, args=(2,), multicast=multicast))
    on_buffers = [finding for finding in found if "buffer" in finding.title]
    assert on_buffers
    _, order, scope = new.split(".")
    for finding in on_buffers:
        assert f"is {order} at scope {scope}, where it takes {needed}" in finding.cause
        assert finding.remedy.startswith("make the compare-and-swap from ") and finding.remedy.endswith(needed)
        assert "mutant_multimem_all_gather.py" in finding.remedy


@BOTH
def test_a_signal_without_cta_barrier_before_it_covers_one_thread_only(mutant: Any, multicast: bool) -> None:
    """The other threads of the program may not have stored yet."""
    module = mutant((EXIT, EXIT.split("\n", 1)[1]))
    found = races(simulate(use(module), 2, args=(2,), multicast=multicast))
    assert all("between the write and the signal after it a CTA barrier is missing" in f.cause for f in found)
    assert all(f.remedy.startswith("call tl.debug_barrier() between the write and the signal") for f in found)


@BOTH
def test_a_wait_without_cta_barrier_after_it_holds_one_thread_only(mutant: Any, multicast: bool) -> None:
    """The other threads of the program may store already."""
    module = mutant((ENTRY, ENTRY.splitlines()[0] + "\n"))
    found = races(simulate(use(module), 2, args=(2,), multicast=multicast))
    assert all("between the wait for a signal and the write a CTA barrier is missing" in f.cause for f in found)


def test_no_cta_barrier_is_needed_at_the_end_of_the_kernel(mutant: Any) -> None:
    """Its end is one."""
    module = mutant((EXIT, EXIT.rsplit("    tl.debug_barrier()\n", 1)[0]))
    outcome = simulate(use(module), 2, args=(2,))
    assert outcome.findings == (), outcome.report()


def test_programs_that_share_a_word_of_the_pad_are_ambiguous(mutant: Any) -> None:
    """The programs of a launch signal one word of the peer."""
    module = mutant(("first_slot = program * WORLD", "first_slot = program * 0"))
    outcome = simulate(use(module), 2, args=(2,))
    title = next(f.title for f in outcome.findings)
    assert re.match(r"program \d and program \d of rank 0 put the same signal into one word of the signal pad", title)


def shared_pad(module: ModuleType, *, meet: bool) -> Callable[[int], None]:
    """Ranks 0 and 2, then ranks 1 and 2, gather by one buffer; in both groups the peer of rank 2 is number 0."""

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        groups = [dist.new_group([0, 2]), dist.new_group([1, 2])]
        buffer = symm_mem.empty(1 << 17, dtype=torch.uint8, device="cpu")
        handles = {n: symm_mem.rendezvous(buffer, groups[n]) for n in (0, 1) if rank in (n, 2)}
        for number, handle in handles.items():
            workspace = Workspace(
                rank=handle.rank,
                world=2,
                buffer=buffer,
                buffers=handle.buffer_ptrs_dev,
                pads=handle.signal_pad_ptrs_dev,
                multicast=0,
                pad_bytes=handle.signal_pad_size,
                keep=handle,
            )
            if meet and number == 1:
                dist.barrier()
            module.all_gather(workspace, torch.ones(4, 16), entry_sync=True)
        if meet and rank == 0:
            dist.barrier()

    return body


def test_two_groups_on_one_pad_are_ambiguous(mutant: Any) -> None:
    """Rank 2 cannot tell the signal of rank 0 in one group from that of rank 1 in the other."""
    outcome = simulate(shared_pad(mutant(), meet=False), 3)
    (finding,) = [f for f in outcome.findings if "signal pad of rank 2" in f.title]
    assert outcome.verdict == "race" and outcome.findings[0] is finding
    assert finding.title.startswith("rank 0 and rank 1 put the same signal into one word of the signal pad of rank 2")
    assert finding.remedy.startswith("give each sender, and each group that uses the pad, words of its own")


def test_two_groups_may_use_one_pad_one_after_the_other(mutant: Any) -> None:
    """A barrier of all ranks lies in between."""
    outcome = simulate(shared_pad(mutant(), meet=True), 3)
    assert bad(outcome) == [], outcome.report()
