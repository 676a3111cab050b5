"""ZeroMQ between ranks: `zmq.Context().socket(...)` of a rank is simulated, so that a wait in it is seen.

    queue = zmq.Context().socket(zmq.XPUB)      # as the shared-memory broadcasters of SGLang and vLLM do
    port = queue.bind_to_random_port("tcp://127.0.0.1")

PUB, XPUB, SUB, XSUB, PUSH, PULL and PAIR pass messages at once and in order; a wait takes virtual time, and is a
deadlock if nobody sends. `tcp://` and `ipc://` addresses belong to nodes, `inproc://` ones to ranks. Not modelled: the
other kinds of socket (they are real ones, and block for real), high-water marks, `zmq.Poller`, `zmq.asyncio`, monitors,
and the time that a subscription takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from simulator.engine.scheduler import Wait
from simulator.torch_world.patches import Patches
from simulator.torch_world.simulation import Simulation
from simulator.triton_world.import_watch import ImportWatch

FIRST_PORT = 49152
_FORMS = ("multipart", "string", "unicode", "pyobj", "json", "serialized")
_SUGAR = (*(f"{way}_{form}" for way in ("send", "recv") for form in _FORMS), "_deserialize")
KINDS = ("PUB", "XPUB", "SUB", "XSUB", "PUSH", "PULL", "PAIR")
_Address = tuple[object, ...]


class ZmqHooks:
    """What is patched in pyzmq while a simulation is installed. Use: `start`, and `stop` in the end."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._patches = Patches()
        self._watch = ImportWatch(("zmq",), self._imported)

    def start(self) -> None:
        """Patch pyzmq now, if it is there, or when it gets imported."""
        self._watch.start()

    def stop(self) -> None:
        """Put everything back."""
        self._watch.stop()
        self._patches.undo()

    def _imported(self, zmq: Any) -> None:
        sim, contexts, exchange = self._sim, zmq.sugar.context.Context, Exchange(self._sim)
        sugar, real = vars(zmq.sugar.socket.Socket), contexts.socket
        kind = type("Socket", (SimSocket,), {name: sugar[name] for name in _SUGAR if name in sugar} | {"zmq": zmq})

        def socket(context: Any, socket_type: int, *args: Any, **kwargs: Any) -> Any:
            name = zmq.SocketType(socket_type).name
            if sim.here() is None or type(context) is not contexts or name not in KINDS:
                return real(context, socket_type, *args, **kwargs)
            return kind(exchange, name)

        self._patches.set(contexts, "socket", socket)


