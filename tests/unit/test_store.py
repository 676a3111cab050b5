"""The simulated stores do what torch's stores do: the same calls on both, and the same answers, errors and texts."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simulator import Cluster, SimulationFailed, Verdict, simulate

T = timedelta(milliseconds=60)
SHORT = timedelta(milliseconds=30)
HAS_BARRIER = hasattr(_c.Store, "barrier")


def _tcp(**options: Any) -> dist.Store:
    """One real TCPStore in about 25 needs 5 seconds to reach its own server (seen on torch 2.11 to 2.14)."""
    return _timed(dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=30), **options))


def _timed(store: dist.Store) -> dist.Store:
    store.set_timeout(T)
    return store


STORES: dict[str, Callable[[str], dist.Store]] = {
    "TCPStore": lambda path: _tcp(),
    "HashStore": lambda path: _timed(dist.HashStore()),
    "FileStore": lambda path: _timed(dist.FileStore(path, 2)),
    "PrefixStore on TCPStore": lambda path: dist.PrefixStore("p", _tcp()),
    "two PrefixStores on Hash": lambda path: dist.PrefixStore("o", dist.PrefixStore("i", _timed(dist.HashStore()))),
    "PrefixStore on FileStore": lambda path: dist.PrefixStore("p", _timed(dist.FileStore(path, 2))),
}

VALUES = """
set('a', '1') | get('a') | set('b', b'x') | get('b') | set('', 'e') | get('') | set(b'bk', 'v') | get('bk')
set('bin', b'\\xff\\x00z') | get('bin') | set('uni', 'é') | get('uni') | set('ba', bytearray(b'ba')) | get('ba')
set('a', '2') | get('a') | check(['a']) | check(['a', 'zz']) | check([]) | check(('a',)) | check([b'a'])
num_keys() | list_keys() | delete_key('a') | delete_key('a') | delete_key('never') | num_keys() | check(['a'])
multi_set(['m1', 'm2'], ['x', 'y']) | multi_get(['m1', 'm2']) | multi_get([]) | multi_set([], [])
multi_set(['m1'], [b'x']) | multi_set(['m1'], ['x', 'z']) | get('m1')
append('ap', 'x') | append('ap', 'y') | get('ap') | append('ap', b'z') | append('ap', '') | get('ap') | list_keys()
"""
NUMBERS = """
add('n', 1) | add('n', 5) | add('n', -10) | get('n') | add('n', True) | add('z', 0) | check(['z']) | get('z')
add('n', 2**62) | add('n', 2**62) | add('low', -2**63) | append('n', '9') | get('n')
set('s', ' 12') | add('s', 1) | set('t', '12ab') | add('t', 1) | get('t') | num_keys()
"""
COMPARE_AND_SET = """
compare_set('c', '', 'v') | compare_set('c', 'v', 'w') | compare_set('c', 'no', 'x') | get('c')
compare_set('d', 'expected', 'x') | check(['d']) | compare_set('c', b'w', b'q') | get('c') | compare_set('c', '', 'z')
compare_set('e', '', '') | get('e') | compare_set('e', '', 'f') | get('e')
"""
WAITS = """
get('no') | set('b', '1') | wait(['b']) | wait([]) | wait(['b'], SHORT) | wait(['b', 'no']) | wait(['no', 'no2'], SHORT)
wait(['no'], 0.03) | multi_get(['b', 'no']) | timeout | set_timeout(SHORT) | timeout | get('no') | set_timeout(0.25)
timeout | set_timeout(timedelta(microseconds=1500)) | timeout
"""
QUEUES = """
queue_len('q') | queue_push('q', '1') | queue_push('q', b'2') | queue_len('q') | num_keys() | list_keys() | check(['q'])
wait(['q'], SHORT) | queue_pop('q') | queue_pop('q', False) | queue_pop('q', False) | queue_pop('q') | queue_pop('q', 1)
queue_len('q') | check(['q']) | set('q', 'v') | queue_push('q', '3') | delete_key('q') | check(['q'])
queue_pop(key='q') | queue_push('q', '4') | delete_key('q') | queue_len('q')
"""
BARRIERS = """
barrier('b', 1) | barrier('b', 1, SHORT) | barrier('c', 2, SHORT) | barrier('c', 2, SHORT)
barrier('c', 2, timeout=SHORT) | barrier('d', 0, SHORT) | barrier('e', -1, SHORT) | barrier('f', 2, 0.03)
list_keys() | num_keys() | barrier('g', 2, 1) | barrier(key='h', world_size=1, timeout=None)
"""
WRONG_ARGUMENTS = """
set('c', 5) | set(5, 'x') | set('n', None) | set('m', memoryview(b'x')) | set('a') | get() | get('a', 1) | get(key='a')
get(5) | check('ab') | check('a') | check(5) | check([5]) | add('n', '1') | add('n', 1.5) | add('n', 2**63) | add(5, 1)
add(key='n', value=1) | compare_set('a', 1, '') | compare_set('a', '', None) | delete_key(5) | wait('a')
wait(['a'], 1) | wait(keys=['a']) | wait(['a'], timeout=SHORT) | multi_get('ab')
multi_set(['a'], [5]) | multi_set('a', 'b') | append('a', 5) | set_timeout(5) | set_timeout('1') | nothing | num_keys(1)
"""
NUMBER_EXPECTED = "set('n', 'abc') | add('n', 1) | {next} | {next} | {next}"
AFTER_THE_END = (
    "set('w', '1')", "get('w')", "add('w', 1)", "check(['w'])", "num_keys()", "multi_set(['a'], ['1'])",
    "append('a', '1')", "delete_key('a')", "compare_set('a', '', '1')", "list_keys()", "set_timeout(T)",
)  # fmt: skip
OTHER = "has_extended_api() | clone() | underlying_store | _underlying_non_prefix_store | host | path | libuvBackend"


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, dist.Store):
        return next(name for name in ("TCPStore", "HashStore", "FileStore", "PrefixStore") if name in str(type(value)))
    if isinstance(value, list) and value and isinstance(value[0], str):
        return sorted(value)
    return value


def _answers(make: Callable[[str], dist.Store], calls: str, path: str) -> list[tuple[str, Any]]:
    store = make(path)
    names = {"s": store, "SHORT": SHORT, "T": T, "timedelta": timedelta}
    answers: list[tuple[str, Any]] = []
    for call in (call.strip() for line in calls.strip().splitlines() for call in line.split("|")):
        if call == "path":
            continue
        try:
            answers.append((call, _plain(eval(f"s.{call}", names), path)))
        except Exception as error:
            exact = type(error) not in (TypeError, AttributeError)
            answers.append((call, f"{type(error).__name__}: {error if exact else ''}"))
    return answers


def _simulated(make: Callable[[str], dist.Store], calls: str, path: str) -> list[tuple[str, Any]]:
    outcome = simulate(lambda rank: _answers(make, calls, path), 1, on_hang="timeout")
    return outcome.results[0]


def _same(kind: str, calls: str, tmp_path: Path) -> None:
    real = _answers(STORES[kind], calls, str(tmp_path / "real"))
    assert _simulated(STORES[kind], calls, str(tmp_path / "simulated")) == real


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    "calls",
    [VALUES, NUMBERS, COMPARE_AND_SET, WRONG_ARGUMENTS, OTHER],
    ids=["values", "numbers", "compare_set", "wrong arguments", "other"],
)
def test_the_same_calls_give_the_same_answers(kind: str, calls: str, tmp_path: Path) -> None:
    """Values, keys, wrong types: value by value what torch's class of that name says."""
    _same(kind, calls, tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in STORES if "File" not in kind])
