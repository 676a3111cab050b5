"""Kernels that simulated ranks launch in `test_triton_world`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import arange, load, store

from tests.unit import triton_device_functions as device

BEFORE = tl.constexpr(5)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """out = x + y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def nested(x, out, BLOCK: tl.constexpr):
    """Device functions of another module, a reduction of Triton's own, a chained comparison."""
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    whole = tl.sum(values, axis=0)
    some = tl.where((at > 0) & (at < 3), device.twice_and(values), device.twice_and(values, more=5))
    tl.store(out + at, some + tl.cdiv(whole.to(tl.int32), 2))


@triton.jit
def gather(buffers, pads, x, out, rank, WORLD: tl.constexpr, BLOCK: tl.constexpr, HOW: tl.constexpr):
    """Store this rank's block into all buffers, exchange signals, copy this rank's buffer out."""
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    for turn in tl.static_range(WORLD):
        buffer = device.pointer_at(buffers, (rank + turn) % WORLD, tl.float32)
        tl.store(buffer + rank * BLOCK + at, values)
    tl.debug_barrier()
    if HOW == "cas":
        device.exchange_by_cas(pads, rank, WORLD)
    elif HOW == "threads":
        device.exchange_by_threads(pads, rank, WORLD)
    else:
        device.exchange_by_elements(pads, rank, WORLD)
    tl.debug_barrier()
    buffer = device.pointer_at(buffers, rank, tl.float32)
    for peer in range(WORLD):
        there = peer * BLOCK + at
        tl.store(out + there, tl.load(buffer + there))


