"""Time-outs of waits, kept apart from simpy's events, so that "nothing can move any more" is seen at once."""

from __future__ import annotations

import heapq

from simulator.engine.task import INFINITY, Task


class Deadlines:
    """Of each wait that has a limit, when it times out. Those of waits that are over are dropped on the way."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Task, int]] = []
        self._count = 0

    def add(self, at_s: float, task: Task, token: int) -> None:
        """The wait of `task` that `token` stands for times out at `at_s`."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, task, token))

    def earliest_s(self) -> float:
        """When the next one strikes; infinity if there is none."""
        heap = self._heap
        while heap and (not heap[0][2].alive or heap[0][2].token != heap[0][3]):
            heapq.heappop(heap)
        return heap[0][0] if heap else INFINITY

    def earliest_task(self) -> Task | None:
        """Whose wait times out next."""
        return self._heap[0][2] if self.earliest_s() != INFINITY else None

    def take(self) -> tuple[Task, int]:
        """Remove the earliest one; its task and token."""
        _, _, task, token = heapq.heappop(self._heap)
        return task, token
