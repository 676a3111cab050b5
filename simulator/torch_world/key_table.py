"""The keys of one store: plain data, who waits for them, and the process groups that meet under it."""

from __future__ import annotations

from collections import deque
from typing import Any

import simpy


class KeyTable:
    """Shared by all store objects that are connected to it.

    Attributes:
        name: for reports, e.g. `TCPStore at node0:29500`.
        data: key to value.
        queues: key to waiting values; a queue that holds something counts as a present key, but not in `num_keys`.
        hidden: counters of the store itself, which `num_keys` counts and no other call can reach.
        barriers: key to the number of times that a server's barrier was released.
        alive: the process that keeps the keys is there.
        is_served: its users are clients of a server, on the node `node` if that is simulated.
        meetings: prefix to the process groups that are made under it.
    """

    def __init__(self, name: str, *, is_served: bool = False, node: int | None = None) -> None:
        self.name = name
        self.is_served = is_served
        self.node = node
        self.data: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.hidden: dict[str, int] = {}
        self.barriers: dict[str, int] = {}
        self.alive = True
        self.meetings: dict[str, Any] = {}
        self._waiters: dict[str, list[simpy.Event]] = {}

    def has(self, key: str) -> bool:
        """Whether a wait for `key` passes."""
        return key in self.data or bool(self.queues.get(key))

    def put(self, key: str, value: bytes) -> None:
        """Set a key and wake whoever waits for it."""
        self.data[key] = value
        self.wake(key)

    def count(self, hidden_key: str) -> int:
        """Add one to a counter of the store itself."""
        self.hidden[hidden_key] = self.hidden.get(hidden_key, 0) + 1
        self.wake(hidden_key)
        return self.hidden[hidden_key]

    def push(self, key: str, value: bytes) -> None:
        """Append to a queue and wake whoever waits for it."""
        self.queues.setdefault(key, deque()).append(value)
        self.wake(key)

    def wake(self, key: str) -> None:
        """Whoever waits for `key` looks again."""
        for event in self._waiters.pop(key, ()):
            event.succeed()

    def expect(self, key: str, event: simpy.Event) -> None:
        """`event` triggers when `key` changes, or when the store dies."""
        self._waiters.setdefault(key, []).append(event)

    def forget(self, key: str, event: simpy.Event) -> None:
        """Nobody waits for `event` any more."""
        waiters = self._waiters.get(key, [])
        if event in waiters:
            waiters.remove(event)

    def die(self) -> None:
        """The process that keeps the keys is gone."""
        self.alive = False
        for key in list(self._waiters):
            self.wake(key)
