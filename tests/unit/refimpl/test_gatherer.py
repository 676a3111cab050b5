"""When the gatherer asks which questions, and what it concludes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from refimpl.distributed import gatherer
from refimpl.distributed.gatherer import MultimemAllGatherer
from refimpl.kernels import multimem_all_gather, symmetric
from refimpl.kernels.workspace import Workspace


class Asked:
    """A group whose questions are written down in the order in which they come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world_size: int, same_node: list[bool]) -> None:
        self.log: list[str] = []
        self.group: Any = SimpleNamespace(
            name="tp",
            world_size=world_size,
            cpu_group="cpu",
            all_gather=lambda x, dim: torch.cat([x] * world_size, dim),
        )
        self._same_node = same_node
        monkeypatch.setattr(gatherer, "in_the_same_node_as", self._probe)

    def _probe(self, cpu_group: object, source_rank: int) -> list[bool]:
        assert (cpu_group, source_rank) == ("cpu", 0)
        self.log.append("probe")
        return self._same_node

    def nnodes(self, count: int) -> Callable[[], int]:
        def ask() -> int:
            self.log.append("nnodes")
            return count

        return ask


@pytest.mark.parametrize(
    ("world_size", "nodes", "guard", "enabled", "asked"),
    [
        (1, 1, True, True, []),
        (1, 2, True, True, []),
        (4, 1, True, True, ["nnodes"]),
        (4, 2, True, True, ["nnodes", "probe"]),
        (1, 2, False, True, []),
        (4, 1, False, True, ["probe"]),
        (4, 2, False, True, ["probe"]),
        (4, 2, True, False, []),
    ],
)
def test_questions_come_in_order_and_only_as_needed(
    world_size: int, nodes: int, guard: bool, enabled: bool, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of one rank asks nothing; one node asks for the number of nodes only; before the repair all probed."""
    group = Asked(monkeypatch, world_size, [True] * world_size)
    gather = MultimemAllGatherer(group.group, max_tokens=4, enabled=enabled, nnodes=group.nnodes(nodes), guard=guard)
    assert group.log == asked
    assert gather.multimem_enabled is enabled


def test_across_nodes_multimem_is_off_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = Asked(monkeypatch, 2, [True, False])
    with caplog.at_level(logging.WARNING):
        gather = MultimemAllGatherer(group.group, max_tokens=4, nnodes=group.nnodes(2))
        for _ in range(3):
            gather(torch.ones(1, 2))
    assert not gather.multimem_enabled
    assert caplog.messages == ["multimem all-gather is off: group 'tp' spans nodes"]


def test_settings_that_are_not_published_raise_only_in_a_group_that_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpublished() -> int:
        raise ValueError("server settings are not published")

    MultimemAllGatherer(Asked(monkeypatch, 1, [True]).group, max_tokens=4, nnodes=unpublished)
    with pytest.raises(ValueError, match="not published"):
        MultimemAllGatherer(Asked(monkeypatch, 2, [True]).group, max_tokens=4, nnodes=unpublished)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the gatherer asked `build_workspace` for, in bytes: with a workspace of plain memory as the answer."""
    asked: list[int] = []

    def build(group: Any, capacity: int) -> tuple[Workspace, str]:
        asked.append(capacity)
        buffer = torch.zeros(capacity, dtype=torch.uint8)
        return Workspace(
            rank=0, world=group.world_size, buffer=buffer, buffers=0, pads=0, multicast=0, pad_bytes=64
        ), ""

    monkeypatch.setattr(symmetric, "build_workspace", build)
    monkeypatch.setattr(multimem_all_gather, "launch", lambda *_args, **_kwargs: None)
    return asked


def gatherer_of(monkeypatch: pytest.MonkeyPatch, **options: Any) -> MultimemAllGatherer:
    """One of a group of two ranks on one node, for up to four rows; its fallback gives ones, its kernel zeros."""
    group = Asked(monkeypatch, 2, [True, True])
    return MultimemAllGatherer(group.group, max_tokens=4, nnodes=group.nnodes(1), **options)


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((4, 8), torch.bfloat16, ""),
        ((1, 16), torch.float8_e4m3fn, ""),
        ((0, 8), torch.float16, ""),
        ((5, 8), torch.bfloat16, "more than max_tokens=4 rows"),
        ((4, 7), torch.bfloat16, "a row of 7 x torch.bfloat16 has 14 bytes, no multiple of 16"),
        ((4, 2), torch.float32, "a row of 2 x torch.float32 has 8 bytes, no multiple of 16"),
        ((4, 16), torch.bfloat16, "the result is larger than the symmetric buffer of 128 bytes"),
        ((8,), torch.bfloat16, "more than max_tokens=4 rows"),
        ((4,), torch.bfloat16, "it gathers matrices, and this has 1 dimension(s)"),
        ((1, 2, 8), torch.bfloat16, "it gathers matrices, and this has 3 dimension(s)"),
    ],
)
def test_what_the_kernel_cannot_gather_takes_the_fallback(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    why: str,
    built: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Which is said once; all of it follows from the shape and the type, which all ranks have in common."""
    gather = gatherer_of(monkeypatch)
    gather(torch.ones(4, 8, dtype=torch.bfloat16))
    with caplog.at_level(logging.INFO):
        outs = [gather(torch.ones(shape).to(dtype)) for _ in range(2)]
    assert [message.partition("all_gather: ")[2] for message in caplog.messages] == ([why] if why else [])
    assert all(out.shape == (*shape[:-1], shape[-1] * 2) and out.dtype == dtype for out in outs)
    assert all(bool(out.float().all()) is (bool(why) or not out.numel()) for out in outs)
    assert built == [4 * 8 * 2 * 2]


def test_nothing_is_built_by_a_call_that_falls_back(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call that the kernel can take decides on the size of the rows."""
    gather = gatherer_of(monkeypatch)
    gather(torch.ones(5, 8, dtype=torch.bfloat16))
    gather(torch.ones(4, 7, dtype=torch.bfloat16))
    assert not built
    gather(torch.ones(1, 16, dtype=torch.bfloat16))
    assert built == [4 * 16 * 2 * 2]


def test_a_copy_is_given_unless_a_view_is_asked_for(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A view lies in the symmetric buffer, which the next call overwrites."""
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    for safe in (True, False):
        gather = gatherer_of(monkeypatch, safe=safe)
        first, second = gather(x), gather(x)
        assert (first.data_ptr() == second.data_ptr()) is not safe


def test_a_first_call_under_capture_falls_back(
    built: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A graph cannot hold allocation and exchange; after an eager call it holds the kernel."""
    gather, x = gatherer_of(monkeypatch), torch.ones(4, 8, dtype=torch.bfloat16)
    monkeypatch.setattr(gatherer, "_is_capturing", lambda _: True)
    with caplog.at_level(logging.INFO):
        assert gather(x).all()
    assert not built and "captured" in caplog.text
    monkeypatch.setattr(gatherer, "_is_capturing", lambda _: False)
    gather(x)
    monkeypatch.setattr(gatherer, "_is_capturing", lambda _: True)
    assert not gather(x).any() and len(built) == 1


def test_without_symmetric_memory_it_is_off_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ranks have voted; they do not ask again."""
    monkeypatch.setattr(symmetric, "build_workspace", lambda *_: (None, "no symmetric memory on cpu"))
    gather = gatherer_of(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert all(gather(torch.ones(4, 8)).all() for _ in range(3))
    assert caplog.messages == ["multimem all-gather is off: no symmetric memory on cpu"]
