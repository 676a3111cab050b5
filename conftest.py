"""Options and marks of this repository's own tests.

How to use them:

    pytest                       all but the GPU tests
    pytest --gpu tests/gpu       those, on a machine that has the GPUs; --multicast for NVLink multicast too
    pytest --seed 7              another seed for the simulations
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import pytest

pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """--gpu, --multicast and --seed."""
    group = parser.getgroup("this repository")
    group.addoption("--gpu", action="store_true", help="run the tests that are marked `gpu`")
    group.addoption(
        "--multicast", action="store_true", help="with --gpu, use NVLink multicast too; leave it out on a shared host"
    )
    group.addoption("--seed", type=int, metavar="N", help="the same as --hangcheck-seed")


def pytest_configure(config: pytest.Config) -> None:
    """Passes the seed on, and refuses --gpu where it could only skip."""
    if config.option.seed is not None:
        config.option.hangcheck_seed = config.option.seed
    if config.option.gpu and _gpus_here() == 0:
        raise pytest.UsageError("--gpu: torch sees no GPU here; leave it out, or go to a machine that has one")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports for good what registers operators of torch.

    A session within a test forgets the modules that it has imported, and operators cannot be registered twice.
    """
    import_module("torch.distributed._symmetric_memory")


def pytest_collection_modifyitems(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Skips GPU tests that were not asked for, or that need more GPUs than there are."""
    for item in items:
        mark = item.get_closest_marker("gpu")
        if mark is not None:
            reason = _why_skipped(mark.kwargs.get("count", 1), config.option.gpu)
            if not reason and mark.kwargs.get("multicast") and not config.option.multicast:
                reason = "uses NVLink multicast: add --multicast where the owner of the machine allows it"
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_skipped(count: int, asked_for: bool) -> str:
    needs = "needs a GPU" if count == 1 else f"needs {count} GPUs"
    if not asked_for:
        return f"{needs}: run `pytest --gpu tests/gpu` on a machine that has {'one' if count == 1 else 'them'}"
    here = _gpus_here()
    return "" if here >= count else f"{needs}, and this machine has {here}"


def _gpus_here() -> int:
    import torch

    return torch.cuda.device_count()
