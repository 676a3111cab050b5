"""The PTX interpreter: what instructions compute, read as an assembler reads them, on many lanes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.triton_world.errors import NotModelled, PtxError
from simulator.triton_world.inline_asm import Result, run_on_elements
from simulator.triton_world.ptx import parse
from simulator.triton_world.ptx_compile import compile_asm
from simulator.triton_world.ptx_types import TYPES, decode, encode

U32, S32 = st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1)
U64, S64 = st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)
many = settings(deadline=None, max_examples=50)
PROGRAM: Any = SimpleNamespace(port=None, stack=lambda: (), polls_of=None)
DTYPES = {"r": "u4", "l": "u8", "h": "u2", "f": "f4", "d": "f8"}


def run(
    asm: str, constraints: str, *inputs: Sequence[Any], pack: int = 1, out: Sequence[str] | None = None
) -> list[Any]:
    """Run an assembly over elements; one list for each result."""
    letters = [each.lstrip("=&") for each in constraints.split(",")]
    results = [each for each in constraints.split(",") if each.startswith("=")]
    types = [np.dtype(each) for each in out or (DTYPES[each.lstrip("=&")] for each in results)]
    arrays = [
        given if isinstance(given, np.ndarray) else np.array(given, DTYPES[letter])
        for given, letter in zip(inputs, letters[len(results) :], strict=False)
    ]
    shape = arrays[0].shape if arrays else (1,)
    wanted = [Result(each, each.itemsize * 8) for each in types]
    return [
        each.tolist() for each in run_on_elements(PROGRAM, compile_asm(asm, constraints), arrays, wanted, shape, pack)
    ]


def wrap(value: int, bits: int, signed: bool = False) -> int:
    """A whole number as a register has it."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def quotient(a: int, b: int) -> int:
    """Rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: list[tuple[str, Callable[[int, int], int]]] = [
    ("add", lambda a, b: a + b),
    ("sub", lambda a, b: a - b),
    ("mul.lo", lambda a, b: a * b),
    ("min", min),
    ("max", max),
    ("div", lambda a, b: quotient(a, b) if b else -1),
    ("rem", lambda a, b: a - quotient(a, b) * b if b else a),
]


@pytest.mark.parametrize("name", [name for name, _ in BINARY])
@many
@given(pairs=st.lists(st.tuples(S64, S64), min_size=1, max_size=5))
def test_whole_numbers_wrap_around(name: str, pairs: list[tuple[int, int]]) -> None:
    """Every width and sign, against Python's numbers."""
    compute = dict(BINARY)[name]
    for bits, letter in ((16, "h"), (32, "r"), (64, "l")):
        for kind in "us":
            signed = kind == "s"
            left, right = ([wrap(pair[at], bits, signed) for pair in pairs] for at in (0, 1))
            got = run(
                f"{name}.{kind}{bits} $0, $1, $2;",
                f"={letter},{letter},{letter}",
                [wrap(a, bits) for a in left],
                [wrap(b, bits) for b in right],
            )
            assert got == [[wrap(compute(a, b), bits) for a, b in zip(left, right, strict=True)]], (name, kind, bits)


@many
@given(a=S32, b=S32, c=S64)
def test_products_have_a_low_a_high_and_a_wide_form(a: int, b: int, c: int) -> None:
    """mul and mad."""
    raw_a, raw_b, raw_c = [wrap(a, 32)], [wrap(b, 32)], [wrap(c, 64)]
    assert run("mul.hi.s32 $0, $1, $2;", "=r,r,r", raw_a, raw_b) == [[wrap(a * b >> 32, 32)]]
    assert run("mul.hi.u32 $0, $1, $2;", "=r,r,r", raw_a, raw_b) == [[raw_a[0] * raw_b[0] >> 32]]
    assert run("mul.wide.s32 $0, $1, $2;", "=l,r,r", raw_a, raw_b) == [[wrap(a * b, 64)]]
    assert run("mul.wide.u32 $0, $1, $2;", "=l,r,r", raw_a, raw_b) == [[raw_a[0] * raw_b[0]]]
    assert run("mad.wide.s32 $0, $1, $2, $3;", "=l,r,r,l", raw_a, raw_b, raw_c) == [[wrap(a * b + c, 64)]]
    assert run("mad.lo.s32 $0, $1, $2, $2;", "=r,r,r", raw_a, raw_b) == [[wrap(a * b + b, 32)]]
    assert run("mul.hi.u64 $0, $1, $1;", "=l,l", raw_c) == [[raw_c[0] ** 2 >> 64]]


