"""TCPStore, FileStore, HashStore and PrefixStore of a simulation, with the real blocking, time-outs and key semantics.

Measured on torch 2.13.0: a missing key raises DistStoreError `wait timeout after 300ms, keys: /k` (TCPStore) or
`Wait timeout` (HashStore), RuntimeError (FileStore); TCPStore counts one hidden key, FileStore shows `efcount/` once a
worker adds; `compare_set` on a missing key sets it only if the expected value is empty, and returns the expected value
otherwise; a PrefixStore joins with `/`.

Not modelled: network latency, the wire protocol, libuv versus the legacy server. `FileStore` keeps its keys in memory
under the file's path and writes an empty file.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import simpy
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simulator.engine.scheduler import Wait
from simulator.records import KeyWait
from simulator.torch_world.simulation import Simulation

DEFAULT_TIMEOUT = timedelta(seconds=300)
_CLOSED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"


def _millis(timeout: timedelta) -> int:
    return int(timeout.total_seconds() * 1000)


class KeyTable:
    """The keys of one store, who waits for them, and the process groups that meet under it."""

    def __init__(self, name: str, hidden_keys: int = 0) -> None:
        self.name = name
        self.data: dict[str, bytes] = {}
        self.queues: dict[str, list[bytes]] = {}
        self.reasons: dict[str, str] = {}
        self.hidden_keys = hidden_keys
        self.alive = True
        self.meetings: dict[str, Any] = {}
        self._waiters: dict[str, list[simpy.Event]] = {}

    def put(self, key: str, value: bytes) -> None:
        """Set a key and wake whoever waits for it."""
        self.data[key] = value
        for event in self._waiters.pop(key, ()):
            event.succeed()

    def waiter(self, key: str, event: simpy.Event) -> None:
        """`event` triggers when `key` is set, or when the store dies."""
        self._waiters.setdefault(key, []).append(event)

    def die(self) -> None:
        """The process that kept the keys is gone."""
        self.alive = False
        waiters, self._waiters = self._waiters, {}
        for events in waiters.values():
            for event in events:
                event.succeed()


class StoreBase(_c.Store):
    """What the four stores share. Subclasses say how keys are named in messages and how a time-out is raised."""

    _leading = ""
    _extended = True

    def __init__(self, sim: Simulation, table: KeyTable, timeout: timedelta) -> None:
        super().__init__()
        self._sim = sim
        self.table = table
        self._timeout = timeout

    # -- the protocol of torch.distributed.Store -----------------------------------------------------------------

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._alive()
        self.table.put(key, _encode(value))
        self._sim.scheduler.progress()
        self._sim.log("store_set", key)

    def get(self, key: str) -> bytes:
        self._wait_for([key], self._timeout, "get")
        return self.table.data[key]

    def add(self, key: str, amount: int) -> int:
        self._alive()
        value = int(self.table.data.get(key, b"0")) + amount
        self.table.put(key, str(value).encode())
        if amount == 0:
            self._sim.scheduler.poll(f"store.add({key!r}, 0)")
        else:
            self._sim.scheduler.progress()
            self._sim.log("store_add", key, value)
        return value

    def check(self, keys: list[str]) -> bool:
        self._alive()
        found = all(key in self.table.data for key in keys)
        if not found:
            self._sim.scheduler.poll(f"store.check({keys})")
        return found

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        self._alive()
        expected, present = _encode(expected_value), self.table.data.get(key)
        if present is None and expected:
            return expected
        if present is not None and present != expected:
            self._sim.scheduler.poll(f"store.compare_set({key!r})")
            return present
        self.table.put(key, _encode(desired_value))
        return self.table.data[key]

    def delete_key(self, key: str) -> bool:
        self._alive()
        return self.table.data.pop(key, None) is not None

    def num_keys(self) -> int:
        self._alive()
        self._sim.scheduler.poll("store.num_keys()")
        return len(self.table.data) + self.table.hidden_keys

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait_for(keys, self._timeout if timeout is None else timeout, "wait", explicit=timeout is not None)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._wait_for(keys, self._timeout, "multi_get")
        return [self.table.data[key] for key in keys]

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: str | bytes) -> None:
        self._alive()
        self.table.put(key, self.table.data.get(key, b"") + _encode(value))

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._alive()
        self.table.queues.setdefault(key, []).append(_encode(value))
        self.table.put(f"{key}\0queue", b"")

    def queue_len(self, key: str) -> int:
        self._alive()
        return len(self.table.queues.get(key, ()))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        self._alive()
        while not self.table.queues.get(key):
            if not block:
                raise dist.QueueEmptyError("queue is empty")
            self.table.data.pop(f"{key}\0queue", None)
            self._wait_for([f"{key}\0queue"], self._timeout, "queue_pop")
        return self.table.queues[key].pop(0)

    def list_keys(self) -> list[str]:
        self._alive()
        return sorted(key for key in self.table.data if not key.endswith("\0queue"))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        if self.add(f"{key}/count", 1) >= world_size:
            self.set(f"{key}/done", "1")
        self._wait_for([f"{key}/done"], self._timeout if timeout is None else timeout, "barrier")

    def has_extended_api(self) -> bool:
        return self._extended

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if not self.table.alive:
            raise dist.DistNetworkError(_CLOSED)

    def _wait_for(self, keys: list[str], timeout: timedelta, op: str, *, explicit: bool = False) -> None:
        deadline = self._sim.scheduler.env.now + timeout.total_seconds()
        self._alive()
        for key in keys:
            while key not in self.table.data:
                left = deadline - self._sim.scheduler.env.now
                if left < 0 or not self._wait_once(keys, key, left, op, explicit):
                    self._sim.note("store_timeout", f"store.{op}({', '.join(map(repr, keys[:4]))}) timed out")
                    self._raise_timeout(keys, timeout)
                self._alive()

    def _wait_once(self, keys: list[str], key: str, left_s: float, op: str, explicit: bool) -> bool:
        self._sim.must_be_here(f"a wait for the store key {key!r}")
        event = self._sim.scheduler.event()
        self.table.waiter(key, event)
        shown = tuple(k.removesuffix("\0queue") for k in keys if k not in self.table.data)
        what = KeyWait(shown, self.table.name, self.table.reasons.get(key, ""))
        named = "" if what.reason else ", ".join(map(repr, shown[:4]))
        text = f"store.{op}({named})"
        return self._sim.wait(event, Wait("store", text, self._sim.sites.capture(2), what, explicit), left_s)

    def _raise_timeout(self, keys: list[str], timeout: timedelta) -> None:
        raise dist.DistStoreError("Wait timeout")


def _encode(value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a store value must be str or bytes, got {type(value).__name__}")


class SimHashStore(StoreBase):
    """Keys of one process only."""

    def clone(self) -> SimHashStore:
        return self


class SimTCPStore(StoreBase):
    """Keys kept by the process that listens on (host, port)."""

    def __init__(
        self,
        sim: Simulation,
        servers: Servers,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        self._host = host_name
        self._use_libuv = use_libuv
        table, self._port = servers.listen(host_name, port, multi_tenant) if is_master else (None, port)
        if table is None:
            table = servers.connect(host_name, port, timeout)
        super().__init__(sim, table, timeout)
        if wait_for_workers and world_size is not None and world_size >= 0:
            self._await_workers(world_size, is_master, timeout)

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def libuvBackend(self) -> bool:
        return self._use_libuv

    def clone(self) -> SimTCPStore:
        return self

    def _await_workers(self, world_size: int, is_master: bool, timeout: timedelta) -> None:
        """The master waits for all, as in TCPStore::waitForWorkers; the others only check in."""
        joined = int(self.table.data.get("\0joined", b"0")) + 1
        self.table.put("\0joined", str(joined).encode())
        if joined >= world_size:
            self.table.put("\0all-joined", b"1")
        self.table.hidden_keys = 1 - sum(key.startswith("\0") for key in self.table.data)
        if not is_master:
            return
        self.table.reasons["\0all-joined"] = (
            f"the {self.table.name} waits for world_size={world_size} workers, and fewer ranks connect to it"
        )
        try:
            self._wait_for(["\0all-joined"], timeout, "wait_for_workers")
        except dist.DistStoreError:
            joined = int(self.table.data["\0joined"])
            seconds = max(1, int(timeout.total_seconds()))
            raise dist.DistStoreError(
                f"Timed out after {seconds} seconds waiting for clients. {joined}/{world_size} clients joined."
            ) from None

    def _raise_timeout(self, keys: list[str], timeout: timedelta) -> None:
        named = ", ".join(f"/{key}" for key in keys)
        raise dist.DistStoreError(f"wait timeout after {_millis(timeout)}ms, keys: {named}")


class SimFileStore(StoreBase):
    """Keys under a path of one node's (or a shared) file system: all ranks that name the path meet there."""

    _extended = False

    def __init__(self, sim: Simulation, servers: Servers, file_name: str, world_size: int = -1) -> None:
        super().__init__(sim, servers.file(file_name), DEFAULT_TIMEOUT)
        self._path = file_name

    @property
    def path(self) -> str:
        return self._path

    def clone(self) -> SimFileStore:
        return self

    def _raise_timeout(self, keys: list[str], timeout: timedelta) -> None:
        raise RuntimeError(f"Timeout waiting for key: {keys[0]} after {_millis(timeout)} ms")

    def _no_queues(self, *_: object) -> Any:
        raise NotImplementedError("queue support is not implemented.")

    queue_push = queue_pop = queue_len = _no_queues