@triton.jit
def multicast_store(address, x, offset, BLOCK: tl.constexpr):
    """Store BLOCK words to all members: 16 bytes an element."""
    at = tl.arange(0, BLOCK // 4)
    words = x + at * 4
    a, b, c, d = tl.load(words), tl.load(words + 1), tl.load(words + 2), tl.load(words + 3)
    tl.inline_asm_elementwise(
        "multimem.st.relaxed.sys.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;",
        "=r,l,r,r,r,r",
        [address + offset + at * 16, a, b, c, d],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def multicast_sum(address, out, BLOCK: tl.constexpr):
    """Load the sum over all members, and add 1 to it in each."""
    at = tl.arange(0, BLOCK)
    here = address + at * 4
    total = tl.inline_asm_elementwise(
        "multimem.ld_reduce.relaxed.sys.global.add.f32 $0, [$1];",
        "=f,l",
        [here],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + at, total)
    tl.inline_asm_elementwise(
        "multimem.red.relaxed.sys.global.add.f32 [$1], 0f3F800000; mov.u32 $0, 0;",
        "=r,l",
        [here],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def multicast_halves(address, out, n, BLOCK: tl.constexpr):
    """Load the sum of 8 bfloat16 an element, accumulated in float32, masked as compilers do it; store it to all."""
    at = tl.arange(0, BLOCK)
    here = address + at * 16
    valid = (at < n).to(tl.int32)
    a, b, c, d = tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p0;
            setp.eq.s32 %p0, $5, 1;
            @!%p0 bra end;
            multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {$0, $1, $2, $3}, [$4];
        end:
        }
        """,
        "=r,=r,=r,=r,l,r",
        [here, valid],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )
    words = out + at * 4
    tl.store(words, a, mask=at < n)
    tl.store(words + 1, b, mask=at < n)
    tl.store(words + 2, c, mask=at < n)
    tl.store(words + 3, d, mask=at < n)
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p0;
            setp.eq.s32 %p0, $6, 1;
            @%p0 multimem.st.release.sys.global.v4.bf16x2 [$1], {$2, $3, $4, $5};
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r,r,r,r,r",
        [here, a, b, c, d, valid],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def plain_store(address, value):
    """Store through an address that is given as a number."""
    tl.store(address.to(tl.pointer_type(tl.int32)), value)


@triton.jit
def multimem_store(address):
    """The multicast instruction, on whatever address."""
    tl.inline_asm_elementwise(
        "multimem.st.weak.global.f32 [$1], 0f00000000; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def grid_barrier(counter, data, out):
    """Every program adds to a counter and waits for all others: read, by a loop of atomics."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    tl.store(data + program, program + 1)
    tl.atomic_add(counter, 1, sem="release", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < programs:
        pass
    total = 0
    for each in range(programs):
        total += tl.load(data + each)
    tl.store(out + program, total)


@triton.jit
def under_lock(lock, data, turns):
    """A lock by test and set; what it guards is read and written plainly."""
    for _ in range(turns):
        while tl.atomic_xchg(lock, 1, sem="acquire", scope="gpu") == 1:
            pass
        tl.store(data, tl.load(data) + 1)
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0, sem="release", scope="gpu")


@triton.jit
def wait_volatile(flag, out):
    """Wait by plain volatile loads."""
    seen = tl.load(flag, volatile=True)
    while seen == 0:
        seen = tl.load(flag, volatile=True)
    tl.store(out, seen)


@triton.jit
def look_at_most(flag, out, times):
    """A loop that gives up by itself."""
    looks = 0
    seen = 0
    while (seen == 0) & (looks < times):
        seen = tl.load(flag, volatile=True)
        looks += 1
    tl.store(out, looks)


@triton.jit
def consume(flag, data, out, chunks):
    """Each chunk waits for the same flag, which says how many are there; nothing is stored meanwhile."""
    total = 0
    for chunk in range(chunks):
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") <= chunk:
            pass
        total += tl.load(data + chunk)
    tl.store(out, total)


@triton.jit
def signal_one(slot, value):
    """One scalar compare-and-swap, with release, whose result nobody uses."""
    tl.atomic_cas(slot, 0, value, sem="release", scope="sys")


@triton.jit
def orders(word, wide, data, BLOCK: tl.constexpr):
    """One access of each kind, on lines of their own."""
    at = tl.arange(0, BLOCK)
    values = tl.load(data + at)
    tl.store(data + at, values)
    tl.store(word + 4, 7)
    tl.load(word + 4, volatile=True)
    tl.atomic_add(word, 1, sem="relaxed", scope="gpu")
    old = tl.atomic_add(word, 1, sem="acquire", scope="cta")
    tl.atomic_xchg(word + 1, old, sem="release", scope="sys")
    tl.atomic_cas(word + 2, 0, 5, sem="acq_rel", scope="sys")
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        """
        fence.acq_rel.sys;
        membar.gl;
        st.release.gpu.global.u32 [$1], 9;
        mov.u32 $0, 0;
        """,
        "=r,l",
        [wide],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def by_one_thread(count, THREAD: tl.constexpr):
    """Only one thread takes the branch, and adds 1."""
    if device.thread() == THREAD:
        tl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.u32 [$1], 1; mov.u32 $0, 0;",
            "=r,l",
            [count],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def by_threads(out, table, n):
    """Arithmetic on the number of the thread, as an address of its own for each, below n."""
    number = device.thread()
    doubled = number * 2 + 1
    if number < n:
        value = tl.load(table + number)
        tl.inline_asm_elementwise(
            "st.global.b32 [$1], $2; mov.u32 $0, 0;",
            "=r,l,r",
            [out + number, doubled + value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def barrier_in_branch(x):
    """Not all threads come to the barrier."""
    if device.thread() < 8:
        tl.debug_barrier()


@triton.jit
def tensor_of_thread(x, BLOCK: tl.constexpr):
    """The number of a thread is no element of a tensor."""
    tl.store(x + tl.arange(0, BLOCK), device.thread())


@triton.jit
def barrier_in_asm(x):
    """Threads meet in the assembly: each reads what its neighbour stored before."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .u32 t, other, got; .reg .u64 at;
            mov.u32 t, %tid.x;
            mad.wide.u32 at, t, 4, $1;
            st.global.u32 [at], t;
            bar.sync 0;
            xor.b32 other, t, 1;
            mad.wide.u32 at, other, 4, $1;
            ld.global.u32 got, [at];
            bar.sync 0;
            mad.wide.u32 at, t, 4, $1;
            st.global.u32 [at], got;
            mov.u32 $0, 0;
        }
        """,
        "=r,l",
        [x],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def asm(x, TEXT: tl.constexpr, CONSTRAINTS: tl.constexpr):
    """Any assembly with one address."""
    tl.inline_asm_elementwise(TEXT, CONSTRAINTS, [x], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def asserting(x, n):
    """A device assert, and a loop that fails in one program."""
    tl.device_assert(n < 5, "n is too large")
    tl.store(x + tl.program_id(0), n)


@triton.jit
def typed(wide: tl.int64, narrow: tl.int32, out):
    """Integers have the types of their annotations."""
    tl.static_assert(wide.dtype == tl.int64)
    tl.static_assert(narrow.dtype == tl.int32)
    tl.store(out, wide + narrow)


@triton.jit
def grid_of_three(out):
    """Program numbers along three axes."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + (x * tl.num_programs(1) + y) * tl.num_programs(2) + z, x * 100 + y * 10 + z)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def tuned(out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Writes what it was configured with."""
    tl.store(out, BLOCK)
    if EVEN:
        tl.store(out + 1, 1)


@triton.jit
def until_the_clock(flag, out):
    """Look at a flag until a microsecond has passed."""
    looks = tl.inline_asm_elementwise(
        """
        {
            .reg .u64 start, now; .reg .u32 seen; .reg .pred set, late;
            mov.u64 start, %globaltimer;
        look:
            ld.acquire.sys.global.u32 seen, [$1];
            setp.ne.u32 set, seen, 0;
            @set bra found;
            mov.u64 now, %globaltimer;
            sub.u64 now, now, start;
            setp.gt.u64 late, now, 1000;
            @!late bra look;
            mov.u32 $0, 2;
            bra over;
        found:
            mov.u32 $0, 1;
        over:
        }
        """,
        "=&r,l",
        [flag],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out, looks)


@triton.jit
def by_name(x, out, BLOCK: tl.constexpr):
    """Operations that the module imported by name, a global that is defined before, one defined after."""
    at = arange(0, BLOCK)
    store(out + at, load(x + at) * BEFORE + AFTER)


AFTER = tl.constexpr(7)


def make_closure(number):
    """A kernel that uses a variable of the function around it."""

    @triton.jit
    def closure(out):
        """Stores the number."""
        text = """
        def looks like a definition, but is none
        """
        tl.static_assert(len(text) > 0)
        tl.store(out, number)

    return closure


@triton.jit
def described(x, out, M: tl.constexpr, N: tl.constexpr):
    """Reads through a descriptor from the host, writes through one made here; elements outside are padded."""
    block = x.load([0, 0])
    made = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[4, 8])
    made.store([0, 0], block + 1)


@triton.jit
def atomic_words(word, out):
    """Operations of Triton 3.9 and newer."""
    tl.atomic_store(word, 3, sem="release", scope="sys")
    tl.store(out, tl.atomic_load(word, sem="acquire", scope="sys"))


@triton.jit
def poll(word, out, LIMIT: tl.constexpr):
    """Wait until the word is 3."""
    tl.store(out, tl.atomic_poll(word, 3, sem="acquire", scope="sys", timeout_ns=LIMIT).to(tl.int32))


@triton.jit
def every_float(x, out, BLOCK: tl.constexpr):
    """Division by zero and overflow are no warnings on a device."""
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(out + at, values / (values - values) + tl.exp(values * 1e9))


@triton.jit
def wait_plainly(flag, out):
    """A loop of plain loads: a compiler may keep the first value, but mostly does not."""
    while tl.load(flag) == 0:
        pass
    tl.store(out, 1)
