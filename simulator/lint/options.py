"""What is looked for and where: `[tool.hangcheck.lint]` of a pyproject.toml, under the flags of the command."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from simulator.engine.errors import UsageError, require


@dataclass(frozen=True, slots=True, kw_only=True)
class LintOptions:
    """Settings of one run; those of a pyproject.toml have dashes for the underscores."""

    select: tuple[str, ...] = ()
    """Codes, or beginnings of codes, to look for; empty: all that are on by default."""
    extend_select: tuple[str, ...] = ()
    """Codes to look for as well."""
    ignore: tuple[str, ...] = ()
    """Codes not to look for."""
    exclude: tuple[str, ...] = ()
    """Globs of files and folders to leave out, relative to the pyproject.toml or to the working directory."""
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """From globs to the codes not to look for in those files."""
    parameters: tuple[str, ...] = ("rank_offset", "recovered_rank", "max_world_size")
    """Parameters that have to be passed on."""
    constructors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Group constructors outside the linted tree, each with the parameters that it accepts."""
    signature_paths: tuple[str, ...] = ()
    """Files and folders whose signatures count although they are not linted."""
    offset: str = "rank_offset"
    """The parameter that shifts rank lists."""
    probes: tuple[str, ...] = ("in_the_same_node_as",)
    """Functions that ask the group which ranks share a node."""
    settings_readers: tuple[str, ...] = ("get_server_args", "get_global_server_args")
    """Functions that read settings which may not be there yet."""
    root: Path = Path()
    """What globs and paths are relative to."""

    def codes(self, known: Mapping[str, bool]) -> frozenset[str]:
        """Codes to look for, of those that are known, each with whether it is on by default.

        Raises:
            UsageError: a code that there is not.
        """
        for given in (*self.select, *self.extend_select, *self.ignore):
            fits = given == "ALL" or any(code.startswith(given) for code in known)
            require(fits, f"{given}: there is no such rule; give some of {', '.join(known)}, or ALL")
        wanted = [code for code, on in known.items() if _fits(code, self.select) or (on and not self.select)]
        wanted += [code for code in known if _fits(code, self.extend_select)]
        return frozenset(code for code in wanted if not _fits(code, self.ignore))

    def excludes(self, file: Path) -> bool:
        """Whether a file or folder is left out."""
        return any(matches(file, pattern, self.root) for pattern in self.exclude)

    def ignored_in(self, file: Path) -> tuple[str, ...]:
        """Codes not to look for in this file."""
        found = [codes for pattern, codes in self.per_file_ignores if matches(file, pattern, self.root)]
        return tuple(code for codes in found for code in codes)


def _fits(code: str, given: Sequence[str]) -> bool:
    return any(one == "ALL" or code.startswith(one) for one in given)


def matches(file: Path, pattern: str, root: Path) -> bool:
    """A pattern without a slash fits any part of the path, one with a slash a path from the root or above the file.

    `*` stands for slashes too.
    """
    relative = file.relative_to(root) if file.is_relative_to(root) else file
    wanted = pattern.rstrip("/").removeprefix("./")
    if "/" not in wanted:
        return any(fnmatch(part, wanted) for part in relative.parts)
    return any(fnmatch(str(one), wanted) or fnmatch(str(one), f"*/{wanted}") for one in (relative, *relative.parents))


def read_options(paths: Sequence[Path], config: Path | None) -> LintOptions:
    """The settings for these absolute paths: of `config`, or of the nearest pyproject.toml above all of them.

    Raises:
        UsageError: a file that cannot be read, or settings that make no sense.
    """
    if config is not None:
        return _options(_table(config, wanted=True), config)
    for folder in _common(paths):
        file = folder / "pyproject.toml"
        if file.is_file() and (table := _table(file, wanted=False)) is not None:
            return _options(table, file)
    return LintOptions(root=Path.cwd())


def _common(paths: Sequence[Path]) -> list[Path]:
    """Folders around all of the paths, innermost first."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    return [folder for folder in (folders[0], *folders[0].parents) if all(p.is_relative_to(folder) for p in folders)]


def _table(file: Path, *, wanted: bool) -> dict[str, Any] | None:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a pyproject.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: no valid TOML ({error}); repair it, or give another one with --config") from None
    table = document.get("tool", {}).get("hangcheck", {}).get("lint")
    require(table is not None or not wanted, f"{file}: has no table [tool.hangcheck.lint]; add one")
    return table if isinstance(table, dict) else None


def _options(table: dict[str, Any] | None, file: Path) -> LintOptions:
    known = {field.name.replace("_", "-"): field.name for field in fields(LintOptions) if field.name != "root"}
    given: dict[str, Any] = {}
    for key, value in (table or {}).items():
        require(key in known, f"{file}: [tool.hangcheck.lint] has no setting {key!r}; there are {', '.join(known)}")
        given[known[key]] = _value(known[key], value, f"{file}: {key}")
    return replace(LintOptions(root=file.resolve().parent), **given)


def _value(name: str, value: Any, where: str) -> Any:
    if name == "offset":
        require(isinstance(value, str), f"{where}: give a text")
        return value
    if name in ("constructors", "per_file_ignores"):
        require(isinstance(value, dict), f"{where}: give a table from names to lists of texts")
        return tuple((key, _texts(inner, f"{where}.{key}")) for key, inner in value.items())
    return _texts(value, where)


def _texts(value: Any, where: str) -> tuple[str, ...]:
    require(isinstance(value, list) and all(isinstance(one, str) for one in value), f"{where}: give a list of texts")
    return tuple(value)
