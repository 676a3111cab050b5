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


@pytest.mark.parametrize(("rows", "same_node", "takes_kernel"), [(4, True, True), (5, True, False), (4, False, False)])
def test_the_kernel_takes_what_fits_on_one_node(
    rows: int, same_node: bool, takes_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer inputs and groups across nodes take the fallback; the kernel is built once, on first use."""
    built = []

    def kernel(tp_group: Any, *, max_tokens: int, skip_entry_sync: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        built.append((tp_group.name, max_tokens, skip_entry_sync))
        return lambda x: x.new_full((len(x), 4), 7.0)

    group = Asked(monkeypatch, 2, [True, same_node])
    gather = MultimemAllGatherer(group.group, max_tokens=4, skip_entry_sync=True, nnodes=group.nnodes(2), kernel=kernel)
    assert not built
    results = [gather(torch.ones(rows, 2)) for _ in range(2)]
    assert all(torch.equal(out, torch.full((rows, 4), 7.0 if takes_kernel else 1.0)) for out in results)
    assert built == ([("tp", 4, True)] if takes_kernel else [])
