"""Which files are linted: those that are named, and all `*.py` below folders.

Links to folders are not followed; a file that several names lead to is read once. Hidden folders, `__pycache__`,
`node_modules`, `site-packages` and virtual environments below a named folder are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.engine.errors import require
from simulator.lint.options import LintOptions

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


def files_below(paths: Sequence[str], options: LintOptions) -> dict[Path, str]:
    """Real files with the names to show, in order.

    Raises:
        UsageError: a path that is not there.
    """
    found: dict[Path, str] = {}
    for given in paths:
        path = Path(given)
        require(path.exists(), f"{given}: there is no such file; give Python files or folders")
        for file in _walk(path, options) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file.as_posix())
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _walk(folder: Path, options: LintOptions) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _is_wanted(here / name, options))
        for name in sorted(names):
            file = here / name
            if name.endswith(".py") and file.is_file() and not options.excludes(file.absolute()):
                yield file


def _is_wanted(folder: Path, options: LintOptions) -> bool:
    if folder.name in _SKIPPED or folder.name.startswith(".") or (folder / "pyvenv.cfg").exists():
        return False
    return not options.excludes(folder.absolute())