@many
@given(value=U32, by=st.integers(0, 70))
def test_shifts_beyond_the_width_empty_the_register(value: int, by: int) -> None:
    """A signed one fills it with the sign."""
    assert run("shl.b32 $0, $1, $2;", "=r,r,r", [value], [by]) == [[(value << by) & 0xFFFFFFFF]]
    assert run("shr.u32 $0, $1, $2;", "=r,r,r", [value], [by]) == [[value >> by]]
    assert run("shr.s32 $0, $1, $2;", "=r,r,r", [value], [by]) == [[wrap(wrap(value, 32, True) >> by, 32)]]


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("name", COMPARISONS)
@many
@given(a=U32, b=U32)
def test_comparisons_know_signs(name: str, a: int, b: int) -> None:
    """setp with one and two results, and selp."""
    for kind in "us":
        holds = COMPARISONS[name](wrap(a, 32, kind == "s"), wrap(b, 32, kind == "s"))
        asm = f"""{{ .reg .pred p, q; setp.{name}.{kind}32 p|q, $2, $3;
                  selp.u32 $0, 1, 0, p; selp.u32 $1, 1, 0, q; }}"""
        assert run(asm, "=r,=r,r,r", [a], [b]) == [[int(holds)], [int(not holds)]]


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_nan_are_ordered_or_not(name: str) -> None:
    """An ordered one is false, an unordered one true."""
    asm = "{{ .reg .pred p; setp.{0}.f32 p, $1, $2; selp.u32 $0, 1, 0, p; }}"
    nan, one = np.array([np.nan], "f4"), np.array([1.0], "f4")
    assert run(asm.format(name), "=r,f,f", nan, one) == [[0]]
    assert run(asm.format(name + "u"), "=r,f,f", nan, one) == [[1]]
    assert run(asm.format(name), "=r,f,f", one, one) == [[int(COMPARISONS[name](1, 1))]]


def test_predicates_combine() -> None:
    """setp with a third operand, logic on predicates, and a negated one."""
    asm = """{
        .reg .pred p, q, r;
        setp.gt.u32 p, $1, 3;
        setp.lt.and.u32 q, $1, 8, p;
        not.pred r, q;
        selp.u32 $0, 10, 20, q;
        @!r add.u32 $0, $0, 1;
        @r add.u32 $0, $0, 2;
    }"""
    assert run(asm, "=r,r", [0, 4, 7, 8]) == [[22, 11, 11, 22]]


