"""Device functions that the kernels of `triton_kernels` call, in a module of their own."""

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(2)


@triton.jit
def twice(x):
    """FACTOR is a global of this module, and of no other."""
    return x * FACTOR


@triton.jit
def twice_and(x, more: tl.constexpr = 1):
    """Calls another device function, and has a default."""
    y = twice(x)
    return y + more


@triton.jit
def pointer_at(table, rank, of: tl.constexpr):
    """The `rank`-th address of a table at address `table`."""
    return tl.load((table + rank * 8).to(tl.pointer_type(tl.int64))).to(tl.pointer_type(of))


@triton.jit
def exchange_by_cas(pads, rank, WORLD: tl.constexpr):
    """Put a signal into every rank's pad and take those of all: one scalar after the other."""
    for peer in range(WORLD):
        slot = pointer_at(pads, peer, tl.int32) + rank
        while tl.atomic_cas(slot, 0, 1, sem="release", scope="sys") != 0:
            pass
    for peer in range(WORLD):
        slot = pointer_at(pads, rank, tl.int32) + peer
        while tl.atomic_cas(slot, 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def exchange_by_threads(pads, rank, WORLD: tl.constexpr):
    """The same: thread t of the program serves rank t."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .u32   %tid_, %seen;
            .reg .u64   %a, %b;
            .reg .pred  %idle, %again;
            mov.u32 %tid_, %tid.x;              // one thread for each rank
            setp.ge.s32 %idle, %tid_, $3;
            @%idle bra over;
            mul.wide.u32 %a, %tid_, 8;
            add.s64 %a, %a, $1;
            ld.global.b64 %b, [%a];
            mul.wide.u32 %a, $2, 4;
            add.s64 %b, %b, %a;
        send:
            atom.global.release.sys.cas.b32 %seen, [%b], 0, 1;
            setp.ne.u32 %again, %seen, 0;
            @%again bra send;
            mul.wide.u32 %a, $2, 8;
            add.s64 %a, %a, $1;
            ld.global.b64 %b, [%a];
            mad.wide.u32 %b, %tid_, 4, %b;
        wait:
            atom.global.acquire.sys.cas.b32 %seen, [%b], 1, 0;
            setp.eq.u32 %again, %seen, 1;
            @!%again bra wait;
        over:
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,~{memory}",
        [pads, rank, WORLD],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def exchange_by_elements(pads, rank, WORLD: tl.constexpr):
    """The same: one element of a tensor for each rank, in a branch on the number of the thread."""
    peer = tl.arange(0, WORLD)
    table = pads.to(tl.pointer_type(tl.uint64))
    send = tl.load(table + peer) + rank * 4
    take = tl.load(table + rank) + peer * 4
    if thread() < WORLD:
        tl.inline_asm_elementwise(
            """
            {
                .reg .u32 seen<1>; .reg .pred ok;
                put: atom.release.sys.global.cas.b32 seen0, [$1], 0, 1;
                setp.eq.u32 ok, seen0, 0;
                @!ok bra put;
                mov.u32 $0, 0;
            }
            """,
            "=r,l",
            [send],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.inline_asm_elementwise(
            """
            {
                .reg .u32 seen<1>; .reg .pred ok;
                get: atom.acquire.sys.global.cas.b32 seen0, [$1], 1, 0;
                setp.eq.u32 ok, seen0, 1;
                @!ok bra get;
                mov.u32 $0, 0;
            }
            """,
            "=r,l",
            [take],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def thread():
    """The number of the thread: not a scalar as Triton knows them."""
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
