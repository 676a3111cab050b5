"""What the commands that simulate a torchrun command line share: its flags, and what goes to stdout."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from simulator.cli import OneLineParser, whole_number
from simulator.engine.carrier import CARRIERS
from simulator.engine.errors import UsageError
from simulator.engine.scheduler import Limits
from simulator.faults.fault import Fault
from simulator.faults.values import read_seconds

AddFlags = Callable[[argparse._ArgumentGroup], None]
_USAGE = "%(prog)s [torchrun's flags] [flags of the simulation] script.py [arguments of the script]"
_EPILOG = """One command plays all nodes. Of a range --nnodes MIN:MAX, MAX nodes come. Exit codes: 0 ok, 1 findings,
2 usage, 3 a fault of hangcheck itself."""


def parsers(
    command: str, description: str | None, add_more: AddFlags | None = None
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """torch's parser, and one that knows the flags of `command` too."""
    from torch.distributed.run import get_args_parser

    torchrun = get_args_parser()
    parser = OneLineParser(
        prog=f"hangcheck {command}", usage=_USAGE, epilog=_EPILOG, parents=[torchrun], add_help=False,
        description=description,
    )  # fmt: skip
    if add_more is not None:
        add_more(parser.add_argument_group("flags of the exploration"))
    add_flags(parser.add_argument_group("flags of the simulation"))
    return torchrun, parser


def add_flags(group: argparse._ArgumentGroup) -> None:
    """The flags of the simulation."""
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
    group.add_argument(
        "--no-multicast",
        dest="multicast",
        action="store_false",
        help="the nodes' devices have no multicast addresses for symmetric memory",
    )
    group.add_argument(
        "--accelerator",
        choices=("cuda",),
        help="let torch.cuda answer as on nodes with GPUs, one for each rank of a node (none: torch's own answers)",
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
        "--fault",
        action="append",
        default=[],
        type=_fault,
        metavar="FAULT",
        help="a fault to inject, such as 'kill rank=2 at=all_reduce#3'; may be repeated; `hangcheck faults` lists them",
    )
    group.add_argument(
        "--faults-stop-at",
        type=_time,
        metavar="TIME",
        help="no fault strikes from this virtual time on (30s), and progress must follow",
    )
    group.add_argument(
        "--until",
        type=_time,
        metavar="TIME",
        help="end the run at this virtual time (60s), and say where the ranks are: for a server that runs for ever",
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


def _fault(text: str) -> str:
    """A fault as it is given; one that does not fit is refused before anything runs."""
    try:
        return Fault.parse(text).text
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _time(text: str) -> float:
    try:
        return read_seconds(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def options_of(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The options of the cluster that the flags ask for."""
    return {
        "seed": seed,
        "isolate": tuple(args.isolate),
        "carrier": args.carrier,
        "on_hang": args.on_hang,
        "probe_crash": args.probe_crash,
        "multicast": args.multicast,
        "accelerator": args.accelerator,
        "faults": tuple(args.fault),
        "faults_stop_at_s": args.faults_stop_at,
        "until_s": args.until,
        "limits": Limits(spin_wall_s=args.spin_limit),
    }


def run_line(argv: Sequence[str], seed: int | None) -> str:
    """The shell command that runs this job in order: the variables that torch's parser reads, the seed, the rest."""
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("PET_")]
    return shlex.join([*variables, "hangcheck", "run", *(["--seed", "0"] if seed is None else []), *argv])


def print_text(text: str) -> None:
    """To stdout, also if a rank has closed Python's."""
    if sys.stdout.closed:
        os.write(1, text.encode(errors="backslashreplace"))
        return
    print(text, end="", flush=True)


def write_file(flag: str, path: str, text: str) -> None:
    """Write what `flag` asks for.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written ({error.strerror}); give a file that can") from None


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
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
