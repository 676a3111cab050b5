"""Which ranks gloo lets go from a collective before all others have come, and what they take with them.

A collective here waits for all of its ranks. Real gloo waits only for the messages that a rank sends and receives: one
that brings its part to a `gather` leaves once the root is there. A program that relies on that is asked about when
nothing else can move (`Communicator.let_leave`), so no other run is changed by it.

Each rank's part is a script of steps `(what, from, to, piece)`: `send` and `recv` post a message, `sent` and `got` wait
until both ends of it are posted. A rank leaves at the end of its script.

Not modelled: early exits from collectives without a root, in which every rank needs data of all; and from collectives
whose arguments differ.

Source: gloo's broadcast.cc (a binomial tree around the root), gather.cc, scatter.cc, reduce.cc (a ring, then a gather
of the pieces that are not empty). `tests/parity/test_early_exits.py` asks real gloo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from simulator.collectives import Entry, below_torch, deliver

Step = tuple[str, int, int, int]
Script = Iterator[Step]
SEGMENT_BYTES_MAX = 1 << 20
"""Of a reduction."""


def may_leave(op: str, root: int, size: int, here: Collection[int], *, length: int = 1, itemsize: int = 4) -> list[int]:
    """The group ranks among those who are `here` that have all they wait for.

    Args:
        length: elements of a rank's tensor; itemsize: bytes of each.
    """
    scripts = {rank: list(_script(op, root, size, rank, length * itemsize, itemsize)) for rank in sorted(here)}
    position = dict.fromkeys(scripts, 0)
    posted: set[Step] = set()
    moved = True
    while moved:
        moved = False
        for rank, script in scripts.items():
            start = position[rank]
            while position[rank] < len(script) and _passes(script[position[rank]], posted):
                position[rank] += 1
            moved |= position[rank] > start
    return [rank for rank, script in scripts.items() if position[rank] == len(script)]


def _passes(step: Step, posted: set[Step]) -> bool:
    what, *message = step
    if what in ("send", "recv"):
        posted.add(step)
        return True
    return {("send", *message), ("recv", *message)} <= posted


def _script(op: str, root: int, size: int, rank: int, total_bytes: int, itemsize: int) -> Script:
    if op == "broadcast":
        yield from _broadcast(root, size, rank)
    elif op == "gather":
        yield from _to_root(root, rank, range(size))
    elif op == "scatter":
        yield from _from_root(root, rank, range(size))
    elif op == "reduce":
        yield from _reduce(root, size, rank, total_bytes, itemsize)
    else:
        yield "got", -1, -1, -1  # never


def _broadcast(root: int, size: int, rank: int) -> Script:
    place = (rank - root) % size
    if place:
        above = (place - (1 << (place.bit_length() - 1)) + root) % size
        yield "recv", above, rank, 0
        yield "got", above, rank, 0
    bits = range(place.bit_length(), size.bit_length())
    below = [(place + (1 << bit) + root) % size for bit in bits if place + (1 << bit) < size]
    for what in ("send", "sent"):
        for other in below:
            yield what, rank, other, 0


def _to_root(root: int, rank: int, senders: Collection[int]) -> Script:
    """`senders` send to the root."""
    if rank == root:
        for what in ("recv", "got"):
            for other in senders:
                if other != root:
                    yield what, other, root, -1
    elif rank in senders:
        yield "send", rank, root, -1
        yield "sent", rank, root, -1


def _from_root(root: int, rank: int, receivers: Collection[int]) -> Script:
    if rank == root:
        for what in ("send", "sent"):
            for other in receivers:
                if other != root:
                    yield what, root, other, -1
    else:
        yield "recv", root, rank, -1
        yield "got", root, rank, -1


def _reduce(root: int, size: int, rank: int, total_bytes: int, itemsize: int) -> Script:
    """Pieces go round against the order of the ranks; the last two rounds only wait. Empty ones are left out."""
    segments = _rounded_up(max(-(-total_bytes // SEGMENT_BYTES_MAX), 2 * size), size)
    own, segment_bytes = segments // size, _rounded_up(-(-total_bytes // segments), itemsize)
    full = -(-total_bytes // segment_bytes) if total_bytes else 0
    after, before = (rank + 1) % size, (rank - 1) % size
    rounds = segments - own
    for number in range(rounds + 2):
        if number >= 2:
            yield from _pieces(("got", "sent"), rank, after, before, number - 2, own, segments, full)
        if number < rounds:
            yield from _pieces(("recv", "send"), rank, after, before, number, own, segments, full)
    yield from _to_root(root, rank, [other for other in range(size) if other * own < full])


def _pieces(
    what: tuple[str, str], rank: int, after: int, before: int, number: int, own: int, segments: int, full: int
) -> Script:
    """One round of a reduction: what comes from the next rank, and what goes to the one before."""
    coming, going = (((rank + shift) * own + number) % segments for shift in (2, 1))
    if coming < full:
        yield what[0], after, rank, coming
    if going < full:
        yield what[1], rank, before, going


def _rounded_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def take_share(entry: Entry, rank: int, root: Entry | None) -> None:
    """Give group rank `rank`, which leaves, its part of what the root brought, if anything comes from there."""
    if root is None or entry is root or entry.op in ("gather", "reduce"):
        return
    sources = root.inputs if entry.op == "broadcast" else [root.inputs[rank]]
    for target, source in zip(entry.outputs, sources, strict=True):
        deliver(target, source)


def left_behind(entry: Entry) -> Entry:
    """What stays of a rank that has left: copies, since it may do with its tensors what it likes."""
    with below_torch():
        inputs = [tensor.clone() for tensor in entry.inputs]
        same = entry.outputs is entry.inputs
        return replace(entry, inputs=inputs, outputs=inputs if same else [tensor.clone() for tensor in entry.outputs])
