"""Many random programs on simulated ranks and on real gloo: `make parity`.

    python -m tests.parity.run                  1,000 programs
    python -m tests.parity.run --programs 50 --seed 7
    python -m tests.parity.run --show 1234      one program, with both answers

Disagreements are shown with as few events as still disagree.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.parity.differential import Comparison, compared, smallest
from tests.parity.random_programs import random_plan
from tests.parity.real_ranks import RealRanks, real_ranks

SHRUNK_MOST = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 0 if all agree."""
    options = _options(arguments)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    with real_ranks(options.lanes) as ranks:
        if options.show is not None:
            print(next(compared([random_plan(options.show)], ranks)).told())
            return 0
        plans = [random_plan(seed) for seed in range(options.seed, options.seed + options.programs)]
        found = list(compared(plans, ranks, lambda done: _progress(done, len(plans))))
        bad = [comparison for comparison in found if not comparison.agrees]
        _tell(found, bad, ranks)
    counts = Counter(f"{c.simulated.what} / {c.real.what}" for c in found)
    print(f"{len(found)} programs, {len(found) - len(bad)} agree, {time.monotonic() - began:.0f} s")
    if options.json:
        report = {"programs": len(found), "disagree": [c.plan.seed for c in bad], "simulated / real": counts}
        Path(options.json).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 1 if bad else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity.run", description="Random programs on both sides.")
    parser.add_argument("--programs", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first one (default: %(default)s)")
    parser.add_argument("--lanes", type=int, default=10, help="programs side by side on real gloo (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--show", type=int, metavar="SEED", help="show one program and both answers")
    return parser.parse_args(arguments)


def _tell(found: Sequence[Comparison], bad: Sequence[Comparison], ranks: RealRanks) -> None:
    for comparison in bad[:SHRUNK_MOST]:
        print(smallest(comparison, ranks).told(), end="\n\n")
    for comparison in bad[SHRUNK_MOST:]:
        print(f"seed {comparison.plan.seed}: {comparison.simulated.what} / {comparison.real.what}")
    print("\nsimulated  real    programs")
    for (mine, theirs), count in sorted(Counter((c.simulated.what, c.real.what) for c in found).items()):
        print(f"{mine:10} {theirs:7} {count:8}")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total or done % 100 == 0:
        end = "\n" if done == total or not sys.stderr.isatty() else ""
        print(f"\rreal gloo: {done} of {total} programs", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