class SimPrefixStore(StoreBase):
    """Another store, each key with a prefix."""

    def __init__(self, prefix: str, store: StoreBase) -> None:
        if not isinstance(store, StoreBase):
            raise TypeError(
                f"PrefixStore over a {type(store).__name__} made outside the simulation: make the store inside the rank"
            )
        super().__init__(store._sim, store.table, store.timeout)
        self._prefix = prefix
        self._below = store

    @property
    def underlying_store(self) -> StoreBase:
        return self._below

    @property
    def _underlying_non_prefix_store(self) -> StoreBase:
        below = self._below
        return below._underlying_non_prefix_store if isinstance(below, SimPrefixStore) else below

    @property
    def timeout(self) -> timedelta:
        return self._below.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._below.set_timeout(timeout)

    def path_of(self, key: str) -> str:
        """`key` as the store at the bottom names it."""
        joined = f"{self._prefix}/{key}"
        return self._below.path_of(joined) if isinstance(self._below, SimPrefixStore) else joined

    def clone(self) -> SimPrefixStore:
        return SimPrefixStore(self._prefix, self._below)

    def has_extended_api(self) -> bool:
        return self._below.has_extended_api()

    def list_keys(self) -> list[str]:
        head = f"{self._prefix}/"
        return [key.removeprefix(head) for key in self._below.list_keys() if key.startswith(head)]


