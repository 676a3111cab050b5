"""The faults that have a name: each is one function of an injection and its own parameters.

To add one, write a function here or in a neighbour, and give it a row. Its parameters are what users may write; its
docstring is what `hangcheck faults` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.faults.clocks import skew, slow
from simulator.faults.cut import cut
from simulator.faults.joiners import early, late, missing
from simulator.faults.processes import kill
from simulator.faults.stores import store_delay, store_end, store_loss

CATALOGUE: Mapping[str, Callable[..., None]] = {
    "kill": kill,
    "slow": slow,
    "skew": skew,
    "store-delay": store_delay,
    "store-loss": store_loss,
    "store-end": store_end,
    "late": late,
    "early": early,
    "missing": missing,
    "cut": cut,
}
