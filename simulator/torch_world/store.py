"""TCPStore, FileStore, HashStore and PrefixStore of a simulation, with the real blocking, time-outs and key semantics.

Not modelled: network latency, the wire protocol, a file that an earlier run left behind (`FileStore` keeps its keys in
memory and its file empty). Calls that are undefined in reality (`multi_set` with too few values) raise here.

Measured on torch 2.11 to 2.14 (tests/unit/test_store.py runs the same calls on the real classes): TCPStore counts a
hidden key once somebody waits for workers, FileStore shows one; FileStore and the wait for workers time out at the next
whole second; `compare_set` on a missing key returns the expected value; HashStore and FileStore take a time-out of 0 as
none; a TCPStore server drops the client that adds to something that is no number; after a server is gone the kernel
takes one more send.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simulator.torch_world.key_table import KeyTable
from simulator.torch_world.prefix_store import SimPrefixStore
from simulator.torch_world.servers import Server, Servers, millis
from simulator.torch_world.simulation import Simulation
from simulator.torch_world.store_base import (
    CLOSED,
    DEFAULT_TIMEOUT,
    StoreBase,
    duration_of,
    text_of,
)

__all__ = ["KeyTable", "Servers", "StoreBase", "store_classes"]


class SimHashStore(StoreBase):
    """Keys of one process only."""

    def _token(self, key: str) -> Hashable:
        context = self._sim.here()
        return ("key", "HashStore", None if context is None else context.rank, key)

    def clone(self) -> SimHashStore:
        return self


class SimTCPStore(StoreBase):
    """A connection to the keys of the process that listens on (host, port)."""

    _endless_at_zero = False

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
        _check_address(host_name, port, world_size)
        timeout = duration_of("set_timeout", timeout)
        self._servers = servers
        self._host, self._port, self._libuv = host_name, port, use_libuv
        self._server: Server | None = None
        self._dropped = False
        self._sends_after_end = 0
        if is_master:
            self._server, self._port = servers.listen(host_name, port, multi_tenant)
        super().__init__(sim, servers.connect(host_name, self._port, timeout), timeout)
        if wait_for_workers and world_size is not None and world_size >= 0:
            self._await_workers(world_size, is_master, timeout)

    def __del__(self) -> None:
        server, self._server = getattr(self, "_server", None), None
        if server is not None:
            self._servers.release(server)

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def libuvBackend(self) -> bool:
        return self._libuv

    def clone(self) -> SimTCPStore:
        return SimTCPStore(
            self._sim, self._servers, self._host, self._port, timeout=self._timeout, use_libuv=self._libuv
        )

    def multi_set(self, keys: list[str], values: list[str], /) -> None:
        if len(keys) != len(values):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        super().multi_set(keys, values)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """The server counts, and releases everybody once `world_size` have come."""
        key, given = text_of("barrier", key), self._timeout if timeout is None else duration_of("barrier", timeout)
        self._announce("barrier", key, writes=True)
        self._send()
        released = self.table.barriers
        arrived_at = released.get(key, 0)
        if self._increment(key, 1) >= world_size:
            released[key] = arrived_at + 1
            self.table.wake(key)
            return
        self._wait_for(
            [key], given, "barrier", explicit=timeout is not None, present=lambda key: released.get(key, 0) > arrived_at
        )

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        self._needs_libuv()
        super().queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        self._needs_libuv()
        return super().queue_pop(key, block)

    def queue_len(self, key: str, /) -> int:
        self._needs_libuv()
        return super().queue_len(key)

    def _needs_libuv(self) -> None:
        if not self._libuv:
            raise NotImplementedError("queues not implemented on legacy TCPStore backend")

    def _await_workers(self, world_size: int, is_master: bool, timeout: timedelta) -> None:
        """The master waits for all, as in TCPStore::waitForWorkers; the others only check in."""
        hidden = self.table.hidden
        self.table.count("init/")
        if is_master:
            self._wait_for(
                ["init/"], timeout, f"wait_for_workers, world_size={world_size}",
                present=lambda key: hidden[key] >= world_size,
            )  # fmt: skip

    def _patience_s(self, timeout: timedelta, op: str) -> float:
        seconds = timeout.total_seconds()
        return seconds // 1 + 1 if op.startswith("wait_for_workers") else seconds

    def _timed_out(self, op: str, keys: Sequence[str], missing: Sequence[str], timeout: timedelta) -> Exception:
        if op.startswith("wait_for_workers"):
            world_size, joined = op.rpartition("=")[2], self.table.hidden["init/"]
            seconds = int(self._patience_s(timeout, op))
            return dist.DistStoreError(
                f"Timed out after {seconds} seconds waiting for clients. {joined}/{world_size} clients joined."
            )
        if op == "barrier":
            return dist.DistStoreError(f"barrier timeout after {millis(timeout)}ms, key: {keys[0]}")
        return dist.DistStoreError(f"wait timeout after {millis(timeout)}ms, keys: {', '.join(f'/{k}' for k in keys)}")

    def _send(self, answered: bool = True) -> bool:
        if self.table.alive and not self._dropped:
            return True
        self._sends_after_end += 1
        if self._sends_after_end > 1:
            raise dist.DistNetworkError("Broken pipe")
        if answered:
            raise dist.DistNetworkError(CLOSED)
        return False

    def _no_number(self) -> Exception:
        self._dropped = True
        return dist.DistNetworkError(CLOSED)


def _check_address(host: Any, port: Any, world_size: Any) -> None:
    fits = isinstance(host, str | bytes) and isinstance(port, int) and 0 <= port < 1 << 16
    if not fits or not isinstance(world_size, int | None):
        raise TypeError(
            f"__init__(): incompatible constructor arguments: TCPStore(host_name={host!r}, port={port!r}, "
            f"world_size={world_size!r}); give a host name, a port from 0 to 65535, and a number of ranks or None"
        )
    if world_size == 0:
        raise ValueError("TCPStore world size cannot be 0")


class SimFileStore(StoreBase):
    """Keys under a path of the file system that all nodes share: all ranks that name the path meet there."""

    _extended = False

    def __init__(self, sim: Simulation, servers: Servers, file_name: str, world_size: int = -1) -> None:
        if not isinstance(file_name, str | bytes) or not isinstance(world_size, int):
            raise TypeError(
                f"__init__(): incompatible constructor arguments: FileStore(file_name={file_name!r}, "
                f"world_size={world_size!r}); give a path and a number of ranks"
            )
        self._path, self._world_size = os.fsdecode(file_name), world_size
        self._place = os.path.abspath(self._path)
        self._servers = servers
        super().__init__(sim, servers.file(self._place), DEFAULT_TIMEOUT)
        self.table.count("refcount/")

    def __del__(self) -> None:
        if hasattr(self, "table"):
            self._servers.leave_file(self._place, self._world_size)

    @property
    def path(self) -> str:
        return self._path

    def clone(self) -> SimFileStore:
        return SimFileStore(self._sim, self._servers, self._path, self._world_size)

    def delete_key(self, key: str, /) -> bool:
        super().delete_key(key)
        return True

    def list_keys(self) -> list[str]:
        """torch cuts one character off each key of the file, those of its own without a leading slash included."""
        return [*super().list_keys(), *(key[1:] for key in self.table.hidden)]

    def _patience_s(self, timeout: timedelta, op: str) -> float:
        return timeout.total_seconds() // 1 + 1

    def _timed_out(self, op: str, keys: Sequence[str], missing: Sequence[str], timeout: timedelta) -> Exception:
        if op in ("get", "multi_get"):
            return RuntimeError(f"Timeout waiting for key: {missing[0]} after {millis(timeout)} ms")
        return RuntimeError("Wait timeout")

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        raise NotImplementedError("queue support is not implemented.")

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        raise NotImplementedError("queue support is not implemented.")

    def queue_len(self, key: str, /) -> int:
        raise NotImplementedError("queue support is not implemented.")


if not hasattr(_c.Store, "barrier"):  # before torch 2.13
    for _class in (StoreBase, SimTCPStore):
        delattr(_class, "barrier")


def store_classes(sim: Simulation, servers: Servers) -> dict[str, type[StoreBase]]:
    """The classes to put in place of torch's, by torch's names. Outside the ranks they still make real stores."""

    def or_real(real: type) -> Any:
        def make(cls: type, *args: Any, **kwargs: Any) -> Any:
            return _c.Store.__new__(cls) if sim.here() is not None else real(*args, **kwargs)

        return make

    class TCPStore(SimTCPStore):
        __new__ = or_real(_c.TCPStore)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            SimTCPStore.__init__(self, sim, servers, *args, **kwargs)

    class FileStore(SimFileStore):
        __new__ = or_real(_c.FileStore)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            SimFileStore.__init__(self, sim, servers, *args, **kwargs)

    class HashStore(SimHashStore):
        __new__ = or_real(_c.HashStore)

        def __init__(self) -> None:
            SimHashStore.__init__(self, sim, KeyTable("HashStore"), DEFAULT_TIMEOUT)

    class PrefixStore(SimPrefixStore):
        __new__ = or_real(_c.PrefixStore)

    return {"TCPStore": TCPStore, "FileStore": FileStore, "HashStore": HashStore, "PrefixStore": PrefixStore}