class Exchange:
    """Which sockets are bound where, and who wants to connect there."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._forget()
        sim.at_begin.append(self._forget)

    def _forget(self) -> None:
        self.bound: dict[_Address, SimSocket] = {}
        self.early: dict[_Address, list[SimSocket]] = {}
        self._ports = 0

    def next_port(self) -> int:
        """One that no socket has been given."""
        self._ports += 1
        return FIRST_PORT + self._ports - 1

    def address(self, text: str) -> _Address:
        """What `text` means to the calling rank."""
        context = self.sim.must_be_here("a ZeroMQ socket")
        transport, _, rest = text.partition("://")
        if transport == "inproc":
            return (transport, context.rank, rest)
        if transport != "tcp":
            return (transport, context.node.number, rest)
        host, _, port = rest.rpartition(":")
        nodes = {name: node.number for node in self.sim.nodes for name in (node.host, node.address)}
        return (transport, nodes.get(host.strip("[]"), context.node.number), port)


class SimSocket:
    """One end, with the names of `zmq.Socket`. Its peers get what it sends in their `_inbox`, at once."""

    zmq: Any

    def __init__(self, exchange: Exchange, kind: str) -> None:
        self._exchange = exchange
        self._sim = exchange.sim
        self._kind = kind
        self._inbox: deque[list[bytes]] = deque()
        self._parts: list[bytes] = []
        self._peers: list[SimSocket] = []
        self._topics: list[bytes] = []
        self._waiters: list[Any] = []
        self._options: dict[int, Any] = {}
        self._where = ""
        self.closed = False

    # -- who is at the other end -------------------------------------------------------------------------------------

    def bind(self, address: str) -> None:
        """Raises: zmq.ZMQError (EADDRINUSE) where a socket is bound already."""
        if address.endswith((":*", ":0")):
            address = f"{address.rpartition(':')[0]}:{self._exchange.next_port()}"
        key, self._where = self._exchange.address(address), address
        if key in self._exchange.bound:
            raise self.zmq.ZMQError(self.zmq.EADDRINUSE)
        self._exchange.bound[key] = self
        for peer in self._exchange.early.pop(key, []):
            self._meet(peer)

    def bind_to_random_port(self, address: str, *_range: Any, **_options: Any) -> int:
        port = self._exchange.next_port()
        self.bind(f"{address}:{port}")
        return port

    def connect(self, address: str) -> None:
        key, self._where = self._exchange.address(address), address
        other = self._exchange.bound.get(key)
        if other is None:
            self._exchange.early.setdefault(key, []).append(self)
        else:
            other._meet(self)

    def _meet(self, other: SimSocket) -> None:
        for one, two in ((self, other), (other, self)):
            one._peers.append(two)
            for topic in one._topics:
                two._subscribed(b"\x01" + topic)
            one._wake()

    def _subscribed(self, message: bytes) -> None:
        if self._kind == "XPUB":
            self._deliver([message])

    # -- options -----------------------------------------------------------------------------------------------------

    def setsockopt(self, option: int, value: Any) -> None:
        value = value.encode() if isinstance(value, str) else value
        if option in (self.zmq.SUBSCRIBE, self.zmq.UNSUBSCRIBE):
            self._subscribe(value, begins=option == self.zmq.SUBSCRIBE)
        else:
            self._options[option] = value

    def _subscribe(self, topic: bytes, *, begins: bool) -> None:
        if begins:
            self._topics.append(topic)
        elif topic in self._topics:
            self._topics.remove(topic)
        for peer in self._peers:
            peer._subscribed((b"\x01" if begins else b"\x00") + topic)

    set = setsockopt
    setsockopt_string = setsockopt
    setsockopt_unicode = setsockopt

    def subscribe(self, topic: Any) -> None:
        self.setsockopt(self.zmq.SUBSCRIBE, topic)

    def getsockopt(self, option: int) -> Any:
        if option == self.zmq.LAST_ENDPOINT:
            return self._where.encode()
        return self._options.get(option, 0)

    get = getsockopt

    @property
    def last_endpoint(self) -> bytes:
        return self._where.encode()

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False, **_later: Any) -> None:
        """A message of several parts goes once its last part is there."""
        self._parts.append(bytes(data))
        if not flags & self.zmq.SNDMORE:
            parts, self._parts = self._parts, []
            self._send(parts, flags)

    def _send(self, parts: list[bytes], flags: int) -> None:
        self._sim.announce("send", ("socket", self._where))
        if self._kind in ("PUB", "XPUB"):
            for peer in self._peers:
                if any(parts[0].startswith(topic) for topic in peer._topics):
                    peer._deliver(parts)
            return
        self._await(lambda: bool(self._peers), flags, self.zmq.SNDTIMEO, "send")
        peer = self._peers.pop(0)
        self._peers.append(peer)
        peer._deliver(parts)

    def _deliver(self, parts: list[bytes]) -> None:
        self._inbox.append(list(parts))
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for event in waiters:
            event.succeed()

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        """Raises: zmq.Again without a message, if asked not to wait, or not so long."""
        self._sim.announce("receive", ("socket", self._where))
        self._await(lambda: bool(self._inbox), flags, self.zmq.RCVTIMEO, "recv")
        part = self._inbox[0].pop(0)
        self._options[self.zmq.RCVMORE] = int(bool(self._inbox[0]))
        if not self._inbox[0]:
            self._inbox.popleft()
        return part if copy else self.zmq.Frame(part)

    def poll(self, timeout: float | None = None, flags: int = 1) -> int:
        """Milliseconds. What of `flags` can be done without waiting."""
        ready: Callable[[], bool] = lambda: bool(self._inbox) or flags & self.zmq.POLLIN == 0  # noqa: E731
        self._wait(ready, None if timeout is None or timeout < 0 else timeout / 1e3, "poll")
        return flags if ready() else flags & ~self.zmq.POLLIN

    def _await(self, ready: Callable[[], bool], flags: int, option: int, what: str) -> None:
        if ready():
            return
        limit = self._options.get(option, -1)
        limit_s = 0.0 if flags & self.zmq.NOBLOCK else None if limit < 0 else limit / 1e3
        if not self._wait(ready, limit_s, what):
            raise self.zmq.Again

    def _wait(self, ready: Callable[[], bool], limit_s: float | None, what: str) -> bool:
        scheduler = self._sim.scheduler
        begin = scheduler.env.now
        if limit_s == 0 and not ready():
            scheduler.poll("a ZeroMQ socket")
        while not ready():
            left = None if limit_s is None else limit_s - (scheduler.env.now - begin)
            if left is not None and left <= 0:
                return False
            event = scheduler.event()
            self._waiters.append(event)
            text = f"{what} on a ZeroMQ {self._kind} socket at {self._where}"
            wait = Wait("recv", text, self._sim.sites.capture(3), None, left is not None)
            if not scheduler.wait(event, wait, left) and event in self._waiters:
                self._waiters.remove(event)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, linger: int | None = None) -> None:
        self.closed = True
        for peer in self._peers:
            if self in peer._peers:
                peer._peers.remove(self)
        for key in [key for key, socket in self._exchange.bound.items() if socket is self]:
            del self._exchange.bound[key]

    def __enter__(self) -> SimSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
