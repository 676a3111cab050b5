"""What a rank sees and does of its process: environment, directory, pids, host, exits, signals, hooks."""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from simulator import Cluster, UsageError, Verdict, simulate


def results(body: Callable[[int], Any], ranks: int = 2, **options: Any) -> dict[int, Any]:
    """What the ranks return; each of them must do well."""
    return simulate(body, ranks, **options).raise_if_bad().results


# -- environment and directory ----------------------------------------------------------------------------------------


def test_each_rank_has_an_environment_of_its_own() -> None:
    """Set, deleted, copied, defaulted: no other rank sees it, nor the process afterwards."""
    os.environ["HANGCHECK_OUTER"] = "outer"
    before = dict(os.environ)

    def body(rank: int) -> list[Any]:
        os.environ["HANGCHECK_MINE"] = str(rank)
        os.environ.setdefault("HANGCHECK_TOO", f"{rank}{rank}")
        if rank == 0:
            del os.environ["HANGCHECK_OUTER"]
        time.sleep(1)
        return [
            os.environ["HANGCHECK_MINE"],
            os.getenv("HANGCHECK_TOO"),
            os.environb[b"HANGCHECK_MINE"],
            os.environ.copy().get("HANGCHECK_OUTER"),
            "HANGCHECK_OUTER" in os.environ,
            os.environ["RANK"],
        ]

    assert results(body) == {
        0: ["0", "00", b"0", None, False, "0"],
        1: ["1", "11", b"1", "outer", True, "1"],
    }
    assert dict(os.environ) == before
    assert b"RANK" not in os.environb
    del os.environ["HANGCHECK_OUTER"]


def test_the_environment_of_the_c_library_is_left_alone() -> None:
    """`putenv` in a rank reaches nobody: C code reads the real process's environment."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p

    def body(rank: int) -> Any:
        os.environ["HANGCHECK_MINE"] = "1"
        os.putenv("HANGCHECK_MINE", "2")
        return getenv(b"HANGCHECK_MINE"), os.environ["HANGCHECK_MINE"]

    assert results(body) == dict.fromkeys(range(2), (None, "1"))
    assert getenv(b"HANGCHECK_MINE") is None


def test_each_rank_has_a_working_directory_of_its_own(tmp_path: Path) -> None:
    """Also if only one of them changes it; afterwards the process is where it was."""
    before = os.getcwd()

    def body(rank: int) -> list[str]:
        seen = []
        if rank == 1:
            os.chdir(tmp_path)
        for _ in range(2):
            time.sleep(1)
            seen.append(os.getcwd())
        return seen

    assert results(body, 3) == {0: [before] * 2, 1: [str(tmp_path)] * 2, 2: [before] * 2}
    assert os.getcwd() == before


def test_arguments_paths_and_warning_filters_are_a_ranks_own() -> None:
    """sys.argv, sys.path, filters and recorders of warnings: nobody else's, and gone afterwards."""
    before = (list(sys.argv), list(sys.path), list(warnings.filters), warnings.showwarning)

    def body(rank: int) -> list[Any]:
        sys.argv[1:] = [f"--rank={rank}"]
        sys.path.insert(0, f"/rank/{rank}")
        warnings.filterwarnings("ignore", message=f"of rank {rank}")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            time.sleep(1 + rank)
            warnings.warn(f"of {rank}", stacklevel=1)
            time.sleep(1)
        return [sys.argv[1:], sys.path[0], warnings.filters[0][1].pattern, [str(w.message) for w in seen]]

    assert results(body) == {r: [[f"--rank={r}"], f"/rank/{r}", f"of rank {r}", [f"of {r}"]] for r in range(2)}
    assert (list(sys.argv), list(sys.path), list(warnings.filters), warnings.showwarning) == before


# -- who and where ---------------------------------------------------------------------------------------------------


def test_pids_and_hosts_are_those_of_the_cluster() -> None:
    """One pid a rank, one parent and one host name a node, by every way to ask."""

    def body(rank: int) -> list[Any]:
        return [
            os.getpid(),
            os.getppid(),
            os.getpgid(0) == os.getpgrp() == os.getppid(),
            socket.gethostname(),
            socket.getfqdn(),
            platform.node(),
            os.uname().nodename,
            platform.uname().node,
            os.uname().sysname,
            socket.gethostbyname(socket.gethostname()),
            socket.gethostbyname("node0"),
            socket.getaddrinfo("node1", 80, type=socket.SOCK_STREAM)[0][4],
            socket.gethostbyname("localhost"),
        ]

    outcome = Cluster(nodes=2, gpus_per_node=1).launch(body, ranks=2).run().raise_if_bad()
    for rank, (name, address) in enumerate([("node0", "10.0.0.1"), ("node1", "10.0.0.2")]):
        same = [name] * 5
        rest = ["Linux", address, "10.0.0.1", ("10.0.0.2", 80), "127.0.0.1"]
        assert outcome.results[rank] == [4000 + rank, 3999 - rank, True, *same, *rest]
    assert platform.uname().node == platform.node() == socket.gethostname() != "node0"


