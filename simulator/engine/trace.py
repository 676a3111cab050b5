"""What happened, in order, as data. The same program and seed give the same bytes.

An event is stored as a small tuple and formatted only when somebody reads the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class TraceEvent(NamedTuple):
    """One event.

    Attributes:
        time_s: virtual seconds since the run began.
        rank: global rank, or -1 for the simulation itself.
        kind: one word, e.g. `start`, `new_group`, `group`, `enter`, `complete`, `wait`, `end`.
        detail: what the kind needs, all of it printable.
    """

    time_s: float
    rank: int
    kind: str
    detail: tuple[object, ...]

    def __str__(self) -> str:
        words = " ".join(str(d) for d in self.detail)
        return f"{self.time_s:.6f} r{self.rank} {self.kind} {words}".rstrip()


Event = tuple[float, int, str, tuple[object, ...]]
"""As TraceEvent, without its name: what is stored."""


class Trace:
    """An append-only list of events.

    Attributes:
        append: add an event as it is stored; for callers that do so a million times.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.append = self._events.append

    def add(self, time_s: float, rank: int, kind: str, *detail: object) -> None:
        """Append one event."""
        self.append((time_s, rank, kind, detail))

    def kinds_from(self, start: int) -> list[str]:
        """The kinds of the events from the `start`th on."""
        return [event[2] for event in self._events[start:]]

    def seal(self) -> None:
        """Drop whatever comes later: the run is over and stuck ranks are being unwound."""
        self._events = list(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[TraceEvent]:
        return (TraceEvent(*event) for event in self._events)

    def to_text(self) -> str:
        """One line an event, first the format's version."""
        return "\n".join(["hangcheck-trace 1", *(str(event) for event in self)]) + "\n"
