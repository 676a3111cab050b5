"""A line on stderr that says how far a run is, once the run takes longer than about a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from simulator.engine.scheduler import Scheduler

QUIET_S = 1.0
"""Wall seconds before the line appears, and between two lines where stderr is not a terminal."""


class Progress:
    """Use as a context manager around a run, with `tick` as the run's `on_tick`.

    Args:
        wanted: True and False force; None: only if stderr is a terminal.
    """

    def __init__(self, wanted: bool | None = None) -> None:
        self._wanted = sys.stderr.isatty() if wanted is None else wanted
        self._since = monotonic()
        self._console: Console | None = None
        self._live: Live | None = None

    def tick(self, scheduler: Scheduler) -> None:
        """Show where `scheduler` is."""
        self.show(lambda: describe(scheduler))

    def show(self, line: Callable[[], str]) -> None:
        """Show what `line` returns, if it is time to."""
        if not self._wanted or monotonic() - self._since < QUIET_S:
            return
        if self._console is None:
            self._open()
        text = line()
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text), refresh=True)
        elif self._console is not None:
            self._since = monotonic()
            self._console.print(text, highlight=False, soft_wrap=True)

    def _open(self) -> None:
        """rich is imported late: most runs are over before there is anything to show."""
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        if self._console.is_terminal:
            shared = sys.stdout.isatty()  # what the ranks print then goes above the line, instead of through it
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=shared,
                redirect_stderr=shared,
            )
            self._live.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def describe(scheduler: Scheduler) -> str:
    """One line: virtual time, ranks alive and finished, switches so far."""
    known: dict[int, bool] = {}
    for task in list(scheduler.tasks):
        known[task.owner.rank] = known.get(task.owner.rank, False) or task.alive
    alive = sum(known.values())
    return (
        f"hangcheck: {float(scheduler.env.now):.3f} s of virtual time, {alive} of {len(known)} ranks alive, "
        f"{scheduler.switches} switches"
    )