def test_random_bytes_of_the_system_can_be_repeated() -> None:
    """`os.urandom` gives each rank its own bytes, the same ones in each run, and real ones outside."""
    import uuid

    def body(rank: int) -> Any:
        return os.urandom(8), uuid.uuid4().hex

    first = results(body)
    assert first == results(body)
    assert first[0] != first[1]
    assert os.urandom(8) != os.urandom(8)


# -- the end of a rank -----------------------------------------------------------------------------------------------


class _NoText(Exception):
    """An exception without a message."""


def _ends(body: Callable[[], Any]) -> tuple[str, int, str]:
    record = simulate(lambda rank: body(), 1).ranks[0]
    return record.status, record.exit_code, record.error


def _raises(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        (lambda: None, ("ok", 0, "")),
        (lambda: sys.exit(), ("ok", 0, "")),
        (lambda: sys.exit(0), ("ok", 0, "")),
        (lambda: sys.exit(3), ("exit", 3, "sys.exit(3)")),
        (lambda: sys.exit("no luck"), ("exit", 1, "sys.exit('no luck')")),
        (lambda: os._exit(0), ("ok", 0, "")),
        (lambda: os._exit(7), ("exit", 7, "os._exit(7)")),
        (lambda: os.abort(), ("crash", -signal.SIGABRT, "")),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), ("crash", -signal.SIGKILL, "")),
        (lambda: signal.raise_signal(signal.SIGTERM), ("crash", -signal.SIGTERM, "")),
        (lambda: 1 / 0, ("exception", 1, "ZeroDivisionError: division by zero")),
        (_raises(_NoText()), ("exception", 1, "_NoText")),
        (_raises(KeyboardInterrupt()), ("exception", 1, "KeyboardInterrupt")),
        (lambda: os.kill(os.getpid(), signal.SIGINT), ("exception", 1, "KeyboardInterrupt")),
        (_raises(GeneratorExit()), ("exception", 1, "GeneratorExit")),
    ],
)
def test_a_rank_may_end_in_any_way(body: Callable[[], Any], ended: tuple[str, int, str]) -> None:
    """Status and exit code are those that the process would have; the test runner survives."""
    assert _ends(body) == ended


def test_an_exit_skips_handlers_that_catch_exceptions() -> None:
    """`except Exception` around os._exit does not keep the rank alive."""

    def body() -> None:
        try:
            os._exit(4)
        except Exception:
            pytest.fail("it went on")

    assert _ends(body)[:2] == ("exit", 4)


def test_an_exit_in_a_thread_ends_the_whole_rank() -> None:
    """Its main thread too, wherever that waits."""

    def body(rank: int) -> None:
        threading.Thread(target=lambda: (time.sleep(1), os._exit(5))).start()
        time.sleep(100)

    outcome = simulate(body, 1)
    assert (outcome.ranks[0].status, outcome.ranks[0].exit_code) == ("exit", 5)


def test_a_rank_that_forks_is_refused() -> None:
    """The child would be a second simulator."""
    outcome = simulate(lambda rank: os.fork(), 1)
    assert outcome.ranks[0].error.startswith("UsageError: a rank forks a process, which is not simulated")


# -- signals ---------------------------------------------------------------------------------------------------------


def test_a_rank_can_kill_another() -> None:
    """The victim is gone, and whoever asks afterwards is told so."""

    def body(rank: int) -> str:
        if rank == 1:
            time.sleep(100)
            return "survived"
        time.sleep(1)
        os.kill(4001, 0)
        os.kill(4001, signal.SIGKILL)
        time.sleep(1)
        with pytest.raises(ProcessLookupError):
            os.kill(4001, 0)
        with pytest.raises(ProcessLookupError):
            os.kill(1, signal.SIGKILL)
        return "killed it"

    outcome = simulate(body, 2)
    assert outcome.results == {0: "killed it"}
    assert (outcome.ranks[1].status, outcome.ranks[1].exit_code) == ("crash", -signal.SIGKILL)


def test_a_process_group_is_the_ranks_of_a_node() -> None:
    """killpg ends them all, the caller last; the real process group is not touched."""

    def body(rank: int) -> None:
        if rank == 1:
            os.killpg(os.getpgrp(), signal.SIGTERM)
        time.sleep(2)

    outcome = Cluster(nodes=2, gpus_per_node=2).launch(body, ranks=4).run()
    assert [record.status for record in outcome.ranks.values()] == ["crash", "crash", "ok", "ok"]


def test_handlers_are_a_ranks_own() -> None:
    """Its own signals run them, ignored ones do nothing, and another rank keeps the default."""
    before = signal.getsignal(signal.SIGUSR1)

    def body(rank: int) -> Any:
        seen: list[int] = []
        first = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number)) if rank == 0 else None
        time.sleep(1)
        if rank == 1:
            return signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGCHLD)
        assert signal.alarm(1) == 0
        with pytest.raises(OSError, match="Invalid argument"):
            signal.signal(signal.SIGKILL, signal.SIG_IGN)
        with pytest.raises(ValueError, match="signal number out of range"):
            signal.signal(1000, signal.SIG_IGN)
        with pytest.raises(TypeError, match="signal handler must be"):
            signal.signal(signal.SIGTERM, 42)
        return seen, first

    assert results(body) == {0: ([signal.SIGUSR1], signal.SIG_DFL), 1: (signal.SIG_DFL, True)}
    assert signal.getsignal(signal.SIGUSR1) is before


