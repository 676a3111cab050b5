"""Which ranks of a group share a node with one of them.

The question is put to the kernel: the source creates a shared memory segment, and who can open it is on its node.
That makes the probe a collective, three operations on the CPU group: a broadcast, a barrier and an all-reduce.  All
members must call it, with the same source, and a backend that cannot run them on the host must not be asked:
see `gatherer` for when the question is worth it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker, shared_memory
from threading import Lock

import torch
import torch.distributed as dist

_SEGMENT_BYTES = 64
_TRACKER_LOCK = Lock()


def in_the_same_node_as(cpu_group: dist.ProcessGroup, source_rank: int = 0) -> list[bool]:
    """Whether each member of `cpu_group` shares a node with its group rank `source_rank`.

    Returns: one value per member, in group order, equal on all ranks; the source's own is True.
    Collective: blocks until all members called it.  Raises: ValueError for a source that is no group rank.
    """
    group_rank, size = dist.get_rank(cpu_group), dist.get_world_size(cpu_group)
    if not 0 <= source_rank < size:
        raise ValueError(f"source_rank is {source_rank}; give a group rank from 0 to {size - 1}")
    if group_rank == source_rank:
        same = _offer_segment(cpu_group, source_rank)
    else:
        same = _look_for_segment(cpu_group, source_rank)
    votes = torch.zeros(size, dtype=torch.int32)
    votes[group_rank] = int(same)
    dist.all_reduce(votes, group=cpu_group)
    return [vote == 1 for vote in votes.tolist()]


def _offer_segment(cpu_group: dist.ProcessGroup, source_rank: int) -> bool:
    """Create a segment, tell its name, and keep it until all members have looked."""
    segment = _create()
    try:
        name = None if segment is None else segment.name
        dist.broadcast_object_list([name], group=cpu_group, group_src=source_rank)
        dist.barrier(group=cpu_group)
    finally:
        if segment is not None:
            segment.close()
            with suppress(FileNotFoundError):
                segment.unlink()
    return True


def _look_for_segment(cpu_group: dist.ProcessGroup, source_rank: int) -> bool:
    box: list[str | None] = [None]
    dist.broadcast_object_list(box, group=cpu_group, group_src=source_rank)
    found = box[0] is not None and _holds_its_name(box[0])
    dist.barrier(group=cpu_group)
    return found


def _create() -> shared_memory.SharedMemory | None:
    """A segment that holds its own name, or None where there is no room: then every other rank counts as remote."""
    try:
        segment = shared_memory.SharedMemory(create=True, size=_SEGMENT_BYTES)
    except OSError:
        return None
    mark = segment.name.encode()
    _bytes_of(segment)[: len(mark)] = mark
    return segment


def _holds_its_name(name: str) -> bool:
    """True when a segment of that name is here and holds the name; another program's segment does not."""
    try:
        segment = _attach(name)
    except OSError:
        return False
    try:
        mark = name.encode()
        return bytes(_bytes_of(segment)[: len(mark)]) == mark
    finally:
        segment.close()


def _bytes_of(segment: shared_memory.SharedMemory) -> memoryview:
    buffer = segment.buf
    assert buffer is not None, "the segment is open"
    return buffer


def _attach(name: str) -> shared_memory.SharedMemory:
    """Open a segment that another rank owns, so without a promise to remove it when this process ends."""
    if sys.version_info >= (3, 13):
        return shared_memory.SharedMemory(name=name, track=False)
    with _untracked():
        return shared_memory.SharedMemory(name=name)


@contextmanager
def _untracked() -> Iterator[None]:
    """Before Python 3.13 attaching registers the segment for removal, which only its owner should do."""
    with _TRACKER_LOCK:
        register = resource_tracker.register
        resource_tracker.register = lambda name, rtype: None
        try:
            yield
        finally:
            resource_tracker.register = register
