"""One simulation at a time in a process: it replaces what belongs to the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import distributed_c10d as c10d

from simulator.engine.errors import UsageError

_MARK = "_hangcheck_simulation"


@contextmanager
def only_simulation() -> Iterator[None]:
    """Claim the process. The claim is kept with torch's world, which is what two simulations would fight over.

    Raises:
        UsageError: another simulation has it.
    """
    mine = object()
    if vars(c10d).setdefault(_MARK, mine) is not mine:  # one step, so that of two threads only one can win
        raise UsageError(
            "a simulation is running in this process already (is this one called from a rank, or from another thread?): "
            "run one after the other"
        )
    try:
        yield
    finally:
        delattr(c10d, _MARK)
