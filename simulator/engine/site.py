"""Where in user code a call was made.

A frame counts as user code unless it belongs to torch, to the standard library or to the simulator.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple


class Frame(NamedTuple):
    """One line of user code: `file` is absolute, `line` counts from 1."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shorten(self.file)}:{self.line} in {self.function}"

    @property
    def place(self) -> str:
        """`file:line`, the file relative to the working directory where it lies below it."""
        return f"{shorten(self.file)}:{self.line}"


OWN_PACKAGES = ("engine", "torch_world", "analysis", "report", "exploration", "triton_world", "faults")
"""Packages of the simulator that are never user code; its scenarios are."""

Stack = tuple[Frame, ...]
"""User frames, innermost first."""


def shorten(path: str) -> str:
    """The path relative to the working directory where it lies below it, else from its package root on."""
    here = os.path.join(os.path.realpath(os.curdir), "")
    if path.startswith(here):
        return path[len(here) :]
    marker = f"{os.sep}site-packages{os.sep}"
    _, found, rest = path.rpartition(marker)
    return rest if found else path


def _package_dir(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else os.path.dirname(spec.origin)


def _library_dirs() -> tuple[str, ...]:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = [os.path.join(here, part) for part in OWN_PACKAGES]
    libraries = ("torch", "simpy", "greenlet", "triton")
    named = [*own, *(d for d in map(_package_dir, libraries) if d)]
    return (*(os.path.join(d, "") for d in named), *_decorating_files())


def _decorating_files() -> tuple[str, ...]:
    """Modules whose wrappers stand between a user's line and torch: `@deprecated` of typing_extensions."""
    spec = importlib.util.find_spec("typing_extensions")
    return () if spec is None or spec.origin is None else (spec.origin,)


class SiteRecorder:
    """Captures user stacks cheaply: each (code, line) is turned into a Frame once."""

    def __init__(self, depth_max: int = 6) -> None:
        self._depth_max = depth_max
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._library = _library_dirs()
        self._own_files = tuple(os.path.join(here, f) for f in os.listdir(here) if f.endswith(".py"))
        self._own_dirs = tuple(os.path.join(here, part, "") for part in OWN_PACKAGES)
        self._stdlib = os.path.join(sysconfig.get_paths()["stdlib"], "")
        self._is_user: dict[CodeType, bool] = {}
        self._frames: dict[tuple[CodeType, int], Frame] = {}
        self._stacks: dict[Stack, Stack] = {}
        self._recent: tuple[FrameType | None, dict[int, Stack]] = (None, {})

    def capture(self, skip: int = 1) -> Stack:
        """The user frames of the caller, innermost first, `depth_max` at most."""
        return self.of_frame(sys._getframe(skip + 1))

    def of_frame(self, frame: FrameType | None) -> Stack:
        """The user frames from `frame` outwards.

        While a frame is alive its callers stay where they are, so the stacks of the frame asked for last are kept, by
        line: a loop that creates a thousand groups walks its callers once.
        """
        is_user = self._is_user
        while frame is not None:
            code = frame.f_code
            known = is_user.get(code)
            if known or (known is None and self.is_user(code)):
                break
            frame = frame.f_back
        else:
            return ()
        if self._recent[0] is not frame:
            self._recent = (frame, {})
        line = frame.f_lineno
        stack = self._recent[1].get(line)
        if stack is None:
            stack = self._recent[1][line] = self._walk(frame)
        return stack

    def forget(self) -> None:
        """Let go of the frame that was asked for last."""
        self._recent = (None, {})

    def _walk(self, frame: FrameType | None) -> Stack:
        """Called at each operation of each rank, so it does its work in one frame."""
        is_user, frames, left = self._is_user, self._frames, self._depth_max
        out: list[Frame] = []
        while frame is not None and left:
            code = frame.f_code
            known = is_user.get(code)
            if known or (known is None and self.is_user(code)):
                found = frames.get((code, frame.f_lineno))
                out.append(self._frame(code, frame.f_lineno) if found is None else found)
                left -= 1
            frame = frame.f_back
        stack = tuple(out)
        return self._stacks.setdefault(stack, stack)

    def is_user(self, code: CodeType) -> bool:
        """Whether a code object is the user's."""
        known = self._is_user.get(code)
        if known is None:
            known = self._is_user[code] = self._judge(code.co_filename)
        return known

    def trim(self, error: BaseException) -> None:
        """Take the simulator's own frames out of the tracebacks of an exception and of those that led to it."""
        seen: set[int] = set()
        pending: list[BaseException | None] = [error]
        while pending:
            current = pending.pop()
            if current is None or id(current) in seen:
                continue
            seen.add(id(current))
            current.__traceback__ = self._trimmed(current.__traceback__)
            pending += [current.__cause__, current.__context__]

    def _trimmed(self, whole: TracebackType | None) -> TracebackType | None:
        links: list[TracebackType] = []
        while whole is not None:
            if not self._is_own(whole.tb_frame.f_code.co_filename):
                links.append(whole)
            whole = whole.tb_next
        kept: TracebackType | None = None
        for link in reversed(links):
            kept = TracebackType(kept, link.tb_frame, link.tb_lasti, link.tb_lineno)
        return kept

    def _is_own(self, filename: str) -> bool:
        return filename in self._own_files or filename.startswith(self._own_dirs)

    def _frame(self, code: CodeType, line: int) -> Frame:
        key = (code, line)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = Frame(os.path.abspath(code.co_filename), line, code.co_qualname)
        return found

    def _judge(self, filename: str) -> bool:
        if filename.startswith("<") or self._is_own(filename):
            return False
        if filename.startswith(self._library):
            return False
        in_stdlib = filename.startswith(self._stdlib) and "site-packages" not in filename
        return not in_stdlib
