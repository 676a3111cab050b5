"""The signals that ranks put into each other's pads: set a word from 0 to 1, or wait for 1 and set it back to 0.

Rank r of a group of W ranks has slot `channel * W + r` in every pad of the group. Each step is one compare-and-swap of
the waiting rank's host, system-wide: with release order to put a signal, acquire to take one. torch does it in a kernel
on the current stream, one thread for each peer, so here too the peers are served in any order.

Not modelled: the host running ahead of the stream. A rank whose signal does not come waits in the call.

Source: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu and CUDASymmetricMemory-inl.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.engine.site import Stack
from simulator.memory_records import Access, WordWait
from simulator.torch_world.symmetric_space import WORD, Allocation

if TYPE_CHECKING:
    from simulator.torch_world.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Step:
    """One compare-and-swap: wait until the word in `slot` is 0 and set it to 1 (`puts`), or the other way round.

    Attributes:
        pad: the allocation whose pad it is.
        peer: global rank of the other end.
        place: the word, for people.
    """

    pad: Allocation
    slot: int
    puts: bool
    peer: int
    place: str

    @property
    def ready(self) -> bool:
        return bool(self.pad.words[self.slot] == (0 if self.puts else 1))

    @property
    def region(self) -> int:
        region = self.pad.pad.region
        assert region is not None
        return region.number

    @property
    def told(self) -> str:
        """What has not happened, while it is not ready."""
        if self.puts:
            return f"rank {self.peer} has not taken the signal before ({self.place} is still 1)"
        return f"rank {self.peer} has not put its signal ({self.place} is 0)"


class Signals:
    """One call of one rank: a sequence of steps for each peer, all peers at once."""

    def __init__(self, sim: Simulation, op: str, ranks: tuple[int, ...], stack: Stack) -> None:
        self._sim = sim
        self._op = op
        self._ranks = ranks
        self._stack = stack
        self._actor = sim.memory.host(sim.must_be_here(op).rank).number

    def exchange(self, peers: Sequence[Sequence[Step]], timeout_s: float | None) -> Step | None:
        """Take all steps; without a time-out this may last for ever.

        Returns:
            None, or the step on which it was waiting when `timeout_s` virtual seconds had passed.
        """
        scheduler = self._sim.scheduler
        deadline_s = None if timeout_s is None else scheduler.env.now + timeout_s
        left = [list(steps) for steps in peers]
        while left:
            took = [self._take(steps) for steps in left]
            left = [steps for steps in left if steps]
            if left and not any(took):
                left_s = None if deadline_s is None else deadline_s - scheduler.env.now
                if not self._wait([steps[0] for steps in left], left_s):
                    return left[0][0]
        scheduler.progress()
        return None

    def _take(self, steps: list[Step]) -> bool:
        """Take the first step, if it can be taken."""
        step = steps[0]
        self._sim.announce(self._op, ("word", step.region, step.slot), writes=step.ready)
        if not step.ready:
            return False
        steps.pop(0)
        wrote = int(step.puts)
        step.pad.words[step.slot] = wrote
        span = (step.region, step.slot * WORD, (step.slot + 1) * WORD)
        order = "release" if step.puts else "acquire"
        access = Access(self._actor, "rmw", order, "sys", (span,), self._stack, True, 1 - wrote, wrote)
        self._sim.memory.record(access)
        return True

    def _wait(self, steps: Sequence[Step], left_s: float | None) -> bool:
        peers = tuple(dict.fromkeys(step.peer for step in steps))
        words = tuple((step.region, step.slot * WORD) for step in steps)
        told = "; ".join(step.told for step in steps)
        what = WordWait(self._actor, words, self._ranks, peers, self._op, told)
        return self._sim.memory.wait_written(what, self._op, self._stack, left_s)
