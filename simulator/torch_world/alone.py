"""One simulation at a time in a process: it replaces what belongs to the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from torch.distributed import distributed_c10d as c10d

from simulator.engine.errors import UsageError
from simulator.torch_world.store_base import StoreBase

_MARK = "_hangcheck_simulation"
_REFUSAL = (
    "a simulation is running in this process already (is this one called from a rank, or from another thread?): "
    "run one after the other"
)


@contextmanager
def only_simulation() -> Iterator[None]:
    """Claim the process. The claim is kept with torch's world, which is what two simulations would fight over.

    Raises:
        UsageError: another simulation has it.
    """
    mine = object()
    if vars(c10d).setdefault(_MARK, mine) is not mine:  # one step, so that of two threads only one can win
        raise UsageError(_REFUSAL)
    try:
        yield
    finally:
        delattr(c10d, _MARK)


def refuse_second_simulation() -> None:
    """For whoever is about to make one.

    Raises:
        UsageError: another simulation has replaced torch's classes.
    """
    if issubclass(c10d.PrefixStore, StoreBase):
        raise UsageError(_REFUSAL)


@contextmanager
def one_after_another() -> Iterator[None]:
    """Wait for other threads of the process that are in here too, instead of being refused."""
    with _turn():
        yield


@cache
def _turn() -> threading.Lock:
    """The one of the process."""
    return threading.Lock()
