"""`hangcheck explore`: a torchrun command line under many schedules."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.cli import FINDINGS, OK, OneLineParser, whole_number
from simulator.engine.errors import require
from simulator.exploration.plans import POLICIES
from simulator.job_arguments import parsers, print_text, run_line, stdout_to_stderr, write_file
from simulator.progress import Progress
from simulator.run_command import job_and_options

if TYPE_CHECKING:
    from simulator.exploration.exploration import Exploration
    from simulator.exploration.trial import Trial


def main(argv: Sequence[str]) -> int:
    """Explore with these arguments; the report goes to stdout, the failing schedule to a file.

    Raises:
        UsageError: arguments that make no sense.
    """
    torchrun, parser = parsers("explore", __doc__, _add_flags)
    args = parser.parse_args(argv)
    job, options = job_and_options(args, torchrun)
    path = args.out or f"{Path(job.target).stem or job.target}.schedule"
    _must_be_writable(path)
    from simulator.exploration.explore import explore_program
    from simulator.exploration.program import OfJob

    with Progress(args.progress) as progress, stdout_to_stderr() if args.json else nullcontext():
        exploration = explore_program(
            OfJob(job, options), schedules=args.schedules, seed=options["seed"], policy=args.policy, depth=args.depth,
            workers=args.workers, command=run_line(_without_ours(argv, args), args.seed),
            replay=shlex.join(["hangcheck", "replay", path]), on_done=_Count(args.schedules, progress),
        )  # fmt: skip
    _save(exploration, path, args.trace)
    print_text(_rendered(exploration, args.json))
    return OK if exploration.ok else FINDINGS


def _add_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--schedules", type=whole_number, metavar="N", default=100, help="how many at most (100)")
    group.add_argument("--policy", choices=POLICIES, default="pct", help="how schedules are chosen (pct)")
    group.add_argument(
        "--depth", type=whole_number, metavar="N", default=3, help="delays in a schedule, or orderings of a bug (3)"
    )
    group.add_argument("--out", metavar="FILE", help="where the failing schedule goes (SCRIPT.schedule)")
    group.add_argument(
        "--workers", type=whole_number, metavar="N", help="processes (a CPU each, if there is enough to do)"
    )


def _without_ours(argv: Sequence[str], args: argparse.Namespace) -> list[str]:
    """The arguments without those that `hangcheck run` does not know; what follows the script is the script's."""
    tail = len(argv) - len(args.training_script_args) - 1
    own = OneLineParser(add_help=False)
    _add_flags(own.add_argument_group())
    own.add_argument("--trace")
    return [*own.parse_known_args(argv[:tail])[1], *argv[tail:]]


def _must_be_writable(path: str) -> None:
    folder = os.path.dirname(path) or os.curdir
    fits = os.access(path if os.path.exists(path) else folder, os.W_OK) and not os.path.isdir(path)
    require(fits, f"--out {path}: cannot be written; give a file that can")


def _save(exploration: Exploration, path: str, trace: str | None) -> None:
    if exploration.schedule.delays:
        write_file("--out", path, exploration.schedule.to_text())
    if trace:
        write_file("--trace", trace, exploration.outcome.trace.to_text())


def _rendered(exploration: Exploration, as_json: bool) -> str:
    from simulator.report.json import render_json

    return render_json(exploration) if as_json else exploration.report()


class _Count:
    """The progress line of an exploration."""

    def __init__(self, schedules: int, progress: Progress) -> None:
        self._schedules = schedules
        self._progress = progress
        self._done = 0
        self._bad = 0

    def __call__(self, trials: Sequence[Trial]) -> None:
        self._done += len(trials)
        self._bad += sum(not trial.ok for trial in trials)
        self._progress.show(lambda: f"hangcheck: {self._done} of {self._schedules} schedules, {self._bad} bad")
