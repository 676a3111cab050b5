"""The elastic examples on real processes and the real Mooncake backend, each under a time-out.

    python examples/elastic/on_mooncake.py                     all of them
    python examples/elastic/on_mooncake.py grow recover        some

Needs `mooncake.pg` (package mooncake-transfer-engine; `make parity-mooncake` sets up an environment in which it loads
without a GPU). Ranks talk over the loop-back interface; each process is ended by its own id when its time is over.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parents[1]))

import ranks as body  # noqa: E402
from ranks import Came, Diary, Job  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Start:
    """One process."""

    rank: int
    at_s: float = 0.0
    came: Came | None = None
    """For a rank of a later cohort."""
    recovers: bool = False


@dataclass(frozen=True, kw_only=True)
class Show:
    """One example: its processes, and what the diaries of those that end well must say."""

    job: Job
    starts: tuple[Start, ...]
    serves: dict[int, int]
    """From rank to how many ranks met in its last step."""
    limit_s: float = 150.0
    window_s: float | None = None
    """How long Mooncake waits for a lost rank; None for its default of 30 s."""


def launch(ranks: int) -> tuple[Start, ...]:
    return tuple(Start(rank=rank) for rank in range(ranks))


def cohort(first: int, ranks: int, at_s: float, **wrong: Any) -> tuple[Start, ...]:
    came = Came(first=first, ranks=ranks, **wrong)
    return tuple(Start(rank=rank, at_s=at_s, came=came) for rank in range(first, first + ranks))


SHOWS = {
    "grow": Show(
        job=Job(launched=2, capacity=4, ends_after=1),
        starts=(*launch(2), *cohort(2, 2, 3.0)),
        serves=dict.fromkeys(range(4), 4),
    ),
    "grow-twice": Show(
        job=Job(launched=2, capacity=4, ends_after=2),
        starts=(*launch(2), *cohort(2, 1, 3.0), *cohort(3, 1, 6.0)),
        serves=dict.fromkeys(range(4), 4),
    ),
    "two-at-once": Show(
        job=Job(launched=2, capacity=4, ends_after=2),
        starts=(*launch(2), *cohort(2, 1, 3.0), *cohort(3, 1, 3.0, launch_id="other")),
        serves=dict.fromkeys(range(4), 4),
    ),
    "wrong-offset": Show(
        job=Job(launched=2, capacity=4, ends_after=0, more_steps=200),
        starts=(*launch(2), *cohort(3, 1, 3.0)),
        serves=dict.fromkeys(range(2), 2),
    ),
    "never-comes": Show(
        job=Job(launched=2, capacity=4, ends_after=0, more_steps=200),
        starts=(*launch(2), *cohort(2, 2, 3.0)[:1]),
        serves=dict.fromkeys(range(2), 2),
    ),
    "roll-back": Show(
        job=Job(launched=2, capacity=4, ends_after=2),
        starts=(
            *launch(2),
            *cohort(2, 1, 3.0, connects=False),
            *cohort(2, 1, 30.0, launch_id="second"),
        ),
        serves=dict.fromkeys(range(3), 3),
    ),
    "dies-loading": Show(
        job=Job(launched=2, capacity=4, ends_after=1, loads_s=1.0, dies_loading=(3,)),
        starts=(*launch(2), *cohort(2, 2, 3.0)),
        serves=dict.fromkeys(range(2), 2),
    ),
    "dies-while-waiting": Show(
        job=Job(launched=3, capacity=6, ends_after=1, loads_s=15.0, dies={2: 40}),
        starts=(*launch(3), *cohort(3, 1, 3.0)),
        serves=dict.fromkeys(range(2), 2),
        window_s=4.0,
    ),
    "recover": Show(
        job=Job(launched=3, capacity=4, ends_after=2, dies={2: 10}),
        starts=(*launch(3), Start(rank=2, at_s=8.0, recovers=True)),
        serves=dict.fromkeys(range(3), 3),
        window_s=4.0,
    ),
    "recover-middle": Show(
        job=Job(launched=4, capacity=4, ends_after=2, dies={1: 10}, attn_tp=2),
        starts=(*launch(4), Start(rank=1, at_s=8.0, recovers=True)),
        serves=dict.fromkeys(range(4), 4),
        window_s=4.0,
    ),
}


def run_rank(name: str, number: int) -> None:
    """Inside a process of its own: one rank. Its diary is the last line that it prints."""
    show = SHOWS[name]
    start = show.starts[number]
    if show.window_s is not None:
        from mooncake import pg

        pg.set_collective_timeout_us(int(show.window_s / 2 * 1e6))
        pg.set_fault_reconciliation_window_us(int(show.window_s * 1e6))
    if start.came is not None:
        diary = body.join(start.rank, show.job, start.came)
    elif start.recovers:
        diary = body.recover(start.rank, show.job, "second")
    else:
        diary = body.serve(start.rank, show.job)
    print("diary " + json.dumps(as_data(diary)), flush=True)
    time.sleep(2.0 if start.rank == 0 else 0.0)  # the store is in rank 0
    os._exit(0)


def as_data(diary: Diary) -> dict[str, Any]:
    steps = diary.life.steps
    return {
        "error": diary.error,
        "changes": [[change.kind, list(change.ranks), change.why] for change in diary.changes],
        "served": diary.served,
        "states": [[round(step.at_s - steps[0].at_s, 2), str(step.state), step.why] for step in steps],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_show(name: str, verbose: bool) -> bool:
    """Start the processes at their times, wait within the limit, print what they wrote. True if all is as it should."""
    show, began = SHOWS[name], time.monotonic()
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes: dict[int, subprocess.Popen[str]] = {}
    lines: dict[int, list[str]] = {}
    readers = []
    for number, start in sorted(enumerate(show.starts), key=lambda item: item[1].at_s):
        time.sleep(max(0.0, began + start.at_s - time.monotonic()))
        command = [sys.executable, "-W", "ignore", __file__, name, "--number", str(number)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes[number], lines[number] = process, []
        readers.append(threading.Thread(target=read, args=(process, lines[number]), daemon=True))
        readers[-1].start()
    for process in processes.values():
        try:
            process.wait(max(0.1, began + show.limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    for reader in readers:
        reader.join(2.0)
    print(f"{name}: {time.monotonic() - began:.1f} s")
    good = True
    for number, start in enumerate(show.starts):
        good &= tell(show, start, processes[number].returncode, lines[number], verbose)
    print(f"  {'as it should be' if good else 'NOT as it should be'}", flush=True)
    return good


def read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    lines.extend(process.stdout)


def tell(show: Show, start: Start, code: int, lines: Sequence[str], verbose: bool) -> bool:
    found = next((json.loads(line[6:]) for line in lines if line.startswith("diary ")), None)
    print(f"  rank {start.rank} started at {start.at_s:g} s: exit {code}")
    if found is None or verbose:
        print("    | " + "    | ".join(lines[-40:]))
    if found is None:
        dies = (*show.job.dies, *show.job.dies_loading)
        return start.rank in dies and not start.recovers
    for row in found["states"]:
        print(f"    {row[0]:>7.2f} s {row[1]}: {row[2]}")
    print(f"    changes {found['changes']} served {found['served']} {found['error']}")
    expected = show.serves.get(start.rank)
    last = found["served"][-1][0] if found["served"] else None
    return bool(found["error"]) or last == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHOWS)}; all by default")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print what the processes logged")
    args = parser.parse_args()
    if args.number is not None:
        run_rank(args.names[0], args.number)
    results = [run_show(name, args.verbose) for name in args.names or SHOWS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