@pytest.mark.parametrize(
    ("text", "constraints", "given_", "want"),
    [
        ("cvt.u64.u32 $0, $1;", "=l,r", [0xFFFFFFFF], 0xFFFFFFFF),
        ("cvt.s64.s32 $0, $1;", "=l,r", [0xFFFFFFFF], 2**64 - 1),
        ("cvt.u32.u64 $0, $1;", "=r,l", [2**40 + 7], 7),
        ("cvt.u32.u8 $0, $1;", "=r,r", [0x1FF], 0xFF),
        ("cvt.s32.s8 $0, $1;", "=r,r", [0x80], 0xFFFFFF80),
        ("cvt.sat.u8.s32 $0, $1;", "=r,r", [wrap(-5, 32)], 0),
        ("cvt.rzi.s32.f32 $0, $1;", "=r,f", [-2.7], wrap(-2, 32)),
        ("cvt.rmi.s32.f32 $0, $1;", "=r,f", [-2.1], wrap(-3, 32)),
        ("cvt.rzi.u32.f32 $0, $1;", "=r,f", [1e20], 2**32 - 1),
        ("cvt.rzi.s32.f32 $0, $1;", "=r,f", [float("nan")], 0),
        ("cvt.rn.f32.s32 $0, $1;", "=f,r", [wrap(-7, 32)], -7.0),
        ("cvt.rn.f16.f32 $0, $1;", "=h,f", [1.0], 0x3C00),
        ("cvt.f32.bf16 $0, $1;", "=f,h", [0x4049], 3.140625),
        ("cvt.rn.bf16x2.f32 $0, $1, 0f3F800000;", "=r,f", [2.0], 0x40003F80),
        ("mov.b32 $0, 0f3F800000;", "=r,r", [0], 0x3F800000),
        ("fma.rn.f32 $0, $1, $1, 0f3F800000;", "=f,f", [3.0], 10.0),
        ("add.f16x2 $0, $1, $1;", "=r,r", [0x3C004000], 0x40004400),
        ("mul.bf16x2 $0, $1, $1;", "=r,r", [0x40003F80], 0x40803F80),
        ("cvta.to.global.u64 $0, $1;", "=l,l", [12345], 12345),
        ("cvta.global.u64 $0, $1;", "=l,l", [12345], 12345),
        ("neg.s32 $0, $1;", "=r,r", [5], wrap(-5, 32)),
        ("abs.s32 $0, $1;", "=r,r", [wrap(-5, 32)], 5),
        ("not.b32 $0, $1;", "=r,r", [0], 2**32 - 1),
        ("mov.u64 $0, -1;", "=l,r", [0], 2**64 - 1),
        ("add.u32 $0, $1, 0x10U;", "=r,r", [1], 17),
    ],
)
def test_conversions_and_moves(text: str, constraints: str, given_: list[Any], want: Any) -> None:
    """One instruction, one number."""
    assert run(text, constraints, given_) == [[want]]


def test_registers_are_packed_and_unpacked() -> None:
    """mov with braces: the first is the lowest."""
    asm = "{ .reg .b32 %t<2>; mov.b64 {%t0, %t1}, $1; mov.b64 $0, {%t1, %t0}; }"
    assert run(asm, "=l,l", [0x1111111122222222]) == [[0x2222222211111111]]
    assert run("{ .reg .b16 a, b; mov.b32 {a, b}, $1; cvt.u32.u16 $0, b; }", "=r,r", [0xABCD1234]) == [[0xABCD]]


def test_narrow_elements_are_packed_into_registers() -> None:
    """The example of Triton's documentation: four bytes in one register, four results of 32 bits."""
    asm = """
    {
        .reg .b8 tmp<4>;
        mov.b32 {tmp0, tmp1, tmp2, tmp3}, $8;
        cvt.u32.u8 $0, tmp0;
        cvt.u32.u8 $1, tmp1;
        cvt.u32.u8 $2, tmp2;
        cvt.u32.u8 $3, tmp3;
    }
    cvt.rn.f32.s32 $4, $0;
    cvt.rn.f32.s32 $5, $1;
    cvt.rn.f32.s32 $6, $2;
    cvt.rn.f32.s32 $7, $3;
    max.f32 $4, $4, $9;
    max.f32 $5, $5, $10;
    max.f32 $6, $6, $11;
    max.f32 $7, $7, $12;
    """
    constraints = "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r"
    a, b = np.arange(0, 160, 20, dtype=np.uint8), np.full(8, 70, np.float32)
    first, second = run(asm, constraints, a, b, pack=4, out=["i4", "f4"])
    assert first == a.tolist()
    assert second == [70.0, 70.0, 70.0, 70.0, 80.0, 100.0, 120.0, 140.0]


def test_lanes_loop_as_often_as_each_needs() -> None:
    """A loop with its own count for each lane, and a branch inside."""
    asm = """
    {
        .reg .u32 left, odd; .reg .pred done, skip;
        mov.u32 $0, 0;
        mov.u32 left, $1;
    again:
        setp.eq.u32 done, left, 0;
        @done bra out;
        and.b32 odd, left, 1;
        setp.eq.u32 skip, odd, 0;
        @skip bra next;
        add.u32 $0, $0, left;
    next:
        sub.u32 left, left, 1;
        bra.uni again;
    out:
    }
    """
    counts = [0, 1, 2, 5, 3, 5, 100]
    assert run(asm, "=&r,r", counts) == [[sum(range(1, count + 1, 2)) for count in counts]]


