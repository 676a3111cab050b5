"""Fixtures of the reference implementation's tests: real gloo ranks, and a stand-in for `mooncake.pg`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def gloo_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Any]]:
    """From a world size to a pool of that many real processes, started on first use and kept for the session."""
    from tests.unit.refimpl.rank_pool import RankPool

    pools: dict[int, RankPool] = {}

    def of_size(world_size: int) -> RankPool:
        if world_size not in pools:
            pools[world_size] = RankPool(world_size, tmp_path_factory.mktemp(f"gloo{world_size}"))
        return pools[world_size]

    yield of_size
    for pool in pools.values():
        pool.close()


@dataclass
class Calls:
    """What a rank asked of torch, in order."""

    rank: int = 0
    world_size: int = 1
    new_group: list[dict[str, Any]] = field(default_factory=list)
    init: list[dict[str, Any]] = field(default_factory=list)

    def of(self, name: str) -> list[dict[str, Any]]:
        """Calls for the device groups of one sub-group."""
        return [call for call in self.new_group if call["group_desc"] == f"{name}:device"]


@dataclass
class MooncakeOptions:
    """Stands in for `MooncakeBackendOptions`: keeps its positional arguments."""

    args: tuple[Any, ...]

    def __init__(self, *args: Any) -> None:
        self.args = args

    @property
    def mask(self) -> list[int]:
        return self.args[0].tolist()

    @property
    def rest(self) -> tuple[Any, ...]:
        return self.args[1:]


class _Group:
    """Stands in for a process group; weakly referable and hashable by identity, as the real one."""


@pytest.fixture
def torch_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Replaces what the bring-up calls in torch, so that one rank of any world can be looked at alone."""
    import torch.distributed as dist

    calls = Calls()
    default: list[_Group] = []

    def new_group(ranks: list[int], **kwargs: Any) -> object | None:
        calls.new_group.append({"ranks": ranks, **kwargs})
        local_stranger = kwargs["use_local_synchronization"] and calls.rank not in ranks
        return None if local_stranger else _Group()

    def init_process_group(backend: str, **kwargs: Any) -> None:
        calls.init.append({"backend": backend, **kwargs})
        calls.rank, calls.world_size = kwargs["rank"], kwargs["world_size"]
        default[:] = [_Group()]

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "is_initialized", lambda: bool(default))
    monkeypatch.setattr(dist, "get_rank", lambda group=None: calls.rank)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: calls.world_size)
    monkeypatch.setattr(dist, "destroy_process_group", lambda group=None: default.clear() if group is None else None)
    monkeypatch.setattr("refimpl.distributed.parallel_state._default_group", lambda: default[0])
    return calls


@pytest.fixture
def mooncake(monkeypatch: pytest.MonkeyPatch) -> type[MooncakeOptions]:
    """A `mooncake.pg` that records the options that it is given."""
    package, module = ModuleType("mooncake"), ModuleType("mooncake.pg")
    module.MooncakeBackendOptions = MooncakeOptions  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.pg", module)
    return MooncakeOptions
