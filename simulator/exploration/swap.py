"""Which two events must swap for the outcome to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.engine.operations import After, Operation
from simulator.exploration.order import Shape, effective

Entries = Sequence[Operation | After]
Key = tuple[str, int]


class Swap(NamedTuple):
    """In the one run `first` came before `then`; in the other it was the other way round."""

    first: Operation
    then: Operation


def swapped(usual: Entries, other: Entries, delayed: Key | None) -> Swap | None:
    """The first pair of conflicting operations that `other` has in another order than `usual`.

    Args:
        delayed: task and number of the operation that was delayed last in `other`: a pair with what that task did
            from there on is preferred.
    """
    return next(iter(_pairs(usual, other, delayed)), None) or next(iter(_pairs(usual, other, None)), None)


def _pairs(usual: Entries, other: Entries, delayed: Key | None) -> Iterator[Swap]:
    """Pairs by the place of the later operation in `other`."""
    before = {operation[:2]: index for index, operation in enumerate(_done(usual))}
    shape, earlier = Shape(other), list[Operation]()
    for then in _done(other):
        fits = delayed is None or (then.task == delayed[0] and then.number >= delayed[1])
        if fits and then[:2] in before:
            for first in earlier:
                reversed_now = before.get(first[:2], -1) > before[then[:2]]
                if reversed_now and first.task != then.task and _conflict(shape, first, then):
                    yield Swap(first, then)
        earlier.append(then)


def _done(entries: Entries) -> list[Operation]:
    return [operation for _, _, operation in effective(entries) if operation is not None]


def _conflict(shape: Shape, first: Operation, second: Operation) -> bool:
    theirs = {access.target: access for access in shape.accesses(first)}
    return any(a.target in theirs and theirs[a.target].conflicts(a.mode) for a in shape.accesses(second))


def contested_receive(entries: Entries, sent: Operation) -> Operation | None:
    """The receive from any source that takes `sent` in this run, or one like it; None if `sent` is no such message.

    Messages with a sender of their own to receive them are not counted. The log does not say which receive took which
    message, so the nth message is given to the nth receive.
    """
    if sent.target[0] != "message":
        return None
    _, group, receiver, _, tag = sent.target
    named, open_ones, before = set[object](), list[Operation](), 0
    for operation in (entry for entry in entries if isinstance(entry, Operation)):
        kind, *rest = operation.target
        if kind == "receive" and (rest[0], rest[1], rest[3]) == (group, receiver, tag):
            if rest[2] == -1:
                open_ones.append(operation)
            else:
                named.add(rest[2])
    for operation in _done(entries):
        if operation[:2] == sent[:2]:
            break
        kind, *rest = operation.target
        if kind == "message" and (rest[0], rest[1], rest[3]) == (group, receiver, tag):
            before += rest[2] not in named
    return open_ones[min(before, len(open_ones) - 1)] if open_ones else None