def test_scopes_hide_names_and_labels() -> None:
    """A name in braces is its own; labels may repeat in other braces."""
    asm = """
    { .reg .u32 t; mov.u32 t, 1; l: add.u32 $0, $1, t; { .reg .u32 t; mov.u32 t, 5; bra l; l: add.u32 $0, $0, t; } }
    { .reg .u32 t; mov.u32 t, 10; bra l; add.u32 $0, $0, 1000; l: add.u32 $0, $0, t; }
    """
    assert run(asm, "=r,r", [0]) == [[16]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("add.u32 $0, $1;", "2 operands, where 3 are needed"),
        ("add.u32 $0, $1, $7;", "'$7' is not declared"),
        ("mov.u64 $0, 1;", "a register of 32 bits is too narrow for .u64"),
        ("@p mov.u32 $0, 1;", "'p' is no declared predicate"),
        (".reg .u33 x;", "cannot read the directive"),
        ("setp.almost.u32 $0, $1, 1;", ".almost is not modelled"),
        ("ld.global.u32 $0, $1;", "an address stands in brackets"),
        ("ld.global.u32 $0, [$1];", "an address has 64 bits"),
        ("ld.global.v2.u32 $0, [$2];", "1 registers, where 2 are needed"),
        ("atom.add.sys.global.u16x $0, [$1], 1;", "it does not end in a type"),
        ("red.global.add.noscope.u32 [$1], 1;", ".noscope is not modelled"),
        ("bar.sync 1;", "only `bar.sync 0` is modelled"),
        ("fence.acq_rel;", "a fence needs a scope"),
        ("multimem.st.global.v8.f32 [$2], {$0,$0,$0,$0,$0,$0,$0,$0};", "type and vector make 256 bits"),
        ("mul.lo.u32 $0, [$1], 3;", "an operand cannot be read"),
        ("}", "a '}' too many"),
    ],
)
def test_what_an_assembler_would_refuse_is_refused(text: str, told: str) -> None:
    """With the instruction and what is wrong with it."""
    with pytest.raises((PtxError, NotModelled)) as caught:
        compile_asm(text, "=r,r,l")
    assert told in str(caught.value)


@pytest.mark.parametrize("constraints", ["=r,r,~{memory}", "=&r, r", "=r,0"])
def test_constraints_are_read_as_llvm_writes_them(constraints: str) -> None:
    """Clobbers, early clobbers, spaces, an operand tied to a result."""
    code = parse("mov.u32 $0, $1;", constraints)
    assert (len(code.outputs), len(code.inputs)) == (1, 1)
    assert (code.inputs[0] == code.outputs[0]) is constraints.endswith("0")


def test_a_wrong_number_of_operands_is_told() -> None:
    """Before anything runs."""
    with pytest.raises(PtxError, match="the constraints name 1 results and 2 operands; the call has 1 and 1"):
        run("mov.u32 $0, $1;", "=r,r,r", [1])


def test_comments_and_lines_are_counted() -> None:
    """The line of an instruction is the one of the text."""
    code = parse("/* one\ntwo */ mov.u32 $0, 1; // three ; { \n\n add.u32 $0, $0, 1; mov.u32\n $0,\n 2;", "=r")
    assert [each.line for each in code.instructions] == [2, 4, 4]
    assert [each.text for each in code.instructions] == ["mov.u32 $0, 1", "add.u32 $0, $0, 1", "mov.u32 $0, 2"]


@many
@given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=20))
def test_half_floats_keep_their_bits(bits: list[int]) -> None:
    """From bits to numbers and back; NaNs stay NaNs."""
    raw = np.array(bits, np.uint16)
    for name in ("f16", "bf16"):
        numbers = decode(raw, TYPES[name])
        again = encode(numbers, TYPES[name])
        assert np.array_equal(again[~np.isnan(numbers)], raw[~np.isnan(numbers)])
        assert np.isnan(decode(again, TYPES[name])[np.isnan(numbers)]).all()


@many
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_rounds_to_the_nearest_even(value: float) -> None:
    """As torch does."""
    import torch

    want = torch.tensor([value], dtype=torch.float32).to(torch.bfloat16).view(torch.int16).item()
    assert int(encode(np.array([value], np.float32), TYPES["bf16"]).view(np.int16)[0]) == want
