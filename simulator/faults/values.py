"""What stands behind the equals signs of a fault: times, ranks, moments and so on, read from texts and printed.

A value's `str` reads back as an equal value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simulator.engine.errors import UsageError, require

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SPAN = re.compile(r"(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(us|ms|s|min|m|h)")
OPERATIONS = (
    "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "scatter",
    "send", "recv", "create", "store",
)  # fmt: skip
"""What a moment can name: collectives, messages, the creation of a group, a request to a store; `call` is any."""
STORE_OPERATIONS = (
    "add", "append", "barrier", "check", "compare_set", "delete_key", "get", "list_keys", "multi_get", "multi_set",
    "num_keys", "queue_len", "queue_pop", "queue_push", "set", "wait", "wait_for_workers",
)  # fmt: skip
_SPELLINGS = {
    "allgatherintotensor": "all_gather", "allgathersingle": "all_gather", "allgatherbase": "all_gather",
    "reducescattertensor": "reduce_scatter", "reducescattersingle": "reduce_scatter", "alltoallsingle": "all_to_all",
    "isend": "send", "irecv": "recv", "newgroup": "create", "initprocessgroup": "create",
    "gatherintotensor": "gather",
    **{name.replace("_", ""): name for name in (*OPERATIONS, "call")},
}  # fmt: skip


def operation_name(text: str) -> str | None:
    """The name of an operation, however it is spelled (`allreduce`, `all_reduce`); None: there is none."""
    return _SPELLINGS.get(text.lower().replace("_", ""))


class Seconds(float):
    """Virtual seconds, 0 or more: `2.5s`, `50ms`."""

    def __str__(self) -> str:
        return f"{_number(self)}s"


class Offset(Seconds):
    """Virtual seconds, also below 0."""


class Chance(float):
    """A probability above 0 and up to 1."""

    def __str__(self) -> str:
        return _number(self)


class Rate(float):
    """A clock's drift in millionths: the microseconds that it gains in a second, `100ppm`."""

    def __str__(self) -> str:
        return f"{_number(self)}ppm"


class Count(int):
    """1 or more."""


class Node(int):
    """The number of a node, from 0."""


class CohortName(str):
    """As the trace has it: `launch`, `scale-1`, `recover-1`."""


class StoreOperation(str):
    """One of `STORE_OPERATIONS`."""


class How(StrEnum):
    """How a process ends."""

    KILL = "kill"
    """As by SIGKILL: nothing of it runs any more."""
    RAISE = "raise"
    """An exception, `InjectedError`, which code may catch."""


class Ranks(tuple[int, ...]):
    """Global ranks: `2`, `0,3-5`; empty for `any`, one that the seed chooses."""

    __slots__ = ()

    def __str__(self) -> str:
        return _spans(self) if self else "any"


@dataclass(frozen=True, slots=True)
class Moment:
    """A virtual time (`2.5s`), or the nth call of a rank: of any (`call#7`) or of one kind (`all_reduce#3`)."""

    at_s: float | None = None
    operation: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.operation}#{self.number}" if self.at_s is None else str(Seconds(self.at_s))


class Reader(NamedTuple):
    """How a value is read, and what would do, for error messages and the list of faults."""

    read: Callable[[str], object]
    form: str
    what: str


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def _spans(numbers: tuple[int, ...]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in parts)


def _offset(text: str) -> Offset:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return Offset(float(found[1]) * _UNITS_S[found[2]])


def _seconds(text: str) -> Seconds:
    seconds = _offset(text)
    if seconds < 0:
        raise ValueError(text)
    return Seconds(seconds)


def read_seconds(text: str) -> float:
    """A time with its unit, in seconds.

    Raises:
        UsageError: no such time.
    """
    try:
        return float(_seconds(text))
    except ValueError:
        raise UsageError(f"{text!r}: give a time with its unit, such as 2.5s, 50ms or 2min") from None


def _ranks(text: str) -> Ranks:
    if text == "any":
        return Ranks()
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.partition("-")
        span = range(_whole(first), _whole(last if dash else first) + 1)
        if not span or span[-1] >= 1 << 16:
            raise ValueError(text)
        numbers.update(dict.fromkeys(span))
    return Ranks(sorted(numbers))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)


def _count(text: str) -> Count:
    if _whole(text) < 1:
        raise ValueError(text)
    return Count(text)


def _chance(text: str) -> Chance:
    if not 0 < float(text) <= 1:
        raise ValueError(text)
    return Chance(text)


def _rate(text: str) -> Rate:
    value, _, rest = text.partition("ppm")
    rate = Rate(value)
    if rest or "ppm" not in text or not -1e6 < rate < float("inf"):
        raise ValueError(text)
    return rate


def _moment(text: str) -> Moment:
    name, sign, number = text.partition("#")
    if not sign:
        return Moment(float(_seconds(text)))
    operation = operation_name(name)
    if operation is None or _whole(number) < 1:
        raise ValueError(text)
    return Moment(None, operation, int(number))


def _cohort(text: str) -> CohortName:
    if not re.fullmatch(r"launch|(?:scale|recover)-[1-9]\d*", text):
        raise ValueError(text)
    return CohortName(text)


def _store_operation(text: str) -> StoreOperation:
    if text not in STORE_OPERATIONS:
        raise ValueError(text)
    return StoreOperation(text)


READERS: Mapping[type, Reader] = {
    Seconds: Reader(_seconds, "TIME", "a time with its unit, such as 2.5s, 50ms or 2min"),
    Offset: Reader(_offset, "±TIME", "a time with its unit, such as 3s or -50ms"),
    Chance: Reader(_chance, "P", "a probability above 0 and up to 1, such as 0.1"),
    Rate: Reader(_rate, "PPM", "a drift in millionths, such as 100ppm or -20ppm"),
    Count: Reader(_count, "N", "a whole number, 1 or more"),
    Node: Reader(lambda text: Node(_whole(text)), "NODE", "the number of a node, from 0"),
    How: Reader(How, "kill|raise", "kill (as SIGKILL) or raise (an exception)"),
    Ranks: Reader(_ranks, "RANKS", "ranks, such as 2 or 0,3-5, or any for one that the seed chooses"),
    CohortName: Reader(_cohort, "COHORT", "the name of a cohort: launch, scale-1, recover-1, ..."),
    StoreOperation: Reader(_store_operation, "OP", f"a request to a store: {', '.join(STORE_OPERATIONS)}"),
    Moment: Reader(
        _moment,
        "MOMENT",
        "a time (2.5s), the nth call (call#7), or the nth of its kind (all_reduce#3); kinds: "
        + ", ".join(OPERATIONS),
    ),
}  # fmt: skip


def read_value(kind: type, name: str, text: str) -> object:
    """`text` as a value of `kind`.

    Raises:
        UsageError: it is none; what would do.
    """
    try:
        return READERS[kind].read(text)
    except ValueError:
        raise UsageError(f"{name}={text}: give {READERS[kind].what}") from None


def check_value(kind: type, name: str, value: object) -> None:
    """Raise unless `value` is of `kind`."""
    require(isinstance(value, kind), f"{name}={value!r}: give {READERS[kind].what}")
