"""The same-node probe where shared memory fails; what holds on real ranks is in `bodies.same_node_is_found`."""

from __future__ import annotations

from multiprocessing import resource_tracker, shared_memory
from typing import Any

import pytest
import torch
import torch.distributed as dist

from refimpl.distributed.topology import in_the_same_node_as


class Wire:
    """A group of two in which this rank plays one part; collects what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, name: str | None = None) -> None:
        self.log: list[str] = []
        self.name = name
        monkeypatch.setattr(dist, "get_rank", lambda group: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
        monkeypatch.setattr(dist, "broadcast_object_list", self._broadcast)
        monkeypatch.setattr(dist, "barrier", lambda group: self.log.append("barrier"))
        monkeypatch.setattr(dist, "all_reduce", lambda x, group: self.log.append("all_reduce"))

    def _broadcast(self, box: list[Any], group: object, group_src: int) -> None:
        self.log.append("broadcast")
        if self.name is None:
            self.name = box[0]
        box[0] = self.name

    def probe(self) -> list[bool]:
        found = in_the_same_node_as(None, 0)  # type: ignore[arg-type]
        assert self.log == ["broadcast", "barrier", "all_reduce"], "all ranks run the same collectives in any case"
        return found


def test_the_source_removes_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, rank=0)
    assert wire.probe() == [True, False]
    assert wire.name is not None
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name=wire.name)


def test_a_name_that_is_not_here_means_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Wire(monkeypatch, rank=1, name="psm_of_another_node").probe() == [False, False]


def test_a_segment_of_another_program_is_not_taken_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are unique on one node only, so the contents decide."""
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert Wire(monkeypatch, rank=1, name=segment.name).probe() == [False, False]
        segment.buf[: len(segment.name)] = segment.name.encode()
        assert Wire(monkeypatch, rank=1, name=segment.name).probe() == [False, True]
    finally:
        segment.close()
        segment.unlink()


def test_a_source_without_room_for_a_segment_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still runs each collective; only it counts as on its node."""

    def no_room(**kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(shared_memory, "SharedMemory", no_room)
    wire = Wire(monkeypatch, rank=0)
    assert wire.probe() == [True, False]
    assert wire.name is None


def test_attaching_leaves_removal_to_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that registered the segment would remove it when it ends, under the eyes of the source."""
    segment = shared_memory.SharedMemory(create=True, size=64)
    registered: list[str] = []
    register = resource_tracker.register
    monkeypatch.setattr(resource_tracker, "register", lambda name, rtype: registered.append(name))
    try:
        Wire(monkeypatch, rank=1, name=segment.name).probe()
        assert registered == []
    finally:
        monkeypatch.setattr(resource_tracker, "register", register)
        segment.close()
        segment.unlink()


def test_votes_are_one_int32_per_member(monkeypatch: pytest.MonkeyPatch) -> None:
    votes: list[torch.Tensor] = []
    wire = Wire(monkeypatch, rank=0)
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: votes.append(x) or wire.log.append("all_reduce"))
    wire.probe()
    assert [(x.dtype, x.tolist()) for x in votes] == [(torch.int32, [1, 0])]
