"""Comments that silence a violation: `# hangcheck: ignore[HC003] members only, the others have ended`.

A comment speaks for the violations whose span has its line, and, on a line of its own, for those that begin in the next
line of code. Without a code or a reason it silences nothing.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from io import StringIO

from simulator.lint.source import Source
from simulator.lint.violations import Certainty, Span, Violation

INCOMPLETE, UNUSED = "HC901", "HC902"
IGNORE_WORD = "hangcheck:"
_MARK = re.compile(r"#\s*hangcheck:\s*ignore\b")
_COMMENT = re.compile(r"#\s*hangcheck:\s*ignore\[\s*(?P<codes>[\w\s,]+?)\s*\]\s*(?P<reason>.*)")


@dataclass(frozen=True, slots=True)
class Ignore:
    """One comment.

    Attributes:
        lines: the lines that it speaks for.
    """

    path: str
    span: Span
    source: str
    lines: tuple[int, ...]
    codes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def works(self) -> bool:
        return bool(self.codes and self.reason)

    def silences(self, violation: Violation) -> bool:
        """Whether the comment speaks for a violation, and says why."""
        own = {*range(violation.span.line, violation.span.end_line + 1)}
        fits = violation.path == self.path and violation.code in self.codes
        return fits and self.works and bool(own.intersection(self.lines))


def ignores_in(source: Source) -> tuple[Ignore, ...]:
    """All such comments of a file; texts that look like one are none."""
    if IGNORE_WORD not in source.text:
        return ()
    try:
        tokens = list(tokenize.generate_tokens(StringIO(source.text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return ()
    return tuple(_ignore(source, token) for token in tokens if _is_comment(token))


def _is_comment(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT and _MARK.match(token.string) is not None


def _ignore(source: Source, token: tokenize.TokenInfo) -> Ignore:
    (line, start), (_, end) = token.start, token.end
    lines = (line,) if token.line[:start].strip() else (line, _next_code(source.lines, line))
    found = _COMMENT.match(token.string)
    codes = tuple(re.split(r"[\s,]+", found["codes"])) if found else ()
    return Ignore(
        source.path, Span(line, start + 1, line, end + 1), source.line(line), lines, codes,
        found["reason"].strip() if found else "",
    )  # fmt: skip


def _next_code(lines: Sequence[str], line: int) -> int:
    """The number of the next line that is neither empty nor a comment."""
    following = range(line + 1, len(lines) + 1)
    return next((n for n in following if lines[n - 1].strip() and not lines[n - 1].lstrip().startswith("#")), line)


def silence(
    violations: Iterable[Violation], ignores: Sequence[Ignore], known: Set[str], active: Set[str]
) -> Iterator[Violation]:
    """Violations that no comment silences, and those of the comments themselves.

    known: all codes there are; active: those that were looked for, without which a comment cannot be unused.
    """
    by_path: dict[str, list[Ignore]] = {}
    for ignore in ignores:
        by_path.setdefault(ignore.path, []).append(ignore)
    used: set[tuple[int, str]] = set()
    for violation in violations:
        silencing = [one for one in by_path.get(violation.path, ()) if one.silences(violation)]
        used.update((id(one), violation.code) for one in silencing)
        if not silencing:
            yield violation
    for ignore in ignores:
        yield from _of_comment(ignore, used, known, active)


def _of_comment(ignore: Ignore, used: Set[tuple[int, str]], known: Set[str], active: Set[str]) -> Iterator[Violation]:
    if not ignore.works:
        if INCOMPLETE in active:
            yield _violation(ignore, INCOMPLETE, "a comment that ignores without saying what and why silences nothing",
                             "write `# hangcheck: ignore[CODE] reason`")  # fmt: skip
        return
    for code in ignore.codes:
        if code not in known and UNUSED in active:
            yield _violation(ignore, UNUSED, f"there is no rule {code}", "remove the code, or name another rule")
        elif code in active and (id(ignore), code) not in used and UNUSED in active:
            yield _violation(ignore, UNUSED, f"nothing here breaks {code}", "remove the code from the comment")


def _violation(ignore: Ignore, code: str, message: str, remedy: str) -> Violation:
    return Violation(
        path=ignore.path, span=ignore.span, code=code, message=message, remedy=remedy, certainty=Certainty.CAUSE,
        source=ignore.source,
    )  # fmt: skip