@pytest.mark.parametrize(
    "calls",
    [
        WAITS,
        QUEUES,
        pytest.param(BARRIERS, marks=pytest.mark.skipif(not HAS_BARRIER, reason="this torch has no Store.barrier")),
    ],
    ids=["waits", "queues", "barriers"],
)
def test_waits_end_and_time_out_alike(kind: str, calls: str, tmp_path: Path) -> None:
    """Type and text of each time-out, and what is left behind."""
    _same(kind, calls, tmp_path)


def test_a_file_store_times_out_at_the_next_whole_second(tmp_path: Path) -> None:
    """Texts as torch's, and one second of virtual time where torch took one of real time."""
    calls = "get('no') | wait(['no'], SHORT)"
    _same("FileStore", calls, tmp_path)

    def waits(rank: int) -> float:
        began = time.monotonic()
        _answers(STORES["FileStore"], calls, str(tmp_path / "again"))
        return time.monotonic() - began

    assert simulate(waits, 1, on_hang="timeout").results[0] == pytest.approx(2.0)


def test_a_legacy_server_has_no_queues(tmp_path: Path) -> None:
    """`use_libuv=False`: the same text as torch's."""
    calls = "queue_push('q', '1') | queue_len('q') | queue_pop('q') | libuvBackend | set('a', '1') | list_keys()"
    make = lambda path: _tcp(use_libuv=False)  # noqa: E731
    assert _simulated(make, calls, str(tmp_path)) == _answers(make, calls, str(tmp_path))


