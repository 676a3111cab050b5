"""`hangcheck demo`: two real bugs, before and after their repair, on the reference implementation's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, TextIO

from simulator.analysis.findings import Verdict
from simulator.cli import OneLineParser, whole_number
from simulator.outcome import Outcome
from simulator.scenarios.scale_up import scale_up
from simulator.scenarios.start_up import start_up


@dataclass(frozen=True, slots=True)
class Act:
    """One run of the demo. `expected` is what a reader should see; the demo fails if it differs."""

    title: str
    run: Callable[..., Outcome]
    expected: Verdict


ACTS = (
    Act(
        "1. EP4 -> EP6 scale-up, joiners by the rules of before the repair",
        lambda **options: scale_up("before-repair", **options),
        Verdict.DEADLOCK,
    ),
    Act("2. the same, by the repaired rules", lambda **options: scale_up("repaired", **options), Verdict.OK),
    Act(
        "3. single-node EP start, topology probe without its guard",
        lambda **options: start_up(guard=False, **options),
        Verdict.UNNEEDED_PROBE,
    ),
    Act("4. the same, guarded", lambda **options: start_up(guard=True, **options), Verdict.OK),
)


def run_demo(seed: int, as_json: bool, out: TextIO) -> int:
    """Run the four acts and write their reports. 0 if each verdict is the expected one, else 3."""
    outcomes = [(act, _quietly(act, seed)) for act in ACTS]
    if as_json:
        out.write(json.dumps([_as_data(act, outcome) for act, outcome in outcomes], indent=2, default=str) + "\n")
    else:
        for act, outcome in outcomes:
            out.write(f"{'=' * 100}\n{act.title}\n{'=' * 100}\n{outcome.report()}\n")
        out.write(_summary(outcomes))
    return 0 if all(outcome.verdict is act.expected for act, outcome in outcomes) else 3


def _quietly(act: Act, seed: int) -> Outcome:
    """Run an act. What its ranks print of their own exceptions is left out: the report says it."""
    with redirect_stderr(StringIO()):
        outcome = act.run(seed=seed)
    return replace(outcome, replay=f"hangcheck demo --seed {seed}")


def _as_data(act: Act, outcome: Outcome) -> dict[str, Any]:
    return {"title": act.title, "expected": str(act.expected), **outcome.to_dict()}


def _summary(outcomes: Sequence[tuple[Act, Outcome]]) -> str:
    rows = [
        f"  {act.title:<68} {outcome.verdict:<10}" + ("" if outcome.verdict is act.expected else " UNEXPECTED")
        for act, outcome in outcomes
    ]
    return "summary\n" + "\n".join(row.rstrip() for row in rows) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of the demo."""
    parser = OneLineParser(prog="hangcheck demo", description=__doc__)
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of everything random (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the reports")
    args = parser.parse_args(argv)
    return run_demo(args.seed, args.json, sys.stdout)


if __name__ == "__main__":
    raise SystemExit(main())
