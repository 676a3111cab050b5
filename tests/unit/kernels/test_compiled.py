"""What the all-gather kernel is compiled to, for targets that this machine does not have."""

from __future__ import annotations

import re
from functools import cache

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from refimpl.kernels.multimem_all_gather import all_gather_kernel
from refimpl.kernels.workspace import launch_config

TARGETS = (90, 100)
WORLDS = (2, 8)
CONSTEXPRS = ("WORLD", "MULTICAST", "ENTRY_SYNC", "BLOCK")


@pytest.fixture(autouse=True)
def no_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for real; and as older versions of Triton do with a switch whose default will change."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


@cache
def compiled(capability: int, world: int, multicast: bool, entry_sync: bool) -> tuple[str, bytes]:
    """PTX and machine code."""
    config = launch_config(1 << 20, 64)
    values = dict(zip(CONSTEXPRS, (world, multicast, entry_sync, config.block), strict=True))
    signature = {p.name: "constexpr" if p.name in CONSTEXPRS else p.annotation_type for p in all_gather_kernel.params}
    source = ASTSource(fn=all_gather_kernel, signature=signature, constexprs=values)
    done = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": config.warps})
    return done.asm["ptx"], done.asm["cubin"]


def memory_operations(ptx: str) -> list[str]:
    """Stores to global memory, atomics and barriers, in the order of the text."""
    return re.findall(r"^\s*(?:@%?\w+ )?((?:multimem|atom|st\.global|ld\.global\.L1|bar)[\w.:]*)", ptx, re.MULTILINE)


PUT, TAKE = "atom.release.sys.global.cas.b32", "atom.acquire.sys.global.cas.b32"
BARRIER = ["bar.sync", PUT, TAKE, "bar.sync"]


@pytest.mark.parametrize("entry_sync", [True, False])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("capability", TARGETS)
def test_multicast_is_one_vector_store_for_all(capability: int, world: int, entry_sync: bool) -> None:
    """128 bits to the multicast address, whatever the number of ranks, between release and acquire at system scope."""
    ptx, machine_code = compiled(capability, world, True, entry_sync)
    moves = ["multimem.st.relaxed.sys.global.v4.f32", "ld.global.L1::no_allocate.v4.u32"]
    operations = memory_operations(ptx)
    assert operations[-4:] == BARRIER
    assert operations[: len(operations) - 6] == (BARRIER[1:] if entry_sync else [])
    assert sorted(operations[-6:-4]) == sorted(moves)
    assert len(machine_code) > 1000


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("capability", TARGETS)
def test_peer_stores_are_as_many_as_ranks(capability: int, world: int) -> None:
    """One load of 128 bits, and one store of 128 bits for each rank; no narrower access to the data."""
    operations = memory_operations(compiled(capability, world, False, True)[0])
    assert operations.count("st.global.v4.u32") == world
    assert operations.count("ld.global.L1::no_allocate.v4.u32") == 1
    assert {o for o in operations if o.startswith(("st.", "multimem"))} == {"st.global.v4.u32"}
    assert operations[:3] == BARRIER[1:] and operations[-4:] == BARRIER


def test_all_ranks_share_one_kernel() -> None:
    """Neither the rank nor an address is specialised on, whatever its value (1 and multiples of 16 would be)."""
    free = [p.name for p in all_gather_kernel.params if not p.is_constexpr]
    assert free == ["shard", "buffers", "multicast", "pads", "rank", "rows", "row_chunks"]
    assert all(p.do_not_specialize and p.annotation_type for p in all_gather_kernel.params if not p.is_constexpr)
