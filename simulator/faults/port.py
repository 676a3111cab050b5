"""What faults need of a simulation: the protocol between this package, which knows no torch, and what acts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from simulator.engine.site import Stack


class Port(Protocol):
    """The run that faults are injected into. Ranks are global."""

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""

    @property
    def ranks(self) -> Collection[int]:
        """All that any cohort has."""

    @property
    def nodes(self) -> int:
        """How many hosts there are."""

    def here(self) -> int | None:
        """The calling rank; None outside the ranks, and once the run is over."""

    def node_of(self, rank: int) -> int:
        """Its host."""

    def state_of(self, rank: int) -> str:
        """Why `rank` cannot be struck: it has ended, or not started yet. Nothing if it runs."""

    def doing(self, rank: int) -> tuple[str, Stack]:
        """What `rank` does, as a phrase, and where."""

    def stack(self) -> Stack:
        """Where the calling rank is."""

    def log(self, rank: int, fault: str, text: str) -> None:
        """Add a strike to the trace."""

    def later(self, at_s: float, action: Callable[[], None]) -> None:
        """Do `action` at a virtual time."""

    def sleep(self, seconds: float, fault: str) -> None:
        """The calling rank loses virtual time."""

    def wait_for_ever(self, text: str, keys: Sequence[str], store: str, fault: str) -> None:
        """The calling rank waits for a store that it cannot reach."""

    def kill(self, rank: int, fault: str, stack: Stack) -> None:
        """End its process; does not return if it is the calling one."""

    def interrupt(self, rank: int, fault: str, error: Exception) -> None:
        """Raise in its main thread."""

    def restart(self, rank: int, after_s: float) -> None:
        """Start a new process of the rank later."""

    def refuse_connection(self) -> Exception:
        """What a client raises whose kernel has given up."""

    def end_stores(self) -> int:
        """End all TCPStore servers; how many."""

    def kinds_of_events(self, start: int) -> list[str]:
        """Kinds of the events of the trace from the `start`th on."""

    def give_up(self) -> None:
        """End the run: nothing gets done any more."""