# -- hooks at the end ------------------------------------------------------------------------------------------------


def test_exit_hooks_run_at_the_end_of_their_rank() -> None:
    """The last one first, after an exception too, but not after os._exit; none is left for the real process."""
    ran: list[str] = []
    hooks = atexit._ncallbacks()

    def body(rank: int) -> None:
        atexit.register(ran.append, f"first of {rank}")
        atexit.register(ran.append, f"last of {rank}")
        atexit.register(print, "unregistered")
        atexit.unregister(print)
        time.sleep(rank)
        if rank == 1:
            raise ValueError
        if rank == 2:
            os._exit(1)

    simulate(body, 3)
    assert ran == ["last of 0", "first of 0", "last of 1", "first of 1"]
    assert atexit._ncallbacks() == hooks


def test_an_exit_hook_may_meet_other_ranks() -> None:
    """Many programs destroy their process group there."""

    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)
        atexit.register(dist.barrier)

    assert simulate(body, 2).ok


def test_an_uncaught_exception_reaches_the_hook_of_its_rank() -> None:
    """`sys.excepthook` of that rank only, before its exit hooks."""
    seen: list[Any] = []
    before = sys.excepthook

    def body(rank: int) -> None:
        if rank == 0:
            sys.excepthook = lambda kind, error, trace: seen.append((kind.__name__, str(error), trace is not None))
        atexit.register(seen.append, rank)
        time.sleep(rank)
        raise ValueError(f"of {rank}")

    outcome = simulate(body, 2)
    assert [record.error for record in outcome.ranks.values()] == ["ValueError: of 0", "ValueError: of 1"]
    assert seen == [("ValueError", "of 0", True), 0, 1]
    assert sys.excepthook is before


def test_an_uncaught_exception_is_not_printed_by_each_rank(capfd: pytest.CaptureFixture[str]) -> None:
    """The report shows it; torch's hook, which prints it with the rank, stays out of it unless it hides another."""

    def body(rank: int) -> None:
        if rank == 1:
            sys.excepthook = lambda kind, error, trace: print("hook of rank 1", file=sys.stderr)
        dist.init_process_group("gloo")
        raise ValueError(f"of {rank}")

    simulate(body, 2)
    assert capfd.readouterr().err == "[rank1]: hook of rank 1\n"


def test_a_process_lasts_as_long_as_its_threads() -> None:
    """Exit hooks run when the last thread that is no daemon has ended; a pool's jobs are done by then."""
    seen: list[Any] = []

    def body(rank: int) -> None:
        atexit.register(lambda: seen.append(("hook", time.monotonic())))
        threading.Thread(target=lambda: (time.sleep(2), seen.append("thread"))).start()
        threading.Thread(target=lambda: (time.sleep(9), seen.append("daemon")), daemon=True).start()
        ThreadPoolExecutor(1).submit(lambda: (time.sleep(3), seen.append("job")))

    assert simulate(body, 1).ok
    assert seen == ["thread", "job", ("hook", 3.0)]


def test_a_thread_that_never_ends_keeps_its_process() -> None:
    """A deadlock, with the line where the thread waits."""
    outcome = simulate(lambda rank: threading.Thread(target=threading.Event().wait).start(), 1)
    assert outcome.verdict is Verdict.DEADLOCK


def test_usage_errors_are_no_assertion_errors() -> None:
    """They say what the user did."""
    assert not issubclass(UsageError, AssertionError)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_process_is_not_stopped(number: signal.Signals) -> None:
    """Peers of a stopped process hang: rather than to go on as if nothing were, the rank is told so."""
    outcome = simulate(lambda rank: os.kill(os.getpid(), number), 1)
    assert outcome.verdict is Verdict.EXCEPTION
    assert f"{number.name} to rank 0: stopping a process is not modelled" in outcome.ranks[0].error


def test_a_rank_does_not_redirect_the_streams_of_all(capfd: pytest.CaptureFixture[str]) -> None:
    """`os.dup2` onto 0 to 2 has no effect; any other descriptor is real."""

    def body(rank: int) -> None:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        os.write(1, b"still there\n")

    results(body, 1)
    assert capfd.readouterr().out == "still there\n"


def test_the_address_of_a_datagram_socket_is_that_of_the_node() -> None:
    """The usual way to ask for one's own address."""

    def body(rank: int) -> tuple[str, str]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.2", 9))
            loop = probe.getsockname()[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unbound:
            return loop, unbound.getsockname()[0]

    assert results(body, 1)[0] == ("127.0.0.1", "0.0.0.0")
