"""Named device functions for what Triton's language lacks: 128-bit copies, multicast stores, signals between ranks.

Addresses are 64-bit integers in the global window, data moves as four 32-bit words.  A `valid` of 0 switches an element
off.  Every function is `volatile` and is not reordered against its neighbours by the compiler.

How ranks order their accesses (PTX ISA, "Memory Consistency Model"): all threads of a program store; a barrier of the
CTA; one thread for each peer makes a release at system scope on a word of the peer's signal pad.  The peer's thread
makes the acquire on that word; a barrier of the CTA; all threads read.  Barrier and release are cumulative, so the
signal covers the stores of all threads of the program.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load16(address, valid):
    """Load 16 bytes from each 16-byte aligned `address` (int64) as four uint32; zeros where not `valid` (int32).

    PTX ISA: `ld` with `.v4.u32`, weak.  The first-level cache is passed by, since each byte is read once.
    """
    return tl.inline_asm_elementwise(
        """
        {
            .reg .pred on;
            setp.ne.u32 on, $5, 0;
            mov.u32 $0, 0;
            mov.u32 $1, 0;
            mov.u32 $2, 0;
            mov.u32 $3, 0;
            @on ld.global.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];
        }
        """,
        "=&r,=&r,=&r,=&r,l,r",
        [address, valid],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=False,
        pack=1,
    )


@triton.jit
def store16(address, a, b, c, d, valid):
    """Store 16 bytes to each 16-byte aligned `address` (int64), of this or another device of the same node.

    PTX ISA: `st` with `.v4.u32`, weak: ordered for other ranks by `exchange_signals` alone.
    """
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred on;
            setp.ne.u32 on, $6, 0;
            @on st.global.v4.u32 [$1], {$2, $3, $4, $5};
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,r,r,r",
        [address, a, b, c, d, valid],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def multimem_store16(address, a, b, c, d, valid):
    """Store 16 bytes to the same place in the memory of all members; `address` (int64) is a multicast address.

    PTX ISA: `multimem.st` (sm_90 and newer), relaxed at system scope; the type .f32 stands for 32 bits of any kind.
    """
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred on;
            setp.ne.u32 on, $6, 0;
            @on multimem.st.relaxed.sys.global.v4.f32 [$1], {$2, $3, $4, $5};
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,r,r,r",
        [address, a, b, c, d, valid],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def exchange_signals(pads, first_slot, rank, world):
    """Signal all ranks and wait for the signals of all: thread t serves rank t, so a program needs `world` threads.

    pads: address of a table of int64, the signal pads of the ranks; pads hold uint32.
    first_slot: int32; the signal of rank r lies in word `first_slot + r`.  Words are 0 before and after.

    What any thread of the program did before a barrier of the CTA before the call happens before what any thread of a
    peer's program does after a barrier of the CTA after its call (release and acquire at system scope).
    A signal waits until the peer has taken the one before it, so slots can be used again at once, and a captured graph
    can be replayed: no state is kept outside the pads.
    PTX ISA: `atom.cas`; special register %tid.x.
    """
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred beyond, again;
            .reg .u32 peer, index, found;
            .reg .u64 entry, pad, word;
            mov.u32 peer, %tid.x;
            setp.ge.u32 beyond, peer, $4;
            @beyond bra finished;
            mad.wide.u32 entry, peer, 8, $1;
            ld.global.u64 pad, [entry];
            add.u32 index, $2, $3;
            mad.wide.u32 word, index, 4, pad;
        put:
            atom.release.sys.global.cas.b32 found, [word], 0, 1;
            setp.ne.u32 again, found, 0;
            @again bra put;
            mad.wide.u32 entry, $3, 8, $1;
            ld.global.u64 pad, [entry];
            add.u32 index, $2, peer;
            mad.wide.u32 word, index, 4, pad;
        take:
            atom.acquire.sys.global.cas.b32 found, [word], 1, 0;
            setp.ne.u32 again, found, 1;
            @again bra take;
        finished:
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,r,~{memory}",
        [pads, first_slot, rank, world],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )
