"""Real processes for many small programs: kept from one program to the next, several programs at once.

A process is forked from a server that has torch imported, so that one killed after a hang costs little. Each program
gets a store of its own, a file. When this process ends, however it does, the server ends, and so do its ranks.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path

from tests.parity.real_worker import Job, RankEnd

ROOT = Path(__file__).parents[2]


class Server:
    """The process that forks ranks."""

    def __init__(self, folder: str, modules: Iterable[str]) -> None:
        self._listener = Listener(f"{folder}/socket", "AF_UNIX", backlog=64)
        command = [sys.executable, "-W", "ignore", "-m", "tests.parity.real_server", f"{folder}/socket", *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, text=True)

    def start(self, lane: int, ranks: Iterable[int]) -> dict[int, Connection]:
        """Fork ranks of a lane; a connection to each."""
        wanted = list(ranks)
        self._order("".join(f"start {lane} {rank}\n" for rank in wanted))
        found = {}
        for _ in wanted:
            connection = self._listener.accept()
            found[connection.recv()] = connection
        return {rank: found[lane, rank] for rank in wanted}

    def stop(self, lane: int) -> None:
        """Kill the ranks of a lane."""
        self._order(f"stop {lane}\n")

    def _order(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def close(self) -> None:
        """End the server, and with it all ranks."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._listener.close()


class Lane:
    """As many processes as the largest program needs; one program at a time runs on the first ones."""

    def __init__(self, server: Server, number: int, folder: str) -> None:
        self._server = server
        self._number = number
        self._folder = folder
        self._serial = itertools.count()
        self._ranks: list[Connection] = []
        self._ends: dict[int, RankEnd] = {}
        self._deadline = 0.0
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        """Send a program to its ranks."""
        size = job.program.world_size
        new = self._server.start(self._number, range(len(self._ranks), size))
        self._ranks += new.values()
        store = f"{self._folder}/store{self._number}.{next(self._serial)}"
        self._ends, self.job = {}, job
        for requests in self._ranks[:size]:
            requests.send((job, store))
        self._deadline = time.monotonic() + job.deadline_s

    @property
    def waiting_for(self) -> list[Connection]:
        """The connections of the ranks that have not ended yet."""
        size = 0 if self.job is None else self.job.program.world_size
        return [requests for rank, requests in enumerate(self._ranks[:size]) if rank not in self._ends]

    @property
    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def hear(self, ready: Iterable[object]) -> None:
        """Take the answers from those connections that have one."""
        for rank, requests in enumerate(self._ranks):
            if requests in ready and rank not in self._ends:
                try:
                    self._ends[rank] = requests.recv()
                except (EOFError, OSError):
                    self._ends[rank] = RankEnd("died", error="the process died")

    def over(self) -> dict[int, RankEnd] | None:
        """How all ranks ended, once they have or their time is up; the lane is free then."""
        if self.job is None or (self.waiting_for and self.left_s > 0):
            return None
        size = self.job.program.world_size
        ends = {rank: self._ends.get(rank, RankEnd("hung")) for rank in range(size)}
        self.job = None
        if not all(end.status == "ok" for end in ends.values()) or not self._release(size):
            self._drop()
        return ends

    def _release(self, size: int) -> bool:
        """Let the ranks destroy their groups; false if one has ended, because a thread of its program lives on."""
        try:
            for requests in self._ranks[:size]:
                requests.send("over")
        except OSError:
            return False
        return True

    def _drop(self) -> None:
        """End the processes; the next program starts new ones."""
        self._server.stop(self._number)
        for requests in self._ranks:
            requests.close()
        self._ranks = []


class RealRanks:
    """Several lanes, side by side.

    Args:
        lanes: how many programs run at once.
        modules: what programs import that takes long.
    """

    def __init__(self, lanes: int, modules: Iterable[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks")
        self._server = Server(self._folder.name, modules)
        self._lanes = [Lane(self._server, number, self._folder.name) for number in range(lanes)]

    def run(
        self, jobs: Iterable[Job], on_end: Callable[[int], None] = lambda done: None
    ) -> Iterator[tuple[Job, dict[int, RankEnd]]]:
        """Run all programs; each with how its ranks ended, in the order in which they come to an end."""
        pending, done = iter(jobs), 0
        busy = [lane for lane in self._lanes if self._give(lane, pending)]
        while busy:
            pipes = [pipe for lane in busy for pipe in lane.waiting_for]
            ready = wait(pipes, timeout=max(0.0, min(lane.left_s for lane in busy)))
            for lane in list(busy):
                lane.hear(ready)
                job, ends = lane.job, lane.over()
                if job is not None and ends is not None:
                    if not self._give(lane, pending):
                        busy.remove(lane)
                    done += 1
                    on_end(done)
                    yield job, ends

    @staticmethod
    def _give(lane: Lane, pending: Iterator[Job]) -> bool:
        job = next(pending, None)
        if job is not None:
            lane.begin(job)
        return job is not None

    def close(self) -> None:
        """End all processes."""
        self._server.close()
        self._folder.cleanup()


@contextmanager
def real_ranks(lanes: int, modules: Iterable[str] = ()) -> Iterator[RealRanks]:
    """`RealRanks`, closed at the end."""
    ranks = RealRanks(lanes, modules)
    try:
        yield ranks
    finally:
        ranks.close()