def _drop(next_call: str) -> str:
    return NUMBER_EXPECTED.format(next=next_call)


@pytest.mark.parametrize("next_call", AFTER_THE_END)
def test_a_server_drops_the_client_that_adds_to_what_is_no_number(next_call: str, tmp_path: Path) -> None:
    """The next request is still taken by the kernel, and lost; from then on the pipe is broken."""
    _same("TCPStore", _drop(next_call), tmp_path)


def test_other_stores_refuse_to_add_to_what_is_no_number(tmp_path: Path) -> None:
    """HashStore and FileStore raise C++'s ValueError, and go on."""
    _same("HashStore", _drop("get('n')"), tmp_path)
    _same("FileStore", _drop("get('n')"), tmp_path)


# -- servers -----------------------------------------------------------------------------------------------------------


def _makings() -> list[tuple[str, Any]]:
    """What comes of making TCPStores in one process, one after another; port numbers are left out."""
    kept: list[Any] = []

    def make(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        options = {"timeout": timedelta(seconds=30), **options}
        for _ in range(5):
            try:
                kept.append(dist.TCPStore(host, port, *args, **options))
                break
            except dist.DistNetworkError as error:
                if port == 1 or "client socket has timed out" not in str(error):
                    raise
        store = kept[-1]
        return store.num_keys(), store.list_keys(), store.host, store.timeout

    first = make("127.0.0.1", 0, None, True)
    port = kept[0].port
    shared = make("127.0.0.1", 0, -1, True, multi_tenant=True)
    shared_port = kept[1].port
    answers: list[tuple[str, Any]] = [("first", first), ("shared", shared)]
    for name, args, options in (
        ("a world of one", ("127.0.0.1", 0, 1, True), {}),
        ("nobody waits for workers", ("127.0.0.1", 0, 2, True), {"wait_for_workers": False}),
        ("a world of zero", ("127.0.0.1", 0, 0, True), {}),
        ("workers that do not come", ("127.0.0.1", 0, 3, True), {"timeout": timedelta(seconds=0.9)}),
        ("taken", ("127.0.0.1", port, None, True), {}),
        ("taken, shared", ("127.0.0.1", port, None, True), {"multi_tenant": True}),
        ("shared twice", ("127.0.0.1", shared_port, None, True), {"multi_tenant": True}),
        ("shared, then not", ("127.0.0.1", shared_port, None, True), {}),
        ("client", ("127.0.0.1", port), {}),
        ("client of a world", ("localhost", port, 5, False), {}),
        ("another client", ("localhost", port, 5, False), {"wait_for_workers": False}),
        ("nobody there", ("127.0.0.1", 1, None, False), {"timeout": timedelta(milliseconds=50)}),
        ("a port too high", ("127.0.0.1", 65536, None, True), {}),
        ("a port below 0", ("127.0.0.1", -1, None, True), {}),
        ("a port in words", ("127.0.0.1", "http", None, True), {}),
        ("no host", (None, 0, None, True), {}),
        ("a float for world_size", ("127.0.0.1", 0, 1.0, True), {}),
        ("an integer for timeout", ("127.0.0.1", 0, 1, True), {"timeout": 5}),
        ("a float for timeout", ("127.0.0.1", 0, 1, True), {"timeout": 30.25}),
    ):
        try:
            answers.append((name, make(*args, **options)))
        except Exception as error:
            text = "" if isinstance(error, TypeError) else str(error).replace(str(port), "P")
            answers.append((name, (type(error).__name__, text.replace(str(shared_port), "Q"))))
    return answers


def test_servers_are_made_as_torch_makes_them() -> None:
    """World sizes, hidden keys, ports that are taken, multi-tenancy, workers that do not come."""
    outcome = simulate(lambda rank: _makings(), 1, on_hang="timeout")
    assert outcome.results[0] == _makings()


@pytest.mark.parametrize("call", ["get('no')", "set('w', '1')", "get('w')", "queue_pop('no')"])
def test_clients_lose_a_server_whose_process_is_gone(call: str) -> None:
    """Whoever waits is told at once; the next request is lost, and then the pipe is broken."""
    master = [dist.TCPStore("127.0.0.1", 0, None, True)]
    client = dist.TCPStore("127.0.0.1", master[0].port, timeout=timedelta(seconds=30))
    killer = threading.Timer(0.05, master.clear)
    real = _calls_around_the_end(client, call, killer.start)
    killer.join()

    def serves(rank: int) -> Any:
        if rank == 0:
            store = dist.TCPStore("node0", 1234, None, True)
            store.wait(["ending"])
            time.sleep(0.05)
            os._exit(3)
        store = dist.TCPStore("node0", 1234, timeout=timedelta(seconds=5))
        return _calls_around_the_end(store, call, lambda: store.set("ending", "1"))

    outcome = simulate(serves, 2)
    assert outcome.results == {1: real}


def _calls_around_the_end(store: dist.Store, call: str, end: Callable[[], None]) -> list[str]:
    """Three calls: the first waits when the end comes, or all come after it."""
    answers = []
    end()
    time.sleep(0 if "no" in call else 0.2)
    for _ in range(3):
        try:
            answers.append(repr(eval(f"s.{call}", {"s": store})))
        except dist.DistNetworkError as error:
            answers.append(str(error))
    return answers


def test_a_client_may_come_before_its_server() -> None:
    """It waits until somebody listens, and is told to within its time-out if nobody does."""

    def comes(rank: int) -> Any:
        if rank == 0:
            time.sleep(5)
            store = dist.TCPStore("node0", 1234, None, True)
            store.set("a", "1")
            store.wait(["seen"])
            return time.monotonic()
        store = dist.TCPStore("node0", 1234)
        value = store.get("a")
        store.set("seen", "1")
        return value, time.monotonic()

    assert simulate(comes, 2).raise_if_bad().results == {0: 5.0, 1: (b"1", 5.0)}


def test_a_server_listens_on_its_own_node_only() -> None:
    """Another node's `localhost` is not it; its host name and its address are."""

    def connects(rank: int) -> Any:
        if rank == 0:
            store = dist.TCPStore("localhost", 1234, None, True)
            store.wait(["done"])
            return "served"
        store = dist.TCPStore("node0" if rank == 1 else "10.0.0.1", 1234)
        if rank == 2:
            with pytest.raises(dist.DistNetworkError, match="timed out after 100ms while trying to connect to"):
                dist.TCPStore("localhost", 1234, timeout=timedelta(milliseconds=100))
            store.set("done", "1")
        return store.num_keys() >= 0

    outcome = Cluster(nodes=3, gpus_per_node=1, on_hang="timeout").launch(connects, ranks=3).run()
    assert outcome.results == {0: "served", 1: True, 2: True}


def test_two_processes_of_a_node_cannot_have_one_port() -> None:
    """Not even with `multi_tenant`, which is about stores of one process."""

    def serves(rank: int) -> str:
        try:
            store = dist.TCPStore("localhost", 1234, None, True, multi_tenant=True)
        except dist.DistNetworkError as error:
            return str(error).partition("message: ")[2]
        time.sleep(1)
        return str(store.port)

    assert simulate(serves, 2).results == {0: "1234", 1: "address already in use"}
    both = Cluster(nodes=2, gpus_per_node=1).launch(serves, ranks=2).run()
    assert both.results == {0: "1234", 1: "1234"}


def test_a_server_goes_when_its_last_master_object_goes() -> None:
    """So that a process may serve on the same port once more, with no keys of before."""

    def twice(rank: int) -> list[int]:
        counts = []
        for _ in range(2):
            store = dist.TCPStore("localhost", 1234, None, True)
            counts.append(store.add("visits", 1))
            del store
        return counts

    assert simulate(twice, 1).results == {0: [1, 1]}


# -- rendezvous --------------------------------------------------------------------------------------------------------


def _sum(rank: int, init: Callable[[int], None]) -> float:
    init(rank)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return total.item()


def test_every_init_method_brings_the_ranks_together(tmp_path: Path) -> None:
    """env, tcp, file (which leaves no file behind), and a store of one's own."""
    file = tmp_path / "rendezvous"

    def with_store(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, 3, rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=3)

    inits: list[Callable[[int], None]] = [
        lambda rank: dist.init_process_group("gloo"),
        lambda rank: dist.init_process_group("gloo", init_method="env://"),
        lambda rank: dist.init_process_group("gloo", init_method="tcp://node0:1234", rank=rank, world_size=3),
        lambda rank: dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=3),
        lambda rank: dist.init_process_group(
            "gloo", store=dist.FileStore(str(tmp_path / "own"), 3), rank=rank, world_size=3
        ),
        with_store,
    ]
    for init in inits:
        outcome = simulate(_sum, 3, args=[init]).raise_if_bad()
        assert outcome.results == dict.fromkeys(range(3), 3.0)


