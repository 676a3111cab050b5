"""socket, platform, os.uname: the host that a rank runs on, and the addresses of the others.

A datagram socket that is connected somewhere names the address of the rank's node as its own: programs learn it so.
Not modelled: sockets otherwise (they are the real machine's, where the simulated hosts cannot be reached), interfaces,
MAC addresses (`uuid.getnode`), /etc/hostname.
"""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

from simulator.torch_world.context import RankContext
from simulator.torch_world.patches import Patches
from simulator.torch_world.per_rank import per_rank
from simulator.torch_world.simulation import Simulation


def install_hosts(patches: Patches, sim: Simulation) -> None:
    """Replace what tells host names, and what turns those of the simulated nodes into addresses."""
    platform.uname()  # fills the module's cache with what holds outside the ranks

    def address_of(host: Any) -> Any:
        return next((node.address for node in sim.nodes if node.host == host), host)

    def full_name(context: RankContext, real: Any, name: str = "") -> str:
        return next((node.host for node in sim.nodes if node.address == name), name) or context.node.host

    def lookup(context: RankContext, real: Any, host: Any, *args: Any, **kwargs: Any) -> Any:
        return real(address_of(host), *args, **kwargs)

    def by_name(context: RankContext, real: Any, host: Any) -> Any:
        address = address_of(host)
        return (host, [], [address]) if address != host else real(host)

    def uname(context: RankContext, real: Any) -> os.uname_result:
        system, _, *rest = real()
        return os.uname_result((system, context.node.host, *rest))

    real_name = socket.socket.getsockname

    def getsockname(self: socket.socket) -> Any:
        context, name = sim.here(), real_name(self)
        internet = context is not None and (self.family, self.type) == (socket.AF_INET, socket.SOCK_DGRAM)
        if context is None or not internet or name[0].startswith(("127.", "0.")):
            return name
        return (context.node.address, *name[1:])

    patches.set(socket.socket, "getsockname", getsockname)
    per_rank(patches, sim, socket, "gethostname", lambda context, real: context.node.host)
    per_rank(patches, sim, socket, "getfqdn", full_name)
    per_rank(patches, sim, socket, "gethostbyname", lookup)
    per_rank(patches, sim, socket, "gethostbyname_ex", by_name)
    per_rank(patches, sim, socket, "getaddrinfo", lookup)
    per_rank(patches, sim, platform, "node", lambda context, real: context.node.host)
    per_rank(patches, sim, platform, "uname", lambda context, real: real()._replace(node=context.node.host))
    per_rank(patches, sim, os, "uname", uname)
