"""What ranks and kernels did to memory that others can reach, as plain data, in the order of the run. No torch.

Everything that orders two accesses is an event of its own: `Publish` and `Observe` for what the host sees (a launch and
its end, a collective, a store key), `CtaBarrier` and `Fence` for what happens inside a kernel, and the order and scope
of an atomic access.  `simulator.analysis.races` reads them.

Not recorded: memory that only its own rank can reach, and which thread of a program makes an access of a whole block.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.engine.site import Stack


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of memory that more than one rank can reach.

    Attributes:
        number: from 0, in the order of allocation.
        rank: global rank of its owner.
        kind: `buffer` or `pad` (the signal pad of a buffer).
        nbytes: its size in bytes.
        label: for people, e.g. `buffer of rank 2`.
        stack: where it was allocated.
    """

    number: int
    rank: int
    kind: str
    nbytes: int
    label: str
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class Actor:
    """What executes in program order: the host of a rank, or one program (CTA) of one launch of a kernel.

    Attributes:
        number: from 0, in the order of appearance.
        rank: global rank.
        kernel: name of the kernel; empty for the host.
        program: the program's ids (x, y, z); empty for the host.
        launch: number of the launch in its rank, from 0; -1 for the host.
    """

    number: int
    rank: int
    kernel: str = ""
    program: tuple[int, ...] = ()
    launch: int = -1

    def __str__(self) -> str:
        if not self.kernel:
            return f"rank {self.rank}"
        return f"rank {self.rank} program {self.program[0] if self.program[1:] == (0, 0) else self.program}"


Span = tuple[int, int, int]
"""Number of a region, first byte, end byte."""


class Access(NamedTuple):
    """One load, store or atomic operation; of a block, all of its elements.

    Attributes:
        actor: number of the actor.
        kind: `read`, `write` or `rmw` (read-modify-write).
        order: `weak`, `relaxed`, `acquire`, `release` or `acq_rel` (PTX ISA, memory consistency model).
        scope: `cta`, `gpu` or `sys`; empty for a weak access.
        spans: the bytes, neighbours merged, in the order of addresses; a multicast store has those of all members.
        stack: where, innermost first: a line of the kernel, or of the host code.
        by_one_lane: a known thread of the program made it, and its own fences and atomics order it without a CTA
            barrier; otherwise any of the program's threads may have.
        compare: what a compare-and-swap expected, else None.
        wrote: the value written by an `rmw` of one word (None if a compare-and-swap failed).
    """

    actor: int
    kind: str
    order: str
    scope: str
    spans: tuple[Span, ...]
    stack: Stack
    by_one_lane: bool = False
    compare: int | None = None
    wrote: int | None = None


class Fence(NamedTuple):
    """A fence of one thread of a program; `order` is `acq_rel` or `sc`."""

    actor: int
    order: str
    scope: str


class CtaBarrier(NamedTuple):
    """All threads of a program have met (`bar.sync`, `tl.debug_barrier`)."""

    actor: int


class Publish(NamedTuple):
    """All that the actor did before happens before what anyone does after observing `token`."""

    actor: int
    token: Hashable


class Observe(NamedTuple):
    """The actor knows of everything that was published under `token` so far."""

    actor: int
    token: Hashable


MemoryEvent = Access | Fence | CtaBarrier | Publish | Observe


@dataclass(slots=True)
class MemoryLog:
    """All regions, actors and events of a run; empty if no rank allocated symmetric memory."""

    regions: list[Region] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    events: list[MemoryEvent] = field(default_factory=list)


@dataclass(slots=True)
class WordWait:
    """A kernel, or the host, waits until somebody writes one of these words: (region number, byte offset).

    Attributes:
        actor: number of the waiting actor.
        group_ranks: global ranks that can reach the words.
    """

    actor: int
    words: tuple[tuple[int, int], ...]
    group_ranks: tuple[int, ...]
