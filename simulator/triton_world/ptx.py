"""Inline assembly, read: PTX text and its constraints to instructions with resolved registers and labels.

    code = parse("{ .reg .u32 t; mov.u32 t, %tid.x; add.u32 $0, t, $1; }", "=r,r")

Not read: functions, `.param`, `.shared` and other declarations besides `.reg`; constant expressions.

Source: PTX ISA, "Syntax", "Instruction Set"; LLVM language reference, "Inline Asm Constraint String".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulator.triton_world.errors import PtxError
from simulator.triton_world.ptx_code import (
    Address,
    Code,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Target,
    Vector,
)
from simulator.triton_world.ptx_types import TYPES, Type

_LETTERS = {"c": "b8", "h": "b16", "r": "b32", "l": "b64", "f": "f32", "d": "f64", "b": "pred"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"([A-Za-z_$%][\w$%]*)\s*:(?!:)")
_GUARD = re.compile(r"@\s*(!?)\s*(%?[\w$]+)\s+(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$%][\w$%.]*$")
_ADDRESS = re.compile(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+)\s*)?\]$")


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None
    names: dict[str, Register] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    def register(self, name: str) -> Register | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def label(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.outer
        return None


def parse(asm: str, constraints: str) -> Code:
    """Read inline assembly.

    Raises:
        PtxError: it cannot be read; the text names the line.
    """
    return _Parser(constraints).parse(asm)


class _Parser:
    def __init__(self, constraints: str) -> None:
        self._registers: list[Type] = []
        self._scope = _Scope(None)
        self._waiting: list[tuple[int, int, str, _Scope, Instruction]] = []
        self._instructions: list[Instruction] = []
        self._outputs: list[Register] = []
        self._inputs: list[Register] = []
        self._declare_operands(constraints)

    def _declare_operands(self, constraints: str) -> None:
        for each in filter(None, (part.strip() for part in constraints.split(","))):
            if each.startswith("~"):
                continue
            letter = each.lstrip("=&*%+")
            if letter.isdigit():
                self._inputs.append(self._outputs[int(letter)])
                continue
            if letter not in _LETTERS or each.startswith("+"):
                raise PtxError(f"constraint {each!r} of the inline assembly is not known")
            kept = self._outputs if each.startswith("=") else self._inputs
            kept.append(self._new(TYPES[_LETTERS[letter]]))
        for number, register in enumerate((*self._outputs, *self._inputs)):
            self._scope.names[f"${number}"] = register

    def _new(self, of: Type) -> Register:
        self._registers.append(of)
        return Register(len(self._registers) - 1, of)

    def parse(self, asm: str) -> Code:
        for line, text in _statements(asm):
            if text == "{":
                self._scope = _Scope(self._scope)
            elif text == "}":
                if self._scope.outer is None:
                    raise PtxError(f"line {line}: a '}}' too many")
                self._scope = self._scope.outer
            elif text.endswith(":"):
                self._scope.labels[text[:-1].strip()] = len(self._instructions)
            elif text.startswith("."):
                self._directive(line, text)
            else:
                self._instructions.append(self._instruction(line, text))
        if self._scope.outer is not None:
            raise PtxError("a '{' is not closed")
        self._find_labels()
        return Code(tuple(self._instructions), tuple(self._registers), tuple(self._outputs), tuple(self._inputs))

    def _find_labels(self) -> None:
        for number, place, name, scope, instruction in self._waiting:
            found = scope.label(name)
            if found is None:
                raise PtxError(f"line {instruction.line}: {name!r} is neither a register nor a label")
            operands = list(self._instructions[number].operands)
            operands[place] = Target(found)
            old = self._instructions[number]
            self._instructions[number] = Instruction(
                old.opcode, old.modifiers, tuple(operands), old.guard, old.negated, old.line, old.text
            )

    def _directive(self, line: int, text: str) -> None:
        words = text.split(None, 1)
        if words[0] in (".loc", ".pragma"):
            return
        types = re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text, re.DOTALL)
        if types is None or types[1] not in TYPES:
            raise PtxError(f"line {line}: cannot read the directive {text!r}")
        for name in types[2].split(","):
            self._declare(line, name.strip(), TYPES[types[1]])

    def _declare(self, line: int, name: str, of: Type) -> None:
        many = re.match(r"(%?[\w$]+)\s*<\s*(\d+)\s*>$", name)
        if many is not None:
            for number in range(int(many[2])):
                self._scope.names[f"{many[1]}{number}"] = self._new(of)
        elif _NAME.match(name):
            self._scope.names[name] = self._new(of)
        else:
            raise PtxError(f"line {line}: cannot declare {name!r}")

    def _instruction(self, line: int, text: str) -> Instruction:
        guard, negated, rest = None, False, text
        guarded = _GUARD.match(text)
        if guarded is not None:
            guard, negated, rest = self._scope.register(guarded[2]), guarded[1] == "!", guarded[3]
            if guard is None or guard.type.kind != "pred":
                raise PtxError(f"line {line}: {guarded[2]!r} is no declared predicate")
        elif text.startswith("@"):
            raise PtxError(f"line {line}: cannot read {text!r}")
        name, _, operands = rest.partition(" ") if " " in rest else rest.partition("\t")
        parts = name.split(".")
        if parts[0] == "multimem" and len(parts) > 1:
            parts[:2] = [".".join(parts[:2])]
        shell = Instruction(parts[0], tuple(parts[1:]), (), guard, negated, line, " ".join(text.split()))
        read = tuple(self._operand(shell, place, each) for place, each in enumerate(_split(operands)))
        return Instruction(shell.opcode, shell.modifiers, read, guard, negated, line, shell.text)

    def _operand(self, at: Instruction, place: int, text: str) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(self._operand(at, place, each) for each in _split(text[1:-1])))
        if text.startswith("["):
            return self._address(at, place, text)
        if text.startswith("!"):
            register = self._scope.register(text[1:].strip())
            if register is None:
                raise PtxError(f"line {at.line}: {text[1:]!r} is no declared register")
            return Negated(register)
        if "|" in text:
            first, second = (self._operand(at, place, each.strip()) for each in text.split("|", 1))
            return Pair(first, second)
        if text == "_":
            return Sink()
        return self._name_or_number(at, place, text)

    def _address(self, at: Instruction, place: int, text: str) -> Address:
        match = _ADDRESS.match(text)
        base = None if match is None else self._operand(at, place, match[1])
        if match is None or not isinstance(base, Register | Immediate):
            raise PtxError(f"line {at.line}: cannot read the address {text!r}")
        return Address(base, int(match[2] or "0", 0))

    def _name_or_number(self, at: Instruction, place: int, text: str) -> Operand:
        register = self._scope.register(text)
        if register is not None:
            return register
        number = _number(text)
        if number is not None:
            return number
        if at.opcode == "bra" and _NAME.match(text):
            self._waiting.append((len(self._instructions), place, text, self._scope, at))
            return Sink()
        if text.startswith("%"):
            return Special(text[1:])
        raise PtxError(f"line {at.line}: {text!r} is not declared in {at.text!r}")


def _statements(asm: str) -> Iterator[tuple[int, str]]:
    """(line, statement): braces and labels are statements of their own."""
    asm = asm.replace("${:uid}", "0").replace("$$", "$")
    text = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), asm)
    at, line = 0, 1
    while at < len(text):
        if text[at].isspace() or text[at] == ";":
            line += text[at] == "\n"
            at += 1
            continue
        label = _LABEL.match(text, at)
        if text[at] in "{}":
            end = at + 1
        elif label is not None:
            end = label.end()
        else:
            end = text.find(";", at)
            if end < 0:
                raise PtxError(f"line {line}: no ';' after {text[at:].strip()!r}")
        yield line, " ".join(text[at:end].split())
        line += text.count("\n", at, end)
        at = end


def _split(operands: str) -> list[str]:
    """At the commas that no bracket encloses."""
    out, depth, start = [], 0, 0
    for at, char in enumerate(operands):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            out.append(operands[start:at].strip())
            start = at + 1
    last = operands[start:].strip()
    return [*out, last] if last else out


def _number(text: str) -> Immediate | None:
    sign, digits = (-1, text[1:].strip()) if text.startswith("-") else (1, text)
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", digits):
        return Immediate(sign * float(struct.unpack("<f", struct.pack("<I", int(digits[2:], 16)))[0]), 32)
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", digits):
        return Immediate(sign * float(struct.unpack("<d", struct.pack("<Q", int(digits[2:], 16)))[0]), 64)
    if re.fullmatch(r"0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[1-9]\d*U?|0U?", digits):
        return Immediate(sign * int(digits.rstrip("U"), 0))
    if re.fullmatch(r"0[0-7]+U?", digits):
        return Immediate(sign * int(digits.rstrip("U"), 8))
    if re.fullmatch(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+", digits):
        return Immediate(sign * float(digits))
    return None
