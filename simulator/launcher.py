"""Runs an unmodified script, or a module, as `__main__` of every rank.

Each rank gets a `__main__` of its own, so that what the script defines can be pickled and sent to other ranks; the
script is compiled once. Modules and packages beside the script are each rank's own too, and so are those named by
--isolate; all others are shared, imported by the first rank that asks for them.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from simulator.cluster import Cluster
from simulator.cohort import RankFunction
from simulator.engine.errors import UsageError
from simulator.options import NEVER_ISOLATED
from simulator.outcome import Outcome
from simulator.torchrun import Job


def run_job(job: Job, *, replay: str = "", **options: Any) -> Outcome:
    """Simulate all ranks of a job. Options: see `ClusterOptions`.

    Raises:
        UsageError: there is no such script or module.
    """
    with on_path(job):
        cluster = cluster_of(job, function_of(job), **options)
        cluster.replay = replay
        return cluster.run()


def function_of(job: Job) -> RankFunction:
    """What each rank of a job runs. Its code is compiled once, by the first rank that runs it.

    Raises:
        UsageError: there is no such script.
    """
    return _rank_function(_module_loader(job.target) if job.as_module else _script_loader(job.target), job)


def cluster_of(job: Job, fn: RankFunction, **options: Any) -> Cluster:
    """A cluster that runs `fn` as the ranks of a job, to be run while `on_path` is open."""
    options["isolate"] = (*_neighbours(job), *options.get("isolate", ()))
    cluster = Cluster(nodes=job.nodes, gpus_per_node=job.ranks_per_node, agent_store=job.agent_store, **options)
    return cluster.launch(fn, ranks=job.ranks, env=job.env)


@contextmanager
def on_path(job: Job) -> Iterator[None]:
    """While open, the script's folder (the working directory, for a module) is first on the path of imports.

    Raises:
        UsageError: there is no such module.
    """
    with _first_on_path(os.getcwd() if job.as_module else os.path.dirname(os.path.realpath(job.target))):
        if job.as_module:
            _check_module(job.target)
        yield


def _neighbours(job: Job) -> tuple[str, ...]:
    """Modules and packages beside the script: in real processes each rank has its own, with its own globals.

    Of a module (`-m`) it is the top-level package.
    """
    if job.as_module:
        top = job.target.partition(".")[0]
        return (top,) if top.isidentifier() and top not in NEVER_ISOLATED else ()
    folder = os.path.dirname(os.path.realpath(job.target))
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    modules = [
        name.removesuffix(".py")
        for name in names
        if name.endswith(".py") or os.path.isfile(os.path.join(folder, name, "__init__.py"))
    ]
    return tuple(name for name in modules if name.isidentifier() and name not in NEVER_ISOLATED)


class Program(NamedTuple):
    """Something to run as `__main__`."""

    code: CodeType
    file: str
    argv0: str
    spec: ModuleSpec | None
    loader: Any

    def run(self, args: tuple[str, ...]) -> None:
        """As `python` does: a new `__main__`, sys.argv, and off it goes."""
        main = ModuleType("__main__")
        vars(main).update(
            __builtins__=builtins,
            __file__=self.file,
            __loader__=self.loader,
            __package__=None if self.spec is None else self.spec.parent,
            __spec__=self.spec,
            __cached__=None if self.spec is None else self.spec.cached,
        )
        sys.argv = [self.argv0, *args]
        sys.modules["__main__"] = main
        exec(self.code, vars(main))


def _rank_function(load: Callable[[], Program], job: Job) -> Callable[[int], None]:
    loaded = cache(load)

    def main(rank: int) -> None:
        loaded().run(job.args)

    return main


def _script_loader(path: str) -> Callable[[], Program]:
    """Checks the path now; the script is compiled in a rank, whose exception a syntax error is."""
    if not os.path.exists(path):
        raise UsageError(f"{path}: there is no such file; give the path of a Python script")
    if not os.path.isfile(path):
        raise UsageError(f"{path}: not a file; give the path of a Python script, or a module with -m")
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a Python script that can") from None
    full = os.path.abspath(path)

    def load() -> Program:
        code = compile(source, full, "exec", dont_inherit=True)
        return Program(code, full, path, None, SourceFileLoader("__main__", full))

    return load


def _check_module(name: str) -> None:
    """Looks for the top-level package only: finding a submodule runs its parents, which is for the ranks to do."""
    top = name.partition(".")[0]
    try:
        found = top != "" and importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise UsageError(f"-m {name}: there is no module {top!r} in {os.getcwd()} or on the Python path")


def _module_loader(name: str) -> Callable[[], Program]:
    def load() -> Program:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        code = None if spec is None else spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        if spec is None or code is None:
            raise ImportError(f"No module named {name} that can be run")
        file = spec.origin or code.co_filename
        return Program(code, file, file, spec, spec.loader)

    return load


@contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    kept = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = kept
