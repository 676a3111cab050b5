"""After a simulation, however it ended, the process is what it was: every patched name, every state, every thread."""

from __future__ import annotations

import gc
import importlib
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c
from torch.distributed import distributed_c10d as c10d

from simulator import UsageError, Verdict, simulate
from simulator.engine.scheduler import Limits
from simulator.engine.watchdog import Watchdog

PATCHED = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.rendezvous",
    "torch._C._distributed_c10d",
    "torch._C",
    "torch",
    "time",
    "os",
    "posix",
    "socket",
    "platform",
    "signal",
    "atexit",
    "threading",
    "_thread",
    "queue",
    "subprocess",
    "concurrent.futures.thread",
    "random",
    "numpy.random",
    "multiprocessing.shared_memory",
    "multiprocessing.resource_tracker",
    "warnings",
    "tests.unit.test_teardown" if "tests.unit.test_teardown" in sys.modules else __name__,
)
CHANGES_BY_ITSELF = {
    "threading": {"_counter", "_shutdown_locks", "_limbo", "_active", "_dangling"},
    "platform": {"_uname_cache"},
}
BACKEND_TABLES = ("_plugins", "backend_list", "default_device_backend_map", "backend_capability", "backend_type_map")


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    """The first simulation imports what is imported late: that stays."""
    simulate(lambda rank: None, 1)


def state_of_the_process() -> dict[str, Any]:
    """Everything that a simulation replaces or exchanges: names by identity, values by value."""
    state: dict[str, Any] = {}
    for module in PATCHED:
        names = vars(importlib.import_module(module))
        skipped = CHANGES_BY_ITSELF.get(module, set())
        state |= {f"{module}.{name}": id(value) for name, value in names.items() if name not in skipped}
    for name, value in vars(threading.Thread).items():
        state[f"Thread.{name}"] = id(value)
    for name, value in vars(c10d.Backend).items():
        state[f"Backend.{name}"] = id(value) if name not in BACKEND_TABLES else repr(value)
    state |= {f"torch future {name}": id(value) for name, value in vars(torch._C.Future).items()}
    state |= {
        "mooncake": {name: id(module) for name, module in sys.modules.items() if "mooncake" in name},
        "environment": dict(os.environ),
        "environment in bytes": dict(os.environb),
        "directory": os.getcwd(),
        "path": list(sys.path),
        "arguments": list(sys.argv),
        "main": id(sys.modules["__main__"]),
        "import locks": id(vars(importlib._bootstrap)["_module_locks"]),
        "excepthooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "filters": list(warnings.filters),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch seed": torch.initial_seed(),
        "torch generator": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "threads of torch": torch.get_num_threads(),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "cpus": os.sched_getaffinity(0),
        "groups": (dict(c10d._world.pg_map), dict(c10d._world.pg_names), c10d._world.group_count),
        "initialised": dist.is_initialized(),
        "recursion": sys.getrecursionlimit(),
    }
    return state


def changes(before: dict[str, Any]) -> dict[str, Any]:
    """What is not as `before`."""
    after = state_of_the_process()
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in sorted(keys) if before.get(key) != after.get(key)}


# -- programs that end in all ways -----------------------------------------------------------------------------------


def _busy(rank: int) -> None:
    """Uses all that is patched or exchanged."""
    dist.init_process_group("gloo")
    os.environ["HANGCHECK_LEAK"] = str(rank)
    os.chdir("/")
    sys.argv.append("--leak")
    sys.path.insert(0, "/leak")
    warnings.simplefilter("ignore")
    sys.excepthook = lambda *error: None
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(time.sleep, 1).result()
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)


def _ok(rank: int) -> None:
    _busy(rank)
    dist.destroy_process_group()


def _undestroyed(rank: int) -> None:
    _busy(rank)


def _deadlocked(rank: int) -> None:
    _busy(rank)
    threading.Thread(target=threading.Event().wait).start()
    dist.barrier() if rank == 0 else dist.recv(torch.ones(1), src=0)


def _crashed(rank: int) -> None:
    _busy(rank)
    os.abort() if rank == 0 else dist.barrier()


def _raising(rank: int) -> None:
    _busy(rank)
    raise ValueError(rank)


def _leaving(rank: int) -> None:
    _busy(rank)
    threading.Thread(target=time.sleep, args=[5], daemon=True).start()
    sys.exit(3) if rank == 0 else os._exit(4)


