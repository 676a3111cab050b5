"""What is run under many schedules: a function on ranks, a cluster, or a script.

A program travels to other processes if it can be pickled: a function must be importable there, a script is named by its
path.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from simulator.cluster import Cluster
from simulator.cohort import RankFunction
from simulator.launcher import cluster_of, function_of, on_path
from simulator.torchrun import Job

MakeCluster = Callable[[], Cluster]
"""The cluster for the next run."""


class Program(Protocol):
    """Something that can be run under a schedule."""

    @property
    def ranks(self) -> int:
        """How many processes a run starts."""

    def ready(self) -> AbstractContextManager[MakeCluster]:
        """Opens whatever must hold while it runs."""


@dataclass(frozen=True, slots=True)
class OnRanks:
    """`fn(rank, *args)` on some ranks; `options`: see `ClusterOptions`."""

    fn: RankFunction
    ranks: int
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def ready(self) -> AbstractContextManager[MakeCluster]:
        cluster = Cluster(**self.options).launch(self.fn, ranks=self.ranks, args=self.args)
        return nullcontext(lambda: cluster)


@dataclass(frozen=True, slots=True)
class OfCluster:
    """The cluster that `make` returns, which is called for each run."""

    make: Callable[[], Cluster]
    ranks: int

    def ready(self) -> AbstractContextManager[MakeCluster]:
        return nullcontext(self.make)


@dataclass(frozen=True, slots=True)
class OfJob:
    """A script or module, as `hangcheck run` runs it."""

    job: Job
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.job.ranks

    @contextmanager
    def ready(self) -> Iterator[MakeCluster]:
        with on_path(self.job):
            cluster = cluster_of(self.job, function_of(self.job), **self.options)
            yield lambda: cluster


def why_it_stays(program: Program) -> str:
    """Why a program cannot run in another process; nothing if it can."""
    fn = getattr(program, "fn", None) or getattr(program, "make", None)
    if fn is not None and getattr(fn, "__module__", "") == "__main__":
        return "its function is part of the main program, which other processes do not import"
    if fn is not None and getattr(sys.modules.get(fn.__module__), "__spec__", None) is None:
        return f"its module {fn.__module__} cannot be imported by name"
    try:
        pickle.dumps(program)
    except Exception as error:
        return f"it cannot be pickled ({error})"
    return ""
