"""`hangcheck run`: a torchrun command line, its ranks simulated in this process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from simulator.cli import FINDINGS, OK
from simulator.job_arguments import options_of, parsers, print_text, run_line, stdout_to_stderr, write_file
from simulator.progress import Progress
from simulator.torchrun import Job, flags_without_effect, job_of


def main(argv: Sequence[str]) -> int:
    """Run with these arguments; the report goes to stdout.

    Raises:
        UsageError: arguments that make no sense.
    """
    torchrun, parser = parsers("run", __doc__)
    args = parser.parse_args(argv)
    job, options = job_and_options(args, torchrun)
    if args.trace:
        write_file("--trace", args.trace, "")  # a path that cannot be written shows before the run, not after it
    from simulator.launcher import run_job
    from simulator.report.json import render_json

    with Progress(args.progress) as progress, stdout_to_stderr() if args.json else nullcontext():
        outcome = run_job(job, replay=run_line(argv, args.seed), on_tick=progress.tick, **options)
    if args.trace:
        write_file("--trace", args.trace, outcome.trace.to_text())
    print_text(render_json(outcome) if args.json else outcome.report())
    return OK if outcome.ok else FINDINGS


def job_and_options(args: argparse.Namespace, torchrun: argparse.ArgumentParser) -> tuple[Job, dict[str, Any]]:
    """The job and the options of the cluster; flags without an effect are named on stderr."""
    seed = 0 if args.seed is None else args.seed
    job, options = job_of(args, seed=seed), options_of(args, seed)
    unused = flags_without_effect(args, torchrun)
    if unused:
        print(f"hangcheck: no effect in a simulation: {', '.join(unused)}", file=sys.stderr)
    return job, options