def _spinning(rank: int) -> None:
    _busy(rank)
    while rank == 0:
        pass
    dist.barrier()


def _mooncake(rank: int) -> None:
    dist.init_process_group("mooncake-cpu")
    dist.barrier()


ENDINGS = {
    "ok": (_ok, Verdict.OK),
    "without destroy": (_undestroyed, Verdict.OK),
    "deadlocked": (_deadlocked, Verdict.DEADLOCK),
    "crashed": (_crashed, Verdict.CRASH),
    "raising": (_raising, Verdict.EXCEPTION),
    "leaving": (_leaving, Verdict.EXCEPTION),
    "spinning": (_spinning, Verdict.LIVELOCK),
    "mooncake": (_mooncake, Verdict.OK),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_everything_is_as_it_was(ending: str) -> None:
    """Whatever the ranks did and however they ended; three runs in a row, and no thread is left."""
    body, verdict = ENDINGS[ending]
    before, threads = state_of_the_process(), set(threading.enumerate())
    for _ in range(1 if ending == "spinning" else 3):
        assert simulate(body, 2, limits=Limits(spin_wall_s=0.5)).verdict is verdict
        assert changes(before) == {}
    _wait_gone(threads)


def _wait_gone(threads: set[threading.Thread]) -> None:
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.001)
    assert set(threading.enumerate()) - threads == set()


@pytest.mark.parametrize("carrier", ["thread", "greenlet"])
def test_both_carriers_leave_nothing_behind(carrier: str) -> None:
    """Ranks on greenlets share a thread with the caller."""

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        os.environ["HANGCHECK_LEAK"] = "1"
        dist.barrier()
        if rank == 0:
            dist.recv(torch.ones(1), src=1)

    before = state_of_the_process()
    assert simulate(body, 2, carrier=carrier).verdict is Verdict.DEADLOCK
    assert changes(before) == {}


