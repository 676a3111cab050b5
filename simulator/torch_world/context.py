"""What one simulated process has of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch.distributed import distributed_c10d as c10d

from simulator.torch_world.modules import OwnModules

EPOCH_S = 1_767_225_600.0
"""Virtual time 0 as time.time() shows it: 2026-01-01T00:00:00Z."""


@dataclass(frozen=True, slots=True)
class Node:
    """A simulated host."""

    number: int
    gpus: int

    @property
    def host(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        """Of the simulated network."""
        return f"10.0.{(self.number + 1) // 256}.{(self.number + 1) % 256}"


class World(c10d._World):
    """torch's container of group state, with dictionaries of its own instead of the module's globals."""

    def __init__(self) -> None:
        super().__init__()
        self._pg_map: dict[Any, Any] = {}
        self._pg_names: dict[Any, Any] = {}
        self._pg_group_ranks: dict[Any, Any] = {}
        self._pg_backend_config: dict[Any, Any] = {}
        self._group_count = 0
        self._tags_to_pg: dict[str, list[Any]] = {}
        self._pg_to_tag: dict[Any, str] = {}

    @property
    def pg_map(self) -> dict[Any, Any]:
        return self._pg_map

    @property
    def pg_names(self) -> dict[Any, Any]:
        return self._pg_names

    @property
    def pg_group_ranks(self) -> dict[Any, Any]:
        return self._pg_group_ranks

    @property
    def pg_backend_config(self) -> dict[Any, Any]:
        return self._pg_backend_config

    @property
    def group_count(self) -> int:
        return self._group_count

    @group_count.setter
    def group_count(self, value: int) -> None:
        self._group_count = value

    @property
    def tags_to_pg(self) -> dict[str, list[Any]]:
        return self._tags_to_pg

    @property
    def pg_to_tag(self) -> dict[Any, str]:
        return self._pg_to_tag


@dataclass(slots=True, eq=False)
class OwnProcess:
    """What a rank has changed about its process.

    Attributes:
        cwd: its working directory, once it has changed it.
        excepthook: `sys.excepthook` as the rank found it.
        handlers: signal handlers, by number.
        exit_hooks: what was registered with `atexit`: function, arguments, keywords.
        entropy: what `os.urandom` draws from.
        thread_numbers: of its threads without a name.
        pool_numbers: of its thread pools without a name.
        locks: numbers of its locks.
    """

    cwd: str | None = None
    excepthook: Any = None
    handlers: dict[int, Any] = field(default_factory=dict)
    exit_hooks: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    entropy: random.Random | None = None
    thread_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    pool_numbers: Iterator[int] = field(default_factory=count)
    locks: Iterator[int] = field(default_factory=count)


@dataclass(slots=True, eq=False)
class RankContext:
    """One rank.

    Attributes:
        rank: global rank.
        local_rank: rank on its node within its cohort.
        cohort: name of the cohort it was launched with.
        env: its environment, encoded as os.environ keeps it.
        saved: process-wide values, by name, while another rank has the baton.
        registered: the groups that torch has registered, by name.
        registered_on: for each task (by number), the names that torch's registry of its thread has.
        groups: the process groups that the rank has made.
        woken_by_threads: (task, event) of selectors; the event triggers once another thread of the rank has run.
        modules: its own instances of isolated modules, and what goes with them, while another rank has the baton.
        pending: the `new_group` call under way; `call` is the record that each call of the rank fills in anew.
        world_record: its default group, with where its calls are noted.
        process: what it has changed about its process.
        joins: it came after the launch.
        cohort_ranks: the ranks that started together with it; for a rank that takes a lost slot, all launched ranks.
        outsiders: for a joiner of a scale-up, the ranks before its cohort.
        device: what it has given its device to do, if a backend has one.
        symmetric: its symmetric memory, once it has any; `watch` sees its torch operations on it.
        in_flight: its asynchronous calls, once there is one.
        unheard: calls of its device that its current stream waits for.
        gpus: the simulated GPUs that it sees, if the cluster has an accelerator.
    """

    rank: int
    local_rank: int
    cohort: str
    node: Node
    env: dict[bytes, bytes]
    pid: int
    parent_pid: int
    seed: int
    world: World = field(default_factory=World)
    saved: dict[str, Any] = field(default_factory=dict)
    registered: dict[str, Any] = field(default_factory=dict)
    registered_on: dict[int, dict[str, None]] = field(default_factory=dict)
    groups: list[Any] = field(default_factory=list)
    modules: OwnModules = field(default_factory=OwnModules)
    woken_by_threads: list[Any] = field(default_factory=list)
    pending: Any = None
    call: Any = None
    world_record: Any = None
    symmetric: Any = None
    watch: Any = None
    in_flight: Any = None
    unheard: list[Any] = field(default_factory=list)
    process: OwnProcess = field(default_factory=OwnProcess)
    joins: bool = False
    cohort_ranks: range = range(1 << 16)
    outsiders: range | None = None
    numpy_random: Any = None
    python_random: random.Random | None = None
    tasks: list[Any] = field(default_factory=list)
    ended: bool = False
    clock_skew_s: float = 0.0
    device: Any = None
    gpus: Any = None

    def generator(self) -> random.Random:
        """The rank's own generator behind the functions of the module `random`."""
        if self.python_random is None:
            self.python_random = random.Random(self.seed)
        return self.python_random

    def torch_seed(self) -> int:
        """What torch's generator starts with: every process draws its own from the system."""
        return (self.seed * 6364136223846793005 + 1442695040888963407) % (1 << 63)

    def random_bytes(self, count: int) -> bytes:
        """What the rank gets from `os.urandom`: not random at all, so that a run can be repeated."""
        if self.process.entropy is None:
            self.process.entropy = random.Random(self.torch_seed() + 1)
        return self.process.entropy.randbytes(count)
