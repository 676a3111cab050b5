"""Which operations of a run could have come in another order, and whether two runs differ in an order that matters.

Two operations conflict if they touch one target, belong to different tasks, and one of them makes a difference to the
other. Vector clocks tell those conflicts that something else orders (a wait, a collective, another conflict) from those
that only the schedule ordered. Two runs in which all conflicts have the same order are the same for the program
(A. Mazurkiewicz's traces), so one of them is enough: that is the reduction of C. Flanagan and P. Godefroid, "Dynamic
Partial-Order Reduction for Model Checking Software", POPL 2005.

Not seen: memory that ranks share without a call (the buffer of a shared-memory segment), files, sockets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.engine.operations import After, Operation, Target
from simulator.exploration.schedule import Delay

_WAITING_VERBS = frozenset(("get", "wait", "multi_get", "barrier", "acquire", "queue_pop", "attach"))
"""Operations that take effect when they are woken, if they had to wait."""

Entries = Sequence[Operation | After]
Clock = dict[str, int]


class Access(NamedTuple):
    """A target and how it is touched: `read`, `write`, or `join` (a write that only readers see)."""

    target: Target
    mode: str

    def conflicts(self, mode: str) -> bool:
        return self.mode != mode or mode == "write"


class Race(NamedTuple):
    """Two conflicting operations that nothing but the schedule ordered; `position` is that of `earlier` in the log."""

    position: int
    earlier: Operation
    later: Operation


@dataclass(slots=True)
class Order:
    """What the log of one run says.

    Attributes:
        races: in the order of their earlier operations.
        clocks: readings of the clock, with their positions.
        fingerprint: equal for runs in which all conflicts have the same order.
    """

    races: list[Race] = field(default_factory=list)
    clocks: list[tuple[int, Operation]] = field(default_factory=list)
    fingerprint: str = ""

    def next_delays(self, taken: Sequence[Delay]) -> tuple[Delay, ...]:
        """Delays that give a conflict, or a measured time, another outcome; none of `taken`.

        The earlier operation of a race waits for the later one. Between two readings of the clock time passes.
        """
        known = {delay.key for delay in taken}
        operations = [(position, earlier) for position, earlier, _ in self.races] + self._measurements()
        found: dict[tuple[str, int], Delay] = {}
        for _, operation in sorted(operations, key=lambda pair: pair[0]):
            if operation[:2] not in known and operation[:2] not in found:
                found[operation[:2]] = Delay.before(operation)
        return tuple(found.values())

    def _measurements(self) -> list[tuple[int, Operation]]:
        """Readings of the clock after a task's first one: of each place in the code the first."""
        first: dict[str, Operation] = {}
        places: dict[tuple[str, object], tuple[int, Operation]] = {}
        for position, operation in self.clocks:
            if first.setdefault(operation.task, operation) is not operation:
                places.setdefault((operation.task, operation.stack[:1]), (position, operation))
        return list(places.values())


class _Use(NamedTuple):
    """An access as its target remembers it: the clock is that of its task just after it."""

    position: int
    operation: Operation
    access: Access
    clock: Clock


def order_of(entries: Entries) -> Order:
    """Read a log."""
    shape, order = Shape(entries), Order()
    clocks: dict[str, Clock] = {}
    at: list[Clock] = [{}] * len(entries)
    uses: dict[Target, list[_Use]] = {}
    history: dict[Target, list[tuple[str, str]]] = {}
    for position, announced_at, operation in effective(entries):
        entry = entries[position]
        clock = clocks.setdefault(entry.task, {})
        if isinstance(entry, After):
            _join(clock, at[entry.position])
        if operation is not None:
            clock[operation.task] = clock.get(operation.task, 0) + 1
            if operation.verb == "clock":
                order.clocks.append((announced_at, operation))
            for access in shape.accesses(operation):
                order.races += _perform(uses.setdefault(access.target, []), announced_at, operation, access, clock)
                history.setdefault(access.target, []).append((access.mode, f"{operation.task} {operation.number}"))
        at[position] = dict(clock)
    order.races.sort(key=lambda race: race.position)
    order.fingerprint = _fingerprint(history)
    return order


