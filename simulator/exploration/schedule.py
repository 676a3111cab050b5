"""A schedule: who is delayed where, against the run in order. Data, with a text form.

    hangcheck-schedule 1
    program: hangcheck run --seed 0 --nproc-per-node 2 serve.py
    delay: r0 3 set key 'ready' of TCPStore at node0:29500 @ serve.py:12

A delay names a task (`r0`: the main thread of rank 0), the number of its operation before which it falls behind (0: its
start), and, after that, what this operation was. `simulator.engine.lag` says what falling behind means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.engine.errors import UsageError
from simulator.engine.lag import Recipe
from simulator.engine.operations import Operation
from simulator.exploration.wording import described

HEADER = "hangcheck-schedule 1"
NOWHERE = "-"
"""Stands for the place of an operation that no line of user code asked for."""
_FIELDS = ("program", "delay")


@dataclass(frozen=True, slots=True)
class Delay:
    """`task` falls behind before its operation `number`, which is `what`, made at `place` (`file:line`, or nothing)."""

    task: str
    number: int
    what: str
    place: str = ""

    @classmethod
    def before(cls, operation: Operation) -> Delay:
        """The delay that strikes before an operation."""
        place = operation.stack[0].place if operation.stack else ""
        return cls(operation.task, operation.number, described(operation), place)

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.number

    def __str__(self) -> str:
        return f"{self.task} {self.number} {self.what} @ {self.place or NOWHERE}"


@dataclass(frozen=True, slots=True)
class Schedule(Recipe):
    """Delays, in the order in which they strike, and the program that they are for.

    Attributes:
        program: a command that runs the program in order.
    """

    delays: tuple[Delay, ...] = ()
    program: str = ""

    def start(self) -> Follower:
        """For one run."""
        return Follower(self.delays)

    def to_text(self) -> str:
        """One line a fact, first the format's version."""
        return "\n".join([HEADER, f"program: {self.program}", *(f"delay: {delay}" for delay in self.delays)]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Schedule:
        """The opposite of `to_text`; empty lines and lines that begin with # say nothing.

        Raises:
            UsageError: with the number of the line that is wrong.
        """
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
        facts = [(number, line) for number, line in lines if line and not line.startswith("#")]
        if not facts or facts[0][1] != HEADER:
            raise UsageError(f"line 1: a schedule begins with {HEADER!r}")
        fields: dict[str, list[tuple[int, str]]] = {name: [] for name in _FIELDS}
        for number, line in facts[1:]:
            name, colon, value = line.partition(":")
            if not colon or name not in fields:
                raise UsageError(f"line {number}: {line!r}: give 'program: COMMAND' or 'delay: TASK NUMBER OPERATION'")
            fields[name].append((number, value.strip()))
        if len(fields["program"]) > 1:
            raise UsageError(f"line {fields['program'][1][0]}: a schedule is for one program")
        program = fields["program"][0][1] if fields["program"] else ""
        return cls(tuple(_delay(number, value) for number, value in fields["delay"]), program)


def _delay(number: int, text: str) -> Delay:
    words, at, place = text.rpartition(" @ ")
    words, place = (words, "" if place == NOWHERE else place) if at else (text, "")
    task, _, rest = _task_of(words)
    count, _, what = rest.partition(" ")
    if not task or not count.isdecimal() or not what:
        raise UsageError(f"line {number}: {text!r}: give a task, the number of its operation, and what that is")
    return Delay(task, int(count), what, place)


def _task_of(words: str) -> tuple[str, str, str]:
    """A thread's name may have spaces: the task ends before the first number."""
    parts = words.split(" ")
    at = next((index for index, part in enumerate(parts) if index and part.isdecimal()), len(parts))
    return " ".join(parts[:at]), " ", " ".join(parts[at:])


class Follower:
    """The delays of a schedule during one run of it.

    Attributes:
        misfits: what was met in place of the operation that a delay names.
    """

    def __init__(self, delays: Iterable[Delay]) -> None:
        self._delays = {delay.key: (index, delay) for index, delay in enumerate(delays, 1)}
        self._met: dict[tuple[str, int], None] = {}
        self.misfits: list[tuple[Delay, Operation]] = []

    def __call__(self, operation: Operation) -> int:
        found = self._delays.get(operation[:2])
        if found is None:
            return 0
        self._met[operation[:2]] = None
        if found[1].what != described(operation):
            self.misfits.append((found[1], operation))
        return found[0]

    def check(self) -> None:
        """After the run: did the schedule fit the program?

        Raises:
            UsageError: the program is another one now.
        """
        for delay, operation in self.misfits:
            there = Delay.before(operation)
            raise UsageError(
                f"the schedule no longer fits the program: operation {delay.number} of {delay.task} is "
                f"'{there.what}' at {there.place}, and was '{delay.what}' at {delay.place}; explore it again"
            )
        for key, (_, delay) in self._delays.items():
            if key not in self._met:
                raise UsageError(
                    f"the schedule no longer fits the program: {delay.task} does not come to its operation "
                    f"{delay.number} ('{delay.what}' at {delay.place}); explore it again"
                )
