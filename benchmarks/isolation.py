"""What an instance of its own for each rank costs: SGLang's `parallel_state` and `runtime_context`.

    python benchmarks/isolation.py [--ranks 1,8,64] [--version 0.5.20]

Needs the wheel that `make upstream` fetches; without it the benchmark says so and ends. Each number of ranks is a
process of its own. All ranks import the two modules, and with them what these import; the first rank pays for what is
shared. Seconds are of wall and of CPU time, memory is the peak of the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulator import Limits, simulate
from tests.upstream.environments import environment, folder_of

MODULES = ("sglang.srt.distributed.parallel_state", "sglang.srt.runtime_context")


def load(rank: int) -> int:
    """One rank's imports. Returns the identity of its module's globals."""
    modules = [importlib.import_module(name) for name in MODULES]
    return id(vars(modules[0]))


def measure(ranks: int, version: str) -> dict[str, float]:
    """One row."""
    environment("sglang", version).enter()
    warnings.simplefilter("ignore")
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = simulate(load, ranks, isolate=MODULES, limits=Limits(spin_wall_s=120.0)).raise_if_bad()
    assert len(set(outcome.results.values())) == ranks
    return {
        "ranks": ranks,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,8,64")
    parser.add_argument("--version", default="0.5.20")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one, args.version)))
        return
    if not (folder_of(f"sglang=={args.version}") / ".done").exists():
        print(f"isolation: SGLang {args.version} is not there; run `make upstream` first")
        return
    print(f"SGLang {args.version}: {', '.join(MODULES)}\n{'ranks':>6} {'wall s':>7} {'CPU s':>7} {'peak MiB':>9}")
    for ranks in args.ranks.split(","):
        command = [sys.executable, __file__, "--one", ranks, "--version", args.version]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        print(f"{row['ranks']:>6} {row['wall_s']:>7.2f} {row['cpu_s']:>7.2f} {row['peak_mib']:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
