"""Plain data that a run leaves for the analysis. No torch, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simulator.engine.site import Stack
from simulator.memory_records import MemoryLog


@dataclass(frozen=True, slots=True)
class GroupView:
    """A process group as people speak of it.

    Attributes:
        name: torch's internal name (a counter, or a hash for local synchronisation).
        desc: the description given by the user (`group_desc`), e.g. `tp:device`.
        ranks: global ranks, in group-rank order.
        backend: `gloo`, `nccl`, `mooncake`, `mooncake-cpu`.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str

    @property
    def label(self) -> str:
        """The description if there is one, else the name; a hash is cut to eight digits."""
        return label_of(self.name, self.desc)


def label_of(name: str, desc: str) -> str:
    """What people call a group of this name and description."""
    return desc if desc not in ("", "undefined") else f"#{name[:8]}"


@dataclass(slots=True)
class Gathering:
    """Something that completes only when all of its ranks are there: a collective, or the creation of a group.

    Attributes:
        op: `all_reduce`, `create`, ...
        seq: number of the collective in its group, from 0; None for a creation.
        arrived: rank to the stack with which it came.
        held_by: the fault that keeps it from completing, though all may have come.
    """

    op: str
    group: GroupView
    seq: int | None
    arrived: dict[int, Stack] = field(default_factory=dict)
    held_by: str = ""

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(r for r in self.group.ranks if r not in self.arrived)


@dataclass(slots=True)
class PeerWait:
    """A send or receive that waits for its partner (`peer` -1: any source); both must be on one `channel`.

    `held_by`: the fault that keeps it from its partner.
    """

    op: str
    group: GroupView
    rank: int
    peer: int
    tag: int
    channel: str = "group"
    held_by: str = ""


@dataclass(slots=True)
class KeyWait:
    """A wait for store keys that nobody has set yet. `reason` says what that means, where a key does not say it."""

    keys: tuple[str, ...]
    store: str
    reason: str = ""


@dataclass(slots=True)
class GroupSlot:
    """One position in the order of world-mode `new_group` calls of one default group.

    Attributes:
        ranks: the list that the first caller gave; `given` as the list that it was, `members` as a set.
        calls: rank to the stack of its call; filled in by `WorldRecord.settled`.
        others: the lists of those ranks that gave another one than `ranks`.
        returned: what the call gave to those who joined after the launch.
        name: torch's internal name, as the first caller counts.
    """

    index: int
    ranks: tuple[int, ...]
    desc: str
    backend: str
    extension: bool
    given: list[int]
    members: frozenset[int]
    calls: dict[int, Stack] = field(default_factory=dict)
    others: dict[int, tuple[int, ...]] = field(default_factory=dict)
    returned: dict[int, str] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """The description if there is one, else the name that the first caller has for it."""
        return label_of(self.name, self.desc)


@dataclass(slots=True)
class WorldRecord:
    """The world-mode `new_group` calls of all ranks whose default group is the same, in order.

    Attributes:
        members: rank to its cohort, for ranks that made such a call.
        stacks: rank to the stacks of its calls, in order: one list a rank, since a large bring-up makes millions.
    """

    key: str
    size: int
    members: dict[int, str] = field(default_factory=dict)
    slots: list[GroupSlot] = field(default_factory=list)
    stacks: dict[int, list[Stack]] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """Names the default group whatever its size."""
        return self.key.split("size ")[0]

    def count(self, rank: int) -> int:
        """How many calls `rank` made."""
        return len(self.stacks.get(rank, ()))

    def shortest(self) -> int:
        """The number of calls that every rank of the default group made."""
        return min(self.count(rank) for rank in range(self.size))

    def settled(self, slot: GroupSlot) -> GroupSlot:
        """`slot` with its `calls`."""
        slot.calls = {rank: own[slot.index] for rank, own in sorted(self.stacks.items()) if len(own) > slot.index}
        return slot


@dataclass(frozen=True, slots=True)
class Note:
    """An observation made while the run went on."""

    kind: str
    rank: int
    text: str
    stack: Stack
    time_s: float
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Blocked:
    """One task that waits, as seen when nothing could move any more.

    `read_at`: where its host waits for a device, if not at the call itself.
    """

    rank: int
    thread: str
    kind: str
    text: str
    stack: Stack
    what: object
    read_at: Stack = ()


@dataclass(slots=True)
class RankRecord:
    """How one rank fared.

    Attributes:
        status: `ok`, `exception`, `exit`, `crash`, `killed`, `stuck`.
        error: type and first line of the exception; `traceback` has all of it.
        fault: the fault that killed it, or raised in it.
        has_gpus: it had simulated GPUs.
    """

    rank: int
    cohort: str
    status: str = "stuck"
    error: str = ""
    error_type: str = ""
    stack: Stack = ()
    exit_code: int = 0
    start_s: float = 0.0
    end_s: float | None = None
    traceback: str = ""
    fault: str = ""
    has_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault took place: at `rank` (-1: at none in particular), at `time_s`, doing `text`; `stack` says where."""

    rank: int
    time_s: float
    text: str
    stack: Stack = ()


@dataclass(slots=True)
class InjectedFault:
    """A fault that was asked for, and what came of it.

    Attributes:
        text: as it is written on a command line.
        first: its first strike; None: it never struck, and `why_not` says why.
        count: how often it struck.
        spent_s: virtual seconds that ranks lost to it.
        ranks: those that it struck, in that order.
        killed: those that it killed, also those that it started again.
        ended: those that it has ended, or kept from starting, for good.
        keys: of stores, whose change it held up.
    """

    text: str
    first: Strike | None = None
    count: int = 0
    spent_s: float = 0.0
    ranks: dict[int, None] = field(default_factory=dict)
    killed: dict[int, None] = field(default_factory=dict)
    ended: dict[int, None] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    why_not: str = ""


@dataclass(slots=True)
class Records:
    """Everything the analysis may look at.

    Attributes:
        worlds: the `new_group` calls, by default group.
        modes: (description, ranks) of a group to the calls for it that synchronise locally, and the others of ranks
            that came later: (rank, cohort) to whether it is local, and its stack.
        stalls: moments at which only time-outs were left, with what waited then.
        final: what waited when the run ended.
        memory: what was done to memory that ranks share.
        faults: those that were asked for, in that order.
        faults_end_s: when they ended at the latest; None: never.
        idle_since_s: since when nothing got done although faults had ended, if that has ended the run.
    """

    worlds: dict[str, WorldRecord] = field(default_factory=dict)
    modes: dict[tuple[str, tuple[int, ...]], dict[tuple[int, str], tuple[bool, Stack]]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    stalls: list[tuple[float, tuple[Blocked, ...]]] = field(default_factory=list)
    final: tuple[Blocked, ...] = ()
    memory: MemoryLog = field(default_factory=MemoryLog)
    faults: list[InjectedFault] = field(default_factory=list)
    faults_end_s: float | None = None
    idle_since_s: float | None = None
