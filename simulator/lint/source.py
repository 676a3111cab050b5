"""One file of source: its text, its lines and its tree, or why there is none.

Files are read as Python reads them: the cookie in the first two lines or a byte order mark says the encoding. Syntax
newer than the Python that runs the linter is a syntax error here. Notebooks are not read.
"""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from simulator.lint.violations import Certainty, Span, Violation

UNREADABLE = "HC900"
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Source:
    """A file that Python can parse."""

    path: str
    """As shown, with forward slashes."""
    file: Path
    """Absolute."""
    text: str
    lines: list[str]
    tree: ast.Module

    def line(self, number: int) -> str:
        """A line by its number, counted from 1, without its end."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""


def read_bytes(file: Path, path: str) -> bytes | Violation:
    """The bytes of a file."""
    try:
        return file.read_bytes()
    except OSError as error:
        return _unreadable(path, f"cannot be read ({error.strerror})", 1, 1)


def parse(data: bytes, file: Path, path: str) -> Source | Violation:
    """Decode and parse one file; what is in the way becomes a violation."""
    try:
        text = _decode(data)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return _unreadable(path, f"cannot be decoded ({_reason(error)})", 1, 1)
    lines = _NEWLINE.split(text)
    try:
        return Source(path, file, text, lines, _parse(text))
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        return _unreadable(path, f"syntax error: {error.msg}", line, max(column, 1), lines)
    except ValueError as error:
        return _unreadable(path, f"cannot be parsed ({error})", 1, 1)
    except (RecursionError, MemoryError):
        return too_deep(path)


def too_deep(path: str) -> Violation:
    """The violation of a file that is nested too deeply to be read."""
    return _unreadable(path, "cannot be checked (nested too deeply)", 1, 1)


def _decode(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
    return data.decode(encoding)


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the code that is read, such as invalid escapes
        return ast.parse(text)


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, UnicodeDecodeError) else str(error)


def _unreadable(path: str, why: str, line: int, column: int, lines: list[str] | None = None) -> Violation:
    shown = lines[line - 1] if lines and 0 < line <= len(lines) else ""
    return Violation(
        path=path, span=Span(line, column, line, column), code=UNREADABLE, message=why, certainty=Certainty.CAUSE,
        remedy="repair the file, or leave it out with --exclude; nothing in it was checked", source=shown,
    )  # fmt: skip
