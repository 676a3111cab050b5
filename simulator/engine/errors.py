"""The three classes of error (user, simulator, end of a rank), kept apart on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine.site import Stack


class HangcheckError(Exception):
    """Base of what the simulator raises at its caller."""


class UsageError(HangcheckError):
    """The caller asked for something that cannot be: one line says what was given and what would do."""


class SimulatorFault(HangcheckError):
    """A bug of the simulator itself, never of the code under test."""


class RankEnded(BaseException):
    """Unwinds a rank's stack. A BaseException, so that `except Exception` in user code does not stop it.

    Attributes:
        how: `killed` (the run is over or a fault struck), `exit` (os._exit), or `crash` (a modelled native crash).
        code: the exit status that a real process would have had.
        stack: the user frames that asked for the end, innermost first, if they did.
    """

    def __init__(self, how: str = "killed", code: int = 0) -> None:
        super().__init__(how, code)
        self.how = how
        self.code = code
        self.stack: Stack = ()


def require(holds: bool, message: str) -> None:
    """Raise a UsageError with `message` unless `holds`."""
    if not holds:
        raise UsageError(message)
