"""The command `hangcheck`: picks a sub-command and turns what comes of it into an exit code.

    0    nothing is wrong
    1    findings
    2    usage: one line on stderr says what was given and what would do
    3    a fault of hangcheck itself, never of the code under test
    130  interrupted

A sub-command is a function from its arguments to an exit code, in a module that is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import NamedTuple, NoReturn

from simulator.engine.errors import UsageError

OK, FINDINGS, USAGE, FAULT, INTERRUPTED = 0, 1, 2, 3, 128 + signal.SIGINT


class Command(NamedTuple):
    """One sub-command: `module` has a function `main(arguments) -> exit code`."""

    help: str
    module: str


COMMANDS = {
    "demo": Command("the joiner deadlock and the unguarded probe, each with its repair", "simulator.scenarios.demo"),
    "run": Command("a torchrun command line, all of its ranks simulated", "simulator.run_command"),
    "explore": Command("the same under many schedules: does it matter who is slow?", "simulator.explore_command"),
    "replay": Command("one of these schedules again", "simulator.replay_command"),
    "lint": Command("static checks of group code; reads source only", "simulator.lint.command"),
    "faults": Command("what `run --fault` and `explore --fault` can inject", "simulator.faults_command"),
}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`s, without the usage text in front."""

    def error(self, message: str) -> NoReturn:
        faults = message.startswith("argument --fault:")
        where = "hangcheck faults" if faults else f"{self.prog} --help"
        raise UsageError(f"{message} ({where} lists what there is)")


def whole_number(text: str) -> int:
    """An argument that is a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, 0 or more")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `hangcheck` with these arguments (default: those of the process) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = arguments[:1] == ["--debug"]
    try:
        return _dispatch(arguments)
    except UsageError as error:
        return _complain(USAGE, f"error: {error}")
    except KeyboardInterrupt as error:
        return _complain(INTERRUPTED, str(error) or "interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return FINDINGS
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _complain(FAULT, _fault_text(error, arguments, debug))


def _dispatch(arguments: Sequence[str]) -> int:
    parsed = _parser().parse_args(arguments)
    if parsed.command is None:
        raise UsageError(f"give a command: {', '.join(COMMANDS)}")
    return _entry(parsed.command)(parsed.arguments)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = OneLineParser(
        prog="hangcheck",
        description="Run real torch.distributed code for N ranks in one process, and be told who waits for whom.",
        epilog=f"commands:\n{listed}\n\nexit codes: 0 ok, 1 findings, 2 usage, 3 a fault of hangcheck itself",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hangcheck {_version()}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a fault of hangcheck itself")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="see `hangcheck COMMAND --help`")
    return parser


def _version() -> str:
    try:
        return metadata.version("hangcheck")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _entry(name: str) -> Callable[[Sequence[str]], int]:
    module = COMMANDS[name].module
    try:
        entry: Callable[[Sequence[str]], int] = import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"{name}: not part of this installation ({module} is missing); reinstall hangcheck") from None
    return entry


def _complain(code: int, text: str) -> int:
    print(f"hangcheck: {text}", file=sys.stderr)
    return code


def _fault_text(error: Exception, arguments: Sequence[str], debug: bool) -> str:
    message = " ".join(str(error).split())
    advice = "" if debug else f"; `hangcheck --debug {arguments[0] if arguments else ''} ...` shows the traceback"
    return f"fault of hangcheck itself, not of your code: {type(error).__name__}: {message}; please report it{advice}"
