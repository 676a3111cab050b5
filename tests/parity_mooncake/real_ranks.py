"""Runs scenarios on the real backend. It belongs to the Python of the real backend's own environment:

    PYTHON -m tests.parity_mooncake.real_ranks --processes 14 NAME ...

One JSON line on stdout for each scenario that has ended: {"name", "observed", "wall_s"}, see `records.to_json`. Each
process is a fork of this one, which has torch and Mooncake imported and nothing started. A process that lives at its
limit is killed by its id; should this one die first, the kernel ends them, or each one's own alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.records import HANGS, Observed, Record, ended, to_json
from tests.parity_mooncake.scenario import Process, Scenario
from tests.parity_mooncake.scenarios import scenarios

LOOK_S = 0.05
ALARM_AFTER_S = 20
PR_SET_PDEATHSIG = 1
PORTS_FROM, PORTS_APART = 22_000, 5_000
START_APART_S = 0.5
FATAL = re.compile(r"(PGAssertionException[^\n]*|P2P send got[^\n]*|Check failed[^\n]*|terminate called[^\n]*)")


class FileChannel:
    """Records are lines of a file, flags are files."""

    def __init__(self, folder: Path, label: str) -> None:
        self._folder = folder
        self._file = open(folder / f"records {label}", "a", buffering=1)  # noqa: SIM115 (open as long as the process)

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")

    def flag(self, name: str, text: str = "") -> None:
        draft = self._folder / f"draft {os.getpid()}"
        draft.write_text(text)
        draft.rename(self._folder / f"flag {name}")

    def text(self, name: str) -> str:
        return (self._folder / f"flag {name}").read_text()

    def is_up(self, name: str) -> bool:
        return (self._folder / f"flag {name}").exists()


@dataclass(slots=True)
class Running:
    """A scenario whose processes are alive."""

    scenario: Scenario
    folder: Path
    began_s: float
    pids: dict[int, Process] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)

    @property
    def deadline_s(self) -> float:
        return self.began_s + self.scenario.limit_s

    def look(self) -> bool:
        """Take in who has ended, and end those whose time is up; true when none is left."""
        late = time.monotonic() > self.deadline_s
        if late:
            self._freeze()
        for pid, process in list(self.pids.items()):
            if late:
                self.late.add(process.label)
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                del self.pids[pid]
                self.ends[process.label] = os.waitstatus_to_exitcode(status)
                (self.folder / f"flag over {process.label}").touch()
        return not self.pids

    def _freeze(self) -> None:
        """Stop all first, so that none sees another one end."""
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)

    def observed(self) -> Observed:
        return {p.label: self._of(p) for p in self.scenario.processes}

    def _of(self, process: Process) -> list[Record]:
        path = self.folder / f"records {process.label}"
        lines = path.read_text().splitlines() if path.exists() else []
        return ended([json.loads(line) for line in lines], self._how(process))

    def _how(self, process: Process) -> str:
        code = self.ends.get(process.label, 0)
        if code >= 0 or process.label in self.late:
            return HANGS
        log = (self.folder / f"log {process.label}").read_text(errors="replace")
        found = FATAL.findall(log)
        return signal.Signals(-code).name + (f": {found[-1].strip()[:200]}" if found else "")


def begin(scenario: Scenario, ports: Iterator[int]) -> Running:
    """Start the processes of a scenario."""
    folder = Path(tempfile.mkdtemp(prefix="mooncake-parity."))
    running = Running(scenario, folder, time.monotonic())
    port = _free_port(ports)
    for process in scenario.processes:
        pid = os.fork()
        if pid == 0:
            try:
                _live(scenario, process, folder, port)
            finally:
                os._exit(1)
        running.pids[pid] = process
    return running


def _free_port(ports: Iterator[int]) -> int:
    """Below those that the kernel hands out, since a rank 0 that starts late would find such a one taken."""
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable")


def _live(scenario: Scenario, process: Process, folder: Path, port: int) -> None:
    signal.alarm(int(scenario.limit_s) + ALARM_AFTER_S)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(folder / f"log {process.label}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **dict(scenario.env))
    if process.at_s:
        time.sleep(process.at_s)
    from mooncake import pg

    Observer(scenario, process, FileChannel(folder, process.label), pg).run()
    os._exit(0)


def main() -> None:
    """Run all, some at a time, those first that take longest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=28, help="how many at once (most of them sleep)")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    import torch
    from mooncake import pg  # noqa: F401 (so that no process has to)

    torch.set_num_threads(1)
    table = scenarios()
    pending = sorted((table[name] for name in options.names), key=lambda s: -s.limit_s)
    running: list[Running] = []
    ports = itertools.count(PORTS_FROM + os.getpid() % PORTS_APART)
    while pending or running:
        busy = sum(len(r.pids) for r in running)
        fitting = [s for s in pending if not running or busy + len(s.processes) <= options.processes]
        if fitting:
            pending.remove(fitting[0])
            running.append(begin(fitting[0], ports))
            time.sleep(START_APART_S)
        for done in [r for r in running if r.look()]:
            running.remove(done)
            _tell(done, options.keep)
        time.sleep(LOOK_S)


def _tell(done: Running, keep: bool) -> None:
    wall_s = round(time.monotonic() - done.began_s, 1)
    line = {"name": done.scenario.name, "observed": to_json(done.observed()), "wall_s": wall_s}
    print(json.dumps(line | ({"folder": str(done.folder)} if keep else {})), flush=True)
    if not keep:
        for path in done.folder.iterdir():
            path.unlink()
        done.folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
