"""Programs that run on simulated ranks and on real gloo, and must return the same there: the table and its helpers.

A body is `body(rank, world_size)`; it finds the default group made, and returns plain data. An error that it expects
is data too: `caught(fn, ...)` gives `Type: first line`.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # here, since its default arguments are WORLD as it is at the import

from simulator import Outcome, simulate

BodyFunction = Callable[[int, int], Any]
CHAPTERS = ("collectives", "messages", "work", "meshes")


@dataclass(frozen=True, slots=True)
class Body:
    """One program.

    Attributes:
        sizes: numbers of ranks to run it with.
        on_hang: how a simulation treats time-outs (see `ClusterOptions.on_hang`).
        finds: kinds of the findings that a simulation must report (none for a correct program).
        differs: why the simulator's answer is not that of gloo, if it is not meant to be.
    """

    fn: BodyFunction
    chapter: str
    sizes: tuple[int, ...]
    on_hang: str
    finds: tuple[str, ...]
    differs: str

    @property
    def name(self) -> str:
        return self.fn.__name__


BODIES: dict[str, Body] = {}
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def body(
    *, sizes: tuple[int, ...] = (2, 4), on_hang: str = "report", finds: tuple[str, ...] = (), differs: str = ""
) -> Callable[[BodyFunction], BodyFunction]:
    """Enter a function into the table; its chapter is the module `parity_<chapter>` that it stands in."""

    def enter(fn: BodyFunction) -> BodyFunction:
        chapter = fn.__module__.rpartition("parity_")[2]
        assert fn.__name__ not in BODIES, f"two bodies are called {fn.__name__}"
        BODIES[fn.__name__] = Body(fn, chapter, sizes, on_hang, finds, differs)
        return fn

    return enter


def of_chapter(chapter: str) -> list[Body]:
    """The bodies of one chapter, in the order of the file."""
    importlib.import_module(f"{__name__.rpartition('.')[0]}.parity_{chapter}")
    return [entry for entry in BODIES.values() if entry.chapter == chapter]


# -- running a body ------------------------------------------------------------------------------------------------


def on_gloo(
    rank: int, pool_size: int, init_method: str, *, chapter: str, name: str, world_size: int, folder: str
) -> None:
    """One real rank, idle if the body runs with fewer: the result goes to a file in `folder`."""
    of_chapter(chapter)
    if rank >= world_size:
        return
    dist.init_process_group(
        "gloo", init_method=init_method, rank=rank, world_size=world_size, timeout=timedelta(seconds=20)
    )
    try:
        result = BODIES[name].fn(rank, world_size)
        _wait_for_all(os.path.join(folder, f"{name}.{world_size}.over"), world_size)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    with open(os.path.join(folder, f"{name}.{rank}"), "wb") as file:
        pickle.dump(result, file)


def _wait_for_all(path: str, world_size: int) -> None:
    """Nobody closes its connections while others still make theirs; the groups may be broken, so this uses a file."""
    store = dist.FileStore(path, world_size)
    store.add("over", 1)
    while store.add("over", 0) < world_size:
        time.sleep(0.002)


def real_results(entry: Body, world_size: int, pool: Any, folder: str) -> dict[int, Any]:
    """Run a body on real gloo, in the first processes of a `RankPool`."""
    pool.run(on_gloo, chapter=entry.chapter, name=entry.name, world_size=world_size, folder=folder, timeout_s=30.0)
    results = {}
    for rank in range(world_size):
        with open(os.path.join(folder, f"{entry.name}.{rank}"), "rb") as file:
            results[rank] = pickle.load(file)
    return results


def simulation(entry: Body, world_size: int) -> Outcome:
    """Run a body on simulated ranks."""
    args = (entry.chapter, entry.name, world_size)
    return simulate(simulated, world_size, args=args, on_hang=entry.on_hang)


def cases(chapter: str) -> Any:
    """A parametrization with the bodies of a chapter and their sizes."""
    pairs = [(entry, size) for entry in of_chapter(chapter) for size in entry.sizes]
    return pytest.mark.parametrize(("entry", "size"), pairs, ids=[f"{entry.name}-{size}" for entry, size in pairs])


def check_simulation(entry: Body, size: int) -> None:
    """The findings are those expected; all ranks of a correct program return; a second run gives the same trace."""
    outcome, again = simulation(entry, size), simulation(entry, size)
    assert tuple(str(finding.kind) for finding in outcome.findings) == entry.finds, outcome.report()
    if not set(entry.finds) - {"timeout"}:
        assert sorted(outcome.results) == list(range(size)), outcome.report()
    assert repr(again.results) == repr(outcome.results)
    assert again.trace.to_text() == outcome.trace.to_text()


def simulated(rank: int, chapter: str, name: str, world_size: int) -> Any:
    """One simulated rank."""
    of_chapter(chapter)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    try:
        return BODIES[name].fn(rank, world_size)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


# -- helpers of bodies ---------------------------------------------------------------------------------------------


def caught(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`Type: first line` of what the call raises, or `no error` and what it returned."""
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {tidy(str(error))}"
    return ("no error", plain(result))


def tidy(text: str) -> str:
    """The first line, without places in C++ sources, addresses, ports, and torch's list of what raised it."""
    line = text.strip().split("\n", 1)[0]
    line = re.sub(r"\[enforce fail at [^\]]*\] ?", "", line)
    line = re.sub(r"\[/[^\]]*\.(cc|cpp|h):\d+\] ?", "", line)
    line = re.sub(r"\[(127[0-9.]*|::1|[0-9a-f:]*)\]:\d+", "[address]", line)
    line = re.sub(r"\[rank\d+\]:\[F[^\]]*\] ", "", line)
    line = re.sub(r"<torch\.distributed\.distributed_c10d\.ProcessGroup object at 0x[0-9a-f]+>", "<group>", line)
    line = re.sub(r"<\w+ group '[^']*' ranks \[[^\]]*\] \(simulated\)>", "<group>", line)
    line = re.sub(r"Connection (closed|reset) by peer.*|Read error.*", "Connection closed by peer", line)
    line = re.sub(r"(Timed out waiting \d+ms for) (send|recv) operation", r"\1 send or recv operation", line)
    line = re.sub(r"^(\[gloo\] )", "", line)
    return line.strip().rstrip(".")


def plain(value: Any) -> Any:
    """Tensors become lists; what is no plain data becomes the name of its type."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    return type(value).__name__


def numbers(rank: int, shape: tuple[int, ...] = (3,), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that depends on the rank, of small whole numbers, so that sums are exact."""
    count = int(torch.Size(shape).numel())
    values = torch.arange(count) + 1 + 10 * rank
    if dtype is torch.bool:
        return (values % 3 == 0).reshape(shape)
    return values.reshape(shape).to(dtype)


def late(rank: int, which: int, seconds: float) -> None:
    """Let one rank come later than the others."""
    if rank == which:
        time.sleep(seconds)
