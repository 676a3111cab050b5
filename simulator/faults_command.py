"""`hangcheck faults`: the faults that `hangcheck run --fault` can inject, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.cli import OK, OneLineParser
from simulator.faults.fault import described
from simulator.faults.values import READERS
from simulator.job_arguments import print_text


def main(argv: Sequence[str]) -> int:
    """Print the list to stdout.

    Raises:
        UsageError: arguments that make no sense.
    """
    OneLineParser(prog="hangcheck faults", description=__doc__).parse_args(argv)
    print_text(listing())
    return OK


def listing() -> str:
    """Each fault with what it does, then what the values are."""
    blocks = [f"{usage}\n    {' '.join(text.split())}\n" for usage, text in described()]
    forms = [f"  {reader.form:<11} {reader.what}\n" for reader in READERS.values()]
    return "\n".join([*blocks, "values:\n" + "".join(forms)])