def _perform(uses: list[_Use], position: int, operation: Operation, access: Access, clock: Clock) -> Iterator[Race]:
    """Note an access with its target; the latest conflicts first, since they order the ones before them."""
    for use in reversed(uses):
        task = use.operation.task
        if task != operation.task and use.access.conflicts(access.mode):
            if use.clock[task] > clock.get(task, 0):
                yield Race(use.position, use.operation, operation)
            _join(clock, use.clock)
    if access.mode == "write":
        uses.clear()
    uses.append(_Use(position, operation, access, dict(clock)))


def _join(clock: Clock, other: Clock) -> None:
    for task, count in other.items():
        if count > clock.get(task, 0):
            clock[task] = count


def _fingerprint(history: dict[Target, list[tuple[str, str]]]) -> str:
    """The order of the accesses of each target; neighbours that do not conflict have none."""
    lines = []
    for target, accesses in history.items():
        blocks: list[tuple[str, list[str]]] = []
        for mode, name in accesses:
            if mode == "write" or not blocks or blocks[-1][0] != mode:
                blocks.append((mode, []))
            blocks[-1][1].append(name)
        lines.append(f"{target}: " + "; ".join(f"{mode} {sorted(names)}" for mode, names in blocks))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def effective(entries: Entries) -> Iterator[tuple[int, int, Operation | None]]:
    """Positions in order, each with the operation that takes effect there, if any, and where that was announced."""
    pending: dict[str, tuple[int, Operation]] = {}
    following = _followers(entries)
    for position, entry in enumerate(entries):
        if isinstance(entry, Operation):
            if entry.verb in _WAITING_VERBS and isinstance(following.get(position), After):
                pending[entry.task] = (position, entry)
                yield position, position, None
            else:
                yield position, position, entry
        else:
            announced_at, operation = pending.pop(entry.task, (position, None))
            yield position, announced_at, operation


def _followers(entries: Entries) -> dict[int, Operation | After]:
    """Position to the next entry of the same task."""
    last: dict[str, int] = {}
    found: dict[int, Operation | After] = {}
    for position, entry in enumerate(entries):
        if entry.task in last:
            found[last[entry.task]] = entry
        last[entry.task] = position
    return found


class Shape:
    """What of a run decides whether operations conflict at all: which conflicts would make no difference in it.

    Messages conflict only where their receiver takes any source; creations of a group only if another list, a second
    life or a newcomer meets it; writes of keys see readers of all keys only if there are any.
    """

    def __init__(self, entries: Entries) -> None:
        self._any_source: set[Target] = set()
        self._listed: set[object] = set()
        self._groups: dict[object, dict[tuple[str, object], int]] = {}
        for entry in entries:
            if isinstance(entry, Operation):
                self._see(entry)

    def _see(self, operation: Operation) -> None:
        kind, rest = operation.target[0], operation.target[1:]
        if kind == "receive" and rest[2] == -1:
            self._any_source.add(rest[:2])
        elif kind == "keys":
            self._listed.add(rest[0])
        elif kind == "group":
            made = self._groups.setdefault(rest[0], {})
            who = (operation.task, rest[1:])
            made[who] = made.get(who, 0) + 1

    def accesses(self, operation: Operation) -> Iterator[Access]:
        """What `operation` touches in a way that can matter."""
        target, mode = operation.target, "write" if operation.writes else "read"
        kind, rest = target[0], target[1:]
        if kind == "message":
            yield Access(target[:3] if rest[:2] in self._any_source else target, "write")
        elif kind == "receive":
            yield Access(target[:3], "write")
        elif kind == "group":
            if self._contested(rest[0]):
                yield Access(target[:2], "write")
        elif kind not in ("clock", "task"):
            yield Access(target, mode)
            if kind == "key" and operation.writes and rest[0] in self._listed:
                yield Access(("keys", rest[0]), "join")

    def _contested(self, path: object) -> bool:
        made = self._groups[path]
        return len({ranks for _, ranks in made}) > 1 or max(made.values()) > 1
