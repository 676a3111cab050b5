"""Which files are read, and what is in the way of reading them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.engine.errors import UsageError
from simulator.lint.options import LintOptions
from simulator.lint.run import lint

BAD = "import torch.distributed as dist\ndef f(rank):\n    if rank:\n        dist.new_group([0])\n"
Tree = Callable[..., Path]


def codes(paths: list[str], **options: object) -> list[tuple[str, str]]:
    settings = LintOptions(root=Path.cwd(), **options)  # type: ignore[arg-type]
    return [(one.path, one.code) for one in lint(paths, settings).violations]


def test_syntax_errors_are_reported_and_the_rest_is_linted(tree: Tree) -> None:
    tree({"a.py": "def f(:\n", "b.py": BAD})
    assert codes(["."]) == [("a.py", "HC900"), ("b.py", "HC003")]
    (first, _) = lint(["."], LintOptions(root=Path.cwd())).violations
    assert (first.span.line, first.span.column, first.source) == (1, 7, "def f(:")


def test_encodings(tree: Tree) -> None:
    """A cookie, a byte order mark, bytes that do not fit, an unknown cookie, a null byte, an empty file."""
    root = tree({"empty.py": ""})
    (root / "cookie.py").write_bytes(b"# coding: latin-1\nx = '\xe9'\n" + BAD.encode())
    (root / "mark.py").write_bytes(b"\xef\xbb\xbf" + BAD.encode())
    (root / "broken.py").write_bytes(b"x = '\xe9'\n")
    (root / "unknown.py").write_bytes(b"# coding: klingon\n")
    (root / "null.py").write_bytes(b"x = 1\0\n")
    assert codes(["."]) == [
        ("broken.py", "HC900"), ("cookie.py", "HC003"), ("mark.py", "HC003"), ("null.py", "HC900"),
        ("unknown.py", "HC900"),
    ]  # fmt: skip


@pytest.mark.parametrize("deep", ["(" * 5000 + ")" * 5000, "0" + " + x" * 5000, "-" * 5000 + "x"])
def test_deep_nesting_is_said_and_the_rest_is_linted(deep: str, tree: Tree) -> None:
    """Whether the parser gives up, or a rule."""
    tree({"a.py": f"def f(rank_offset):\n    make({deep})\n", "b.py": BAD})
    assert codes(["."]) == [("a.py", "HC900"), ("b.py", "HC003")]


def test_columns_count_characters(tree: Tree) -> None:
    """Python counts bytes."""
    tree({"a.py": "import torch.distributed as dist\ndef f(rank):\n    x = 'äöü' if rank else dist.new_group([0])\n"})
    (one,) = lint(["a.py"], LintOptions(root=Path.cwd())).violations
    assert one.source[one.span.column - 1 : one.span.end_column - 1] == "dist.new_group([0])"


def test_windows_line_ends_and_form_feeds(tree: Tree) -> None:
    """They do not shift lines."""
    (tree({}) / "a.py").write_bytes(b"x = 1\r\n\x0c\r\n" + BAD.replace("\n", "\r\n").encode())
    (one,) = lint(["a.py"], LintOptions(root=Path.cwd())).violations
    assert (one.span.line, one.source.strip()) == (6, "dist.new_group([0])")


def test_links_are_read_once_and_cycles_end(tree: Tree) -> None:
    root = tree({"pkg/a.py": BAD})
    os.symlink(root / "pkg", root / "pkg" / "again")
    os.symlink(root / "pkg" / "a.py", root / "b.py")
    os.symlink(root / "nowhere.py", root / "dangling.py")
    assert len(codes(["."])) == 1
    assert codes(["pkg/again"]) == [("pkg/again/a.py", "HC003")]


def test_what_is_left_out(tree: Tree) -> None:
    """Hidden folders, environments, and what globs say; a file that is named is always read."""
    files = ["a.py", ".hidden/a.py", "env/a.py", "site-packages/a.py", "old/a.py", "gen/x/a.py", "gen/y/b.py"]
    tree(dict.fromkeys(files, BAD) | {"env/pyvenv.cfg": "", "notes.txt": BAD})
    assert [path for path, _ in codes(["."])] == ["a.py", "gen/x/a.py", "gen/y/b.py", "old/a.py"]
    assert [path for path, _ in codes(["."], exclude=("old", "gen/x/*"))] == ["a.py", "gen/y/b.py"]
    assert codes(["old/a.py"], exclude=("old",)) == [("old/a.py", "HC003")]
    assert [path for path, _ in codes(["."], per_file_ignores=(("gen/*", ("HC0",)),))] == ["a.py", "old/a.py"]


def test_a_path_that_is_not_there_is_usage(tree: Tree) -> None:
    tree({})
    with pytest.raises(UsageError, match="nowhere: there is no such file; give Python files or folders"):
        codes(["nowhere"])


def test_several_processes_find_the_same(tree: Tree) -> None:
    tree({f"m{n}.py": BAD for n in range(5)})
    options = LintOptions(root=Path.cwd())
    assert lint(["."], options, jobs=2) == lint(["."], options, jobs=1)


def test_nothing_is_imported_and_warnings_of_the_source_stay_there(tree: Tree) -> None:
    tree({"a.py": "raise SystemExit\nx = '\\d'\n" + BAD})
    assert codes(["a.py"]) == [("a.py", "HC003")]