@pytest.mark.skipif(not hasattr(Watchdog, "take_back"), reason="the engine cannot take the baton back yet")
def test_an_interrupt_leaves_nothing_behind() -> None:
    """Control-C, while ranks wait for each other or while one computes: it reaches the caller, and all is undone."""
    script = textwrap.dedent(
        """
        import os, signal, threading, time
        import torch.distributed as dist
        import tests.unit.test_teardown as teardown
        from simulator import simulate

        def body(rank):
            dist.init_process_group("gloo")
            if rank == 0:
                threading.Thread(target=threading.Event().wait).start()
                started.append(rank)
            while spins and rank == 0:
                pass
            while True:
                time.sleep(1e-3)

        def interrupt():
            while not started:
                real_sleep(0.01)
            real_sleep(0.1)
            real_kill(pid, signal.SIGINT)

        simulate(lambda rank: None, 1)
        real_sleep, real_kill, pid = time.sleep, os.kill, os.getpid()
        before = teardown.state_of_the_process()
        for spins in (False, True):
            started = []
            thread = threading.Thread(target=interrupt)
            thread.start()
            began = time.monotonic()
            try:
                simulate(body, 2, limits=teardown.Limits(spin_wall_s=60, idle_steps_max=10**9))
            except KeyboardInterrupt:
                print("interrupted")
            thread.join()
            print(teardown.changes(before), time.monotonic() - began < 20)
            teardown._wait_gone({threading.main_thread()})
            print(simulate(lambda rank: rank, 2).results)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("interrupted\n{} True\n{0: 0, 1: 1}\n" * 2, 0), done.stderr


# -- real groups -----------------------------------------------------------------------------------------------------


def _real_group(path: str, rank: int, size: int) -> float:
    minute = timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=minute)
    try:
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        group = dist.new_group(list(range(size)), timeout=minute)
        dist.barrier(group=group)
        return total.item()
    finally:
        dist.destroy_process_group()


def test_real_gloo_works_between_simulations(tmp_path: Any) -> None:
    """In the same process, again and again."""
    for turn in range(2):
        assert simulate(_ok, 2).ok
        assert _real_group(str(tmp_path / f"store{turn}"), 0, 1) == 1.0


def test_real_gloo_of_two_processes_works_after_a_simulation(tmp_path: Any) -> None:
    """Both have simulated before; one of them is this process."""
    path = str(tmp_path / "store")
    script = (
        "import sys, tests.unit.test_teardown as t\n"
        "t.simulate(t._deadlocked, 2)\n"
        "print(t._real_group(sys.argv[1], 1, 2))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True) as other:
        simulate(_deadlocked, 2)
        assert _real_group(path, 0, 2) == 3.0
        assert other.communicate(timeout=60)[0] == "3.0\n"


def test_a_real_group_survives_a_simulation(tmp_path: Any) -> None:
    """Initialised before; its ranks, names and collectives are the same afterwards."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        other = dist.new_group([0])
        before = state_of_the_process(), c10d._world.pg_names[other]

        def body(rank: int) -> bool:
            first = dist.is_initialized()
            _busy(rank)
            return first

        assert simulate(body, 2).raise_if_bad().results == {0: False, 1: False}
        assert changes(before[0]) == {}
        total = torch.ones(1)
        dist.all_reduce(total, group=other)
        assert (total.item(), c10d._world.pg_names[other], dist.get_world_size()) == (1.0, before[1], 1)
        assert c10d._get_group_size_by_name(before[1]) == 1
    finally:
        dist.destroy_process_group()


# -- one at a time ---------------------------------------------------------------------------------------------------


def test_a_rank_cannot_simulate() -> None:
    """One clear error, and the outer simulation goes on."""

    def body(rank: int) -> str:
        dist.init_process_group("gloo")
        with pytest.raises(UsageError, match="a simulation is running in this process already") as caught:
            simulate(_ok, 2)
        dist.barrier()
        return str(caught.value)

    before = state_of_the_process()
    outcome = simulate(body, 2).raise_if_bad()
    assert len(set(outcome.results.values())) == 1 and "\n" not in outcome.results[0]
    assert changes(before) == {}


def test_two_threads_cannot_simulate_at_once() -> None:
    """The second is refused, whoever it is; the first is not disturbed."""
    before = state_of_the_process()
    running, errors = threading.Event(), []

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        running.set()
        while not errors:
            time.sleep(1)
        dist.barrier()

    def second() -> None:
        running.wait()
        try:
            simulate(_ok, 2)
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=second)
    thread.start()
    assert simulate(body, 2, limits=Limits(idle_steps_max=10**9)).ok
    thread.join()
    assert len(errors) == 1 and "run one after the other" in errors[0]
    assert changes(before) == {}
    assert simulate(_ok, 2).ok


# -- leaks -----------------------------------------------------------------------------------------------------------


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_runs_do_not_pile_up_in_memory() -> None:
    """Fifty runs of eight ranks, half of them deadlocked: no more than noise."""
    bodies: list[Callable[[int], None]] = [_group_of_eight, _stuck]
    for body in bodies * 2:
        simulate(body, 8)
    gc.collect()
    before = _megabytes()
    for turn in range(50):
        simulate(bodies[turn % 2], 8)
    assert _megabytes() - before < 30


def _group_of_eight(rank: int) -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(10_000))


def _stuck(rank: int) -> None:
    _group_of_eight(rank)
    dist.recv(torch.ones(10_000), src=(rank + 1) % 8)


def test_classes_of_torch_are_its_own_again() -> None:
    """Also where a module took them over while a simulation ran."""
    source = (
        "from torch.distributed import TCPStore\n"
        "from time import sleep, monotonic as clock\n"
        "from threading import Lock\n"
        "from os import getpid\n"
        "from random import random\n"
    )

    def body(rank: int) -> tuple[int, float]:
        names = vars(module)
        if rank == 0:
            exec(source, names)
        names["sleep"](1)
        return names["getpid"](), names["clock"]()

    module = type(sys)("hangcheck_imported_late")
    module.__file__ = "late.py"
    sys.modules[module.__name__] = module
    try:
        assert simulate(body, 2).raise_if_bad().results == {0: (4000, 1.0), 1: (4001, 1.0)}
        assert module.TCPStore is dist.TCPStore is _c.TCPStore
        assert (module.sleep, module.clock, module.Lock) == (time.sleep, time.monotonic, threading.Lock)
        assert (module.getpid, module.random) == (os.getpid, random.random)
        assert simulate(body, 2).raise_if_bad().results == {0: (4000, 1.0), 1: (4001, 1.0)}
    finally:
        del sys.modules[module.__name__]
