"""`hangcheck lint`: static checks of group code. Reads source only: nothing is imported, and torch is not needed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simulator.cli import FINDINGS, OK, OneLineParser, whole_number
from simulator.engine.errors import UsageError, require
from simulator.lint.options import LintOptions, read_options
from simulator.lint.outputs.formats import FORMATS
from simulator.lint.rules.catalogue import RULES
from simulator.lint.run import Result, lint

_EPILOG = "Exit codes: 0 nothing found, 1 violations, 2 usage, 3 a fault of hangcheck itself."


def main(argv: Sequence[str]) -> int:
    """Lint with these arguments; violations go to stdout or to a file.

    Raises:
        UsageError: arguments or settings that make no sense.
    """
    args = _parser().parse_args(argv)
    if args.explain is not None:
        _print(_explanation(args.explain))
        return OK
    require(bool(args.paths), "give files or folders to lint (hangcheck lint --help lists the flags)")
    options = _options(args)
    result = lint(list(_python(args.paths)), options, jobs=args.jobs or None, parse_all=args.parse_all)
    nothing = result.files == 0 and not options.exclude
    require(not nothing, f"{', '.join(args.paths)}: no Python file was found; give files, or folders with some")
    _deliver(result, args)
    return FINDINGS if result.violations and not args.exit_zero else OK


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="hangcheck lint", description=__doc__, epilog=_EPILOG)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="Python files, and folders with some")
    parser.add_argument("--select", metavar="CODES", help="rules to look for, such as HC001,HC003, HC0 or ALL")
    parser.add_argument("--extend-select", metavar="CODES", help="rules to look for as well")
    parser.add_argument("--ignore", metavar="CODES", help="rules not to look for")
    parser.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="leave these out; repeatable")
    parser.add_argument("--config", metavar="FILE", help="settings (the nearest pyproject.toml above the paths)")
    parser.add_argument("--output-format", choices=FORMATS, default="text", help="how to show violations (text)")
    parser.add_argument("--output-file", metavar="FILE", help="where to (stdout)")
    parser.add_argument("--parse-all", action="store_true", help="syntax errors of all files in large trees too")
    parser.add_argument(
        "--jobs", type=whole_number, default=0, metavar="N", help="processes (one a CPU in large trees)"
    )
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 in spite of violations")
    parser.add_argument("--explain", metavar="CODE", help="say what a rule is for, and end")
    return parser


def _python(paths: Sequence[str]) -> Iterator[str]:
    """Notebooks are no source that is read here."""
    for path in paths:
        require(not path.endswith(".ipynb"), f"{path}: notebooks are not linted; give Python files, or folders")
        yield path


def _options(args: argparse.Namespace) -> LintOptions:
    """The settings of the project, with what the flags say in their place, or beside them."""
    config = None if args.config is None else Path(args.config)
    for path in args.paths:
        require(Path(path).exists(), f"{path}: there is no such file; give Python files or folders")
    options = read_options([Path(path).resolve() for path in args.paths], config)
    select = options.select if args.select is None else _codes(args.select)
    return replace(
        options, select=select, extend_select=(*options.extend_select, *_codes(args.extend_select)),
        ignore=(*options.ignore, *_codes(args.ignore)), exclude=(*options.exclude, *args.exclude),
    )  # fmt: skip


def _codes(text: str | None) -> tuple[str, ...]:
    return tuple(code for part in (text or "").split(",") if (code := part.strip()))


def _deliver(result: Result, args: argparse.Namespace) -> None:
    text = FORMATS[args.output_format](result)
    if args.output_file is None:
        _print(text)
        return
    try:
        Path(args.output_file).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(
            f"--output-file {args.output_file}: cannot be written ({error.strerror}); give another"
        ) from None


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)


def _explanation(code: str) -> str:
    rule = next((rule for rule in RULES if code in (rule.code, rule.name)), None)
    if rule is None:
        raise UsageError(f"--explain {code}: there is no such rule; there are {', '.join(rule.code for rule in RULES)}")
    default = "" if rule.on else "\n\nOff by default; --extend-select turns it on."
    return f"{rule.code} {rule.name}: {rule.summary}.\n\n{rule.why}{default}\n"
