"""`hangcheck replay`: a schedule that `hangcheck explore` has written, run again."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from simulator.cli import FINDINGS, OK, OneLineParser
from simulator.engine.errors import UsageError
from simulator.job_arguments import parsers, print_text, stdout_to_stderr, write_file
from simulator.progress import Progress
from simulator.run_command import job_and_options


def main(argv: Sequence[str]) -> int:
    """Run the schedule; the report goes to stdout, byte for byte as `explore` printed it.

    Raises:
        UsageError: no schedule, or one that does not fit the program any more.
    """
    args = _parser().parse_args(argv)
    from simulator.exploration.schedule import Schedule
    from simulator.report.exploration import render_schedule
    from simulator.report.json import render_json

    schedule = Schedule.from_text(_read(args.file))
    with _variables(schedule.program) as words:
        torchrun, parser = parsers("run", __doc__)
        job, options = job_and_options(parser.parse_args(words), torchrun)
    from simulator.launcher import run_job

    replay = shlex.join(["hangcheck", "replay", args.file])
    with Progress(args.progress) as progress, stdout_to_stderr() if args.json else nullcontext():
        outcome = run_job(job, replay=replay, on_tick=progress.tick, delays=schedule, **options)
    if args.trace:
        write_file("--trace", args.trace, outcome.trace.to_text())
    print_text(render_json(outcome) if args.json else render_schedule(outcome, schedule.delays))
    return OK if outcome.ok else FINDINGS


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="hangcheck replay", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="the schedule")
    parser.add_argument("--json", action="store_true", help="JSON on stdout; what the ranks print goes to stderr")
    parser.add_argument("--trace", metavar="FILE", help="write what happened, event by event, to this file")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help="a line on stderr during long runs")
    return parser


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a schedule") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: no text; give a schedule") from None


@contextmanager
def _variables(program: str) -> Iterator[list[str]]:
    """The arguments of the command, while the variables that stand before it are set.

    Raises:
        UsageError: a command of another kind.
    """
    words = shlex.split(program)
    count = next((index for index, word in enumerate(words) if not word.startswith("PET_")), len(words))
    if words[count : count + 2] != ["hangcheck", "run"]:
        raise UsageError(f"the schedule is not one of a script; run its program: {program or '(it names none)'}")
    given = {name: value for name, _, value in (word.partition("=") for word in words[:count])}
    kept = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield words[count + 2 :]
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