def test_a_file_of_a_run_before_holds_no_keys(tmp_path: Path) -> None:
    """The file is there while the ranks run, and empty: keys are kept in memory."""
    path = tmp_path / "store"

    def counts(rank: int) -> tuple[int, bool]:
        store = dist.FileStore(str(path), 1)
        return store.add("visits", 1), path.exists()

    assert [simulate(counts, 1).results[0] for _ in range(2)] == [(1, True)] * 2


@pytest.mark.parametrize("path", ["", "missing/store"])
def test_a_file_that_cannot_be_made_is_an_error(path: str, tmp_path: Path) -> None:
    """The path is a directory (torch: the same text), or lies in none (torch: waits for its time-out, then aborts)."""
    with pytest.raises(SimulationFailed, match=r"DistStoreError: (Is a directory|No such file or directory)"):
        simulate(lambda rank: dist.FileStore(str(tmp_path / path), 1), 1).raise_if_bad()


def test_a_store_made_outside_the_ranks_is_refused() -> None:
    """It would block the whole simulation for real."""
    outside = dist.HashStore()
    outcome = simulate(lambda rank: dist.init_process_group("gloo", store=outside, rank=rank, world_size=2), 2)
    assert outcome.verdict is Verdict.EXCEPTION
    text = "TypeError: PrefixStore over a HashStore made outside the simulation: make the store inside the rank"
    assert outcome.ranks[0].error == text


