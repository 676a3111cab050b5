"""Shared memory: what one rank writes the others of its node read, and nobody else."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from multiprocessing.shared_memory import SharedMemory as by_name
from typing import Any

import numpy as np
import pytest
import torch

from simulator import Cluster, simulate

NAME = "hangcheck_test_segment"


def _try(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (OSError, ValueError, TypeError, BufferError) as error:
        return type(error).__name__, str(error)


def _life_of_a_segment() -> list[Any]:
    """Make, attach, write, read, close and unlink: what each step says."""
    shm = shared_memory.SharedMemory
    seen: list[Any] = [
        _try(lambda: shm(NAME)),
        _try(lambda: shm()),
        _try(lambda: shm(NAME, create=True)),
        _try(lambda: shm(NAME, create=True, size=-1)),
    ]
    first = shm(NAME, True, 10)
    seen += [first.name, first.size, len(first.buf), bytes(first.buf), repr(first), first._name]
    seen.append(_try(lambda: shm(NAME, create=True, size=10)))
    second = shm(NAME, size=4000)
    second.buf[:5] = b"hello"
    seen += [second.size, bytes(first.buf[:5]), _try(lambda: first.buf.__setitem__(slice(0, 20), b"too long" * 3))]
    copy = pickle.loads(pickle.dumps(second))
    seen += [bytes(copy.buf[:5]), copy.name]
    array = np.ndarray((10,), dtype=np.uint8, buffer=second.buf)
    array[0] = 72
    seen.append(bytes(first.buf[:5]))
    del array
    second.close()
    seen += [second.buf, second.name, second.close()]
    first.unlink()
    seen += [_try(lambda: shm(NAME)), bytes(copy.buf[:5]), _try(first.unlink)]
    again = shm(NAME, create=True, size=1)
    seen.append(bytes(again.buf))
    for segment in (first, copy, again):
        segment.close()
    again.unlink()
    return seen


def test_a_segment_lives_as_a_real_one() -> None:
    """Sizes, errors and their texts, pickling, names that are free again."""
    assert simulate(lambda rank: _life_of_a_segment(), 1).raise_if_bad().results[0] == _life_of_a_segment()


def test_segments_without_a_name_get_one() -> None:
    """Different ones, under which others can attach."""

    def body(rank: int) -> Any:
        first, second = (shared_memory.SharedMemory(create=True, size=8) for _ in range(2))
        return first.name != second.name and first.name.startswith("psm_"), shared_memory.SharedMemory(first.name).size

    assert simulate(body, 2).raise_if_bad().results == {0: (True, 8), 1: (True, 8)}


def test_a_segment_is_seen_on_its_own_node_only() -> None:
    """The other node has a name space of its own."""

    def body(rank: int) -> Any:
        if rank == 0:
            shared_memory.SharedMemory(NAME, create=True, size=4).buf[:] = b"node"
        time.sleep(1)
        try:
            return bytes(shared_memory.SharedMemory(NAME).buf)
        except FileNotFoundError:
            return None

    outcome = Cluster(nodes=2, gpus_per_node=2).launch(body, ranks=4).run().raise_if_bad()
    assert outcome.results == {0: b"node", 1: b"node", 2: None, 3: None}


def test_tensors_and_arrays_share_the_memory() -> None:
    """A tensor on the buffer is the segment, not a copy."""

    def body(rank: int) -> list[int]:
        segment = shared_memory.SharedMemory(NAME, create=rank == 0, size=8)
        values = torch.frombuffer(segment.buf, dtype=torch.int32)
        values[rank] = rank + 1
        time.sleep(1)
        return values.tolist()

    assert simulate(body, 2).raise_if_bad().results == {0: [1, 2], 1: [1, 2]}


def test_shareable_lists_work() -> None:
    """They are built on SharedMemory."""

    def body(rank: int) -> list[Any]:
        mine = shared_memory.ShareableList([1, 2.5, "three", None] if rank == 0 else None, name=NAME)
        if rank == 1:
            mine[0] = 10
        time.sleep(1)
        return list(mine)

    assert simulate(body, 2).raise_if_bad().results == {0: [10, 2.5, "three", None], 1: [10, 2.5, "three", None]}


def test_the_resource_tracker_hears_nothing() -> None:
    """Neither of segments, nor of programs that unregister them by hand."""
    heard: list[Any] = []
    send = resource_tracker._resource_tracker._send
    resource_tracker._resource_tracker._send = lambda *args: heard.append(args)

    def body(rank: int) -> None:
        segment = shared_memory.SharedMemory(create=True, size=8)
        resource_tracker.unregister(segment._name, "shared_memory")
        segment.close()
        segment.unlink()

    try:
        simulate(body, 2).raise_if_bad()
    finally:
        resource_tracker._resource_tracker._send = send
    assert heard == []


def test_segments_of_a_run_are_gone_with_it() -> None:
    """The next run may use the name, and outside the ranks segments are real ones."""

    def body(rank: int) -> Any:
        return by_name(NAME, create=True, size=8)

    first, second = (simulate(body, 1).raise_if_bad().results[0] for _ in range(2))
    assert bytes(first.buf) == bytes(second.buf) == bytes(8)
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(NAME)
    assert by_name is shared_memory.SharedMemory