def _prefixed(name: str, many: bool) -> Any:
    def one_key(self: SimPrefixStore, key: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._below, name)(f"{self._prefix}/{key}", *args, **kwargs)

    def many_keys(self: SimPrefixStore, keys: list[str], *args: Any, **kwargs: Any) -> Any:
        return getattr(self._below, name)([f"{self._prefix}/{key}" for key in keys], *args, **kwargs)

    return many_keys if many else one_key


for _name in ("set", "get", "add", "compare_set", "delete_key", "append", "queue_push", "queue_pop", "queue_len"):
    setattr(SimPrefixStore, _name, _prefixed(_name, many=False))
for _name in ("check", "wait", "multi_get", "multi_set"):
    setattr(SimPrefixStore, _name, _prefixed(_name, many=True))
SimPrefixStore.barrier = _prefixed("barrier", many=False)  # type: ignore[method-assign]
SimPrefixStore.num_keys = lambda self: self._below.num_keys()  # type: ignore[method-assign]


class Servers:
    """Who listens where: (host, port) of the simulated network, and paths of the simulated file system."""

    _first_free_port = 40_000

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._tables: dict[tuple[str, int], KeyTable] = {}
        self._owners: dict[tuple[str, int], int] = {}
        self._files: dict[str, KeyTable] = {}
        self._arrivals: dict[tuple[str, int], list[simpy.Event]] = {}

    def resolve(self, host: str) -> str:
        """The node that a host name stands for; loop-back names mean the caller's own node."""
        context = self._sim.here()
        if host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", ""):
            return context.node.host if context is not None else "node0"
        return host

    def listen(self, host: str, port: int, multi_tenant: bool) -> tuple[KeyTable, int]:
        """Start serving. The same process may share its server (`multi_tenant`); anybody else finds the port taken."""
        context = self._sim.must_be_here("a TCPStore server")
        if port == 0:
            port = self._first_free_port + len(self._tables)
        key = (self.resolve(host), port)
        present = self._tables.get(key)
        if present is not None and present.alive:
            if not (multi_tenant and self._owners[key] == context.rank):
                raise dist.DistNetworkError(
                    "The server socket has failed to listen on any local network address. "
                    f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
                )
            return present, port
        table = self._tables[key] = KeyTable(f"TCPStore at {host}:{port}", hidden_keys=1)
        self._owners[key] = context.rank
        for event in self._arrivals.pop(key, ()):
            event.succeed()
        return table, port

    def connect(self, host: str, port: int, timeout: timedelta) -> KeyTable:
        """The table served at (host, port), once somebody serves there."""
        key = (self.resolve(host), port)
        table = self._tables.get(key)
        while table is None or not table.alive:
            event = self._sim.scheduler.event()
            self._arrivals.setdefault(key, []).append(event)
            reason = f"no rank serves a TCPStore at {host}:{port} (is_master=True, rank 0 of a rendezvous)"
            what = KeyWait((f"{host}:{port}",), "network", reason)
            text = f"connect to the TCPStore at {host}:{port}"
            wait = Wait("store", text, self._sim.sites.capture(2), what)
            if not self._sim.wait(event, wait, timeout.total_seconds()):
                raise dist.DistNetworkError(
                    f"The client socket has timed out after {_millis(timeout)}ms "
                    f"while trying to connect to ({host}, {port})."
                )
            table = self._tables.get(key)
        return table

    def file(self, path: str) -> KeyTable:
        """The table behind `path`."""
        return self._files.setdefault(path, KeyTable(f"FileStore at {path}", hidden_keys=1))

    def provide(self, host: str, port: int) -> KeyTable:
        """A server that no rank owns: a launcher's agent store."""
        key = (self.resolve(host), port)
        return self._tables.setdefault(key, KeyTable(f"TCPStore at {host}:{port}", hidden_keys=1))

    def rank_ended(self, rank: int) -> None:
        """A process is gone, and with it the servers that it kept."""
        for key, owner in self._owners.items():
            if owner == rank and self._tables[key].alive:
                self._tables[key].die()


def store_classes(sim: Simulation, servers: Servers) -> dict[str, type[StoreBase]]:
    """The classes to put in place of torch's, bound to one simulation (by torch's names)."""

    class TCPStore(SimTCPStore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            SimTCPStore.__init__(self, sim, servers, *args, **kwargs)

    class FileStore(SimFileStore):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            SimFileStore.__init__(self, sim, servers, *args, **kwargs)

    class HashStore(SimHashStore):
        def __init__(self) -> None:
            SimHashStore.__init__(self, sim, KeyTable("HashStore"), DEFAULT_TIMEOUT)

    class PrefixStore(SimPrefixStore):
        """As SimPrefixStore; a class of its own so that isinstance works on the patched name."""

    return {"TCPStore": TCPStore, "FileStore": FileStore, "HashStore": HashStore, "PrefixStore": PrefixStore}
