"""Who keeps which store: servers at (host, port) of the simulated network, and files of the shared file system.

Not modelled: firewalls, interfaces, IPv6, ports that the real machine has taken. A host name that is no simulated node
(`my-master`, an address of your site) is taken to be where somebody listens under that name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import simpy
import torch.distributed as dist

from simulator.engine.scheduler import Wait
from simulator.records import KeyWait
from simulator.torch_world.key_table import KeyTable
from simulator.torch_world.simulation import Simulation

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")
FIRST_FREE_PORT = 40_000
_IN_USE = (
    "The server socket has failed to listen on any local network address. "
    "port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)

Place = tuple[str, int]


def millis(timeout: timedelta) -> int:
    """As torch counts time-outs: whole milliseconds."""
    return max(0, timeout // timedelta(milliseconds=1))


@dataclass(slots=True, eq=False)
class Server:
    """A listening TCPStore.

    Attributes:
        owner: rank of the process that serves; -1 for a launcher's.
        shared: other stores of that process may share it (`multi_tenant`).
        holders: master objects that keep it open.
    """

    table: KeyTable
    owner: int
    shared: bool
    holders: int = 1


class Servers:
    """All servers and files of one simulation."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._forget()
        sim.at_begin.append(self._forget)

    def _forget(self) -> None:
        self._servers: dict[Place, Server] = {}
        self._files: dict[str, KeyTable] = {}
        self._arrivals: dict[Place, list[simpy.Event]] = {}
        self._ports_given = 0

    # -- the network -----------------------------------------------------------------------------------------------

    def _place(self, host: str, port: int) -> Place:
        """A loop-back name means the caller's own node, a node's address its name."""
        if host in LOOPBACK:
            context = self._sim.here()
            return (context.node.host if context is not None else self._sim.nodes[0].host), port
        return next((node.host for node in self._sim.nodes if node.address == host), host), port

    def listen(self, host: str, port: int, shared: bool) -> tuple[Server, int]:
        """Start serving on the caller's node. The same process may share its server; anybody else finds the port taken.

        Raises:
            DistNetworkError: EADDRINUSE.
        """
        context = self._sim.must_be_here("a TCPStore server")
        if port == 0:
            port = FIRST_FREE_PORT + self._ports_given
            self._ports_given += 1
        place = self._place(host, port)
        if any(place[0] == node.host for node in self._sim.nodes):
            place = (context.node.host, port)
        present = self._servers.get(place)
        if present is not None and present.table.alive:
            if not (shared and present.shared and present.owner == context.rank):
                raise dist.DistNetworkError(_IN_USE.format(port=port))
            present.holders += 1
            return present, port
        server = self._servers[place] = Server(self._table(host, port, place), context.rank, shared)
        for event in self._arrivals.pop(place, ()):
            event.succeed(server)
        return server, port

    def connect(self, host: str, port: int, timeout: timedelta) -> KeyTable:
        """The table served at (host, port), once somebody serves there.

        Raises:
            DistNetworkError: nobody did in time.
        """
        place = self._place(host, port)
        if self._sim.faults is not None:
            node = next((node.number for node in self._sim.nodes if node.host == place[0]), None)
            name, limit_s = f"TCPStore at {host}:{port}", timeout.total_seconds()
            if not self._sim.faults.requests.connect(name, node, limit_s):
                raise _unreachable(host, port, timeout)
        server = self._servers.get(place)
        if server is None or not server.table.alive:
            server = self._wait_server(place, host, port, timeout)
        return server.table

    def _wait_server(self, place: Place, host: str, port: int, timeout: timedelta) -> Server:
        event = self._sim.scheduler.event()
        waiting = self._arrivals.setdefault(place, [])
        waiting.append(event)
        reason = f"no rank serves a TCPStore at {host}:{port} (is_master=True; rank 0 of a rendezvous)"
        what = KeyWait((f"{host}:{port}",), "network", reason)
        wait = Wait("store", f"connect to the TCPStore at {host}:{port}", self._sim.sites.capture(2), what)
        if not self._sim.wait(event, wait, timeout.total_seconds()):
            waiting.remove(event)
            raise _unreachable(host, port, timeout)
        return cast(Server, event.value)

    def provide(self, host: str, port: int) -> KeyTable:
        """A server that no rank owns: a launcher's agent store."""
        place = self._place(host, port)
        return self._servers.setdefault(place, Server(self._table(host, port, place), -1, False)).table

    def _table(self, host: str, port: int, place: Place) -> KeyTable:
        node = next((node.number for node in self._sim.nodes if node.host == place[0]), None)
        return KeyTable(f"TCPStore at {host}:{port}", is_served=True, node=node)

    def end_all(self) -> int:
        """All servers are gone; how many."""
        alive = [server for server in self._servers.values() if server.table.alive]
        for server in alive:
            server.table.die()
        return len(alive)

    def release(self, server: Server) -> None:
        """A master object is gone; the last one takes the server with it."""
        server.holders -= 1
        if server.holders == 0:
            server.table.die()

    def rank_ended(self, rank: int) -> None:
        """A process is gone, and with it the servers that it kept."""
        for server in self._servers.values():
            if server.owner == rank and server.table.alive:
                server.table.die()

    # -- the file system -------------------------------------------------------------------------------------------

    def file(self, place: str) -> KeyTable:
        """The table behind an absolute path; a new one if the file is not there (any more).

        Raises:
            DistStoreError: the path is a directory, or lies in none.
        """
        new = not os.path.exists(place)
        try:
            with open(place, "ab"):
                pass
        except OSError as error:
            raise dist.DistStoreError(error.strerror) from None
        if new or place not in self._files:
            self._files[place] = KeyTable(f"FileStore at {place}")
        return self._files[place]

    def leave_file(self, place: str, world_size: int) -> None:
        """A FileStore object is gone; the last of `world_size` removes the file."""
        table = self._files.get(place)
        if table is not None and table.count("cleanup/") == world_size:
            del self._files[place]
            if os.path.exists(place):
                os.remove(place)


def _unreachable(host: str, port: int, timeout: timedelta) -> Exception:
    return dist.DistNetworkError(
        f"The client socket has timed out after {millis(timeout)}ms while trying to connect to ({host}, {port})."
    )
