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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one rank brings to a rendezvous.

    Attributes:
        region: number of the buffer's region, which says where it was allocated.
        nbytes, pad_bytes: sizes of the buffer and of its signal pad.
        shape, dtype: of the tensor that was given.
        device: as it was asked for with an index (`cuda:1`); empty if without one.
        node: number of the rank's host.
        multicast: the rank's device and environment allow it.
        stack: of the call.
    """

    region: int
    nbytes: int
    pad_bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    node: int
    multicast: bool
    stack: Stack


@dataclass(slots=True)
class Rendezvous:
    """One rendezvous of one group.

    Attributes:
        name, label, ranks, backend: of the group, as in `GroupView`.
        seq: its number in the group, from 0.
        offers: rank to what it brought.
        refused: why torch refuses it (`nodes`, `devices`, `sizes`, `pads`); empty if it does not.
    """

    name: str
    label: str
    ranks: tuple[int, ...]
    backend: str
    seq: int
    offers: dict[int, Offer] = field(default_factory=dict)
    refused: str = ""


@dataclass(slots=True)
class MemoryLog:
    """What a run did to shared memory; empty if no rank allocated any.

    Attributes:
        regions, actors, events: everything that was allocated, who touched it, and how, in order.
        meetings: every rendezvous, in the order in which the first rank came.
    """

    regions: list[Region] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    events: list[MemoryEvent] = field(default_factory=list)
    meetings: list[Rendezvous] = field(default_factory=list)


@dataclass(slots=True)
class WordWait:
    """A kernel, or the host, waits until somebody writes one of these words: (region number, byte offset).

    Attributes:
        actor: number of the waiting actor.
        group_ranks: global ranks that can reach the words.
        expected: those of them that have to write; () if the waiting code does not say.
        op: what waits, in the same words on each rank, e.g. `barrier(channel=0) on group 'tp'`; empty for kernels.
        told: who has not done what, e.g. `rank 1 has not signalled`; empty for kernels.
    """

    actor: int
    words: tuple[tuple[int, int], ...]
    group_ranks: tuple[int, ...]
    expected: tuple[int, ...] = ()
    op: str = ""
    told: str = ""
