"""`hangcheck run`: a torchrun command line, its ranks simulated in this process."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from simulator.cli import FINDINGS, OK, OneLineParser, whole_number
from simulator.engine.carrier import CARRIERS
from simulator.engine.errors import UsageError
from simulator.engine.scheduler import Limits
from simulator.progress import Progress
from simulator.torchrun import flags_without_effect, job_of

if TYPE_CHECKING:
    from simulator.outcome import Outcome

_USAGE = "%(prog)s [torchrun's flags] [flags of the simulation] script.py [arguments of the script]"
_EPILOG = """One command plays all nodes. Of a range --nnodes MIN:MAX, MAX nodes come. Exit codes: 0 ok, 1 findings,
2 usage, 3 a fault of hangcheck itself."""


def main(argv: Sequence[str]) -> int:
    """Run with these arguments; the report goes to stdout.

    Raises:
        UsageError: arguments that make no sense.
    """
    torchrun, parser = _parsers()
    args = parser.parse_args(argv)
    seed = 0 if args.seed is None else args.seed
    job, options = job_of(args, seed=seed), _options(args, seed)
    unused = flags_without_effect(args, torchrun)
    if unused:
        print(f"hangcheck: no effect in a simulation: {', '.join(unused)}", file=sys.stderr)
    if args.trace:
        _write(args.trace, "")  # a path that cannot be written shows before the run, not after it
    from simulator.launcher import run_job

    with Progress(args.progress) as progress, _stdout_to_stderr() if args.json else nullcontext():
        outcome = run_job(job, replay=replay_line(argv, args), on_tick=progress.tick, **options)
    if args.trace:
        _write(args.trace, outcome.trace.to_text())
    _print(_rendered(outcome, args.json))
    return OK if outcome.ok else FINDINGS


def replay_line(argv: Sequence[str], args: argparse.Namespace) -> str:
    """The shell command that gives the same run again: the variables that torch's parser reads, the seed, the rest."""
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("PET_")]
    seed = ["--seed", "0"] if args.seed is None else []
    return shlex.join([*variables, "hangcheck", "run", *seed, *argv])


def _print(text: str) -> None:
    """To stdout, also if a rank has closed Python's."""
    if sys.stdout.closed:
        os.write(1, text.encode(errors="backslashreplace"))
        return
    print(text, end="", flush=True)


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--trace {path}: cannot be written ({error.strerror}); give a file that can") from None


def _rendered(outcome: Outcome, as_json: bool) -> str:
    from simulator.report.json import render_json

    return render_json(outcome) if as_json else outcome.report()


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """torch's parser, and one that knows our flags too."""
    from torch.distributed.run import get_args_parser

    torchrun = get_args_parser()
    parser = OneLineParser(
        prog="hangcheck run", usage=_USAGE, epilog=_EPILOG, parents=[torchrun], add_help=False, description=__doc__
    )
    _add_flags(parser.add_argument_group("flags of the simulation"))
    return torchrun, parser


def _add_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", type=whole_number, metavar="N", help="of everything random (0)")
    group.add_argument("--json", action="store_true", help="JSON on stdout; what the ranks print goes to stderr")
    group.add_argument(
        "--on-hang",
        choices=("report", "timeout"),
        default="report",
        help="when nothing can move: report at once, or let torch's time-outs strike, in virtual time (report)",
    )
    group.add_argument("--carrier", choices=CARRIERS, default="thread", help="what suspends a rank (thread)")
    group.add_argument(
        "--spin-limit",
        type=_positive,
        default=Limits().spin_wall_s,
        metavar="S",
        help="wall seconds that a rank may run without blocking (%(default)g)",
    )
    group.add_argument(
        "--probe-crash",
        choices=("first", "all", "none"),
        default="first",
        help="who dies in a topology probe on a single-node Mooncake set-up (first)",
    )
    group.add_argument("--trace", metavar="FILE", help="write what happened, event by event, to this file")
    group.add_argument(
        "--isolate",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module (or pattern such as pkg.*) of which each rank has its own, as of those beside the script",
    )
    group.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="a line on stderr during long runs (if it is a terminal)",
    )


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return seconds


def _options(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "isolate": tuple(args.isolate),
        "carrier": args.carrier,
        "on_hang": args.on_hang,
        "probe_crash": args.probe_crash,
        "limits": Limits(spin_wall_s=args.spin_limit),
    }


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Keeps stdout free for the JSON, also from what native code writes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