def test_stores_outside_the_ranks_are_real() -> None:
    """A thread that is no rank makes real stores while a simulation runs."""
    made: list[Any] = []

    def waits(rank: int) -> None:
        thread = made[0]
        while not made[1:] and thread.is_alive():
            time.sleep(1)

    def watches() -> None:
        ready.wait()
        made.append([type(dist.HashStore()), type(dist.PrefixStore("p", dist.HashStore()))])

    ready = threading.Event()
    made.append(threading.Thread(target=watches))
    made[0].start()
    ready.set()
    simulate(waits, 1)
    made[0].join()
    assert made[1] == [_c.HashStore, _c.PrefixStore]


def test_a_key_that_nobody_sets_is_a_deadlock() -> None:
    """Found at once, not after the store's 300 seconds."""

    def waits(rank: int) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0)
        store.get("go")

    outcome = simulate(waits, 2)
    assert outcome.verdict is Verdict.DEADLOCK
    assert "store.get('go')" in outcome.report()


def test_loops_on_a_store_let_the_others_run() -> None:
    """Whatever call a program polls with: the loop ends once another rank has done its part."""
    loops: list[Callable[[dist.Store], bool]] = [
        lambda store: store.check(["go"]),
        lambda store: store.add("count", 0) == 1,
        lambda store: store.get("state") == b"ready",
        lambda store: store.compare_set("state", "ready", "seen") == b"seen",
        lambda store: store.num_keys() > 2,
        lambda store: "go" in store.list_keys(),
        lambda store: store.queue_len("jobs") > 0,
    ]

    def polls(rank: int, done: Callable[[dist.Store], bool]) -> None:
        store = dist.TCPStore("node0", 1234, None, rank == 0)
        store.set("state", "new")
        if rank == 0:
            time.sleep(0.02)
            store.add("count", 1)
            store.queue_push("jobs", "1")
            store.multi_set(["state", "go"], ["ready", "1"])
        while rank == 1 and not done(store):
            pass

    for done in loops:
        assert simulate(polls, 2, args=[done]).raise_if_bad().ok


@pytest.mark.skipif(not HAS_BARRIER, reason="this torch has no Store.barrier")
def test_a_store_barrier_holds_everybody_until_the_last_comes() -> None:
    """On each kind of store."""

    def meets(rank: int, kind: str, path: str) -> float:
        server = dist.TCPStore("node0", 1234, None, rank == 0)
        store = {"TCPStore": server, "PrefixStore": dist.PrefixStore("p", server)}.get(kind) or dist.FileStore(path, 3)
        time.sleep(rank)
        store.barrier("b", 3)
        return time.monotonic()

    for kind in ("TCPStore", "PrefixStore", "FileStore"):
        with tempfile.TemporaryDirectory() as folder:
            outcome = simulate(meets, 3, args=[kind, f"{folder}/store"]).raise_if_bad()
        assert outcome.results == dict.fromkeys(range(3), 2.0)
