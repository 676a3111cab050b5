"""ZeroMQ sockets of ranks: messages, topics, waits that are seen. pyzmq itself is real, its sockets are simulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from simulator import Verdict, simulate

zmq: Any = pytest.importorskip("zmq")


def _socket(kind: int) -> Any:
    """In a context of its own, which is closed at once: sockets of ranks do not hold on to it."""
    with zmq.Context() as context:
        return context.socket(kind)


def _told_port(rank: int, socket: Any) -> int:
    """Rank 0 binds, and tells the others where."""
    dist.init_process_group("gloo")
    told = [socket.bind_to_random_port("tcp://127.0.0.1") if rank == 0 else None]
    dist.broadcast_object_list(told, 0)
    port: int = told[0]
    return port


def test_a_publisher_reaches_those_who_asked_for_the_topic() -> None:
    """As the frameworks' broadcasters: XPUB hears of each subscription, then sends one message to all."""

    def body(rank: int) -> Any:
        socket = _socket(zmq.XPUB if rank == 0 else zmq.SUB)
        port = _told_port(rank, socket)
        if rank == 0:
            heard = [socket.recv() for _ in range(2)]
            socket.send_multipart([b"a", b"news"])
            return heard
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.setsockopt_string(zmq.SUBSCRIBE, "a" if rank == 1 else "b")
        return socket.recv_multipart() if rank == 1 else socket.poll(100)

    results = simulate(body, 3).raise_if_bad().results
    assert sorted(results[0]) == [b"\x01a", b"\x01b"]
    assert (results[1], results[2]) == ([b"a", b"news"], 0)


def test_push_and_pull_pass_objects_in_order() -> None:
    """Each message once, in the order in which it was sent."""

    def body(rank: int) -> Any:
        socket = _socket(zmq.PULL if rank == 0 else zmq.PUSH)
        port = _told_port(rank, socket)
        if rank == 0:
            return [socket.recv_pyobj() for _ in range(3)]
        socket.connect(f"tcp://127.0.0.1:{port}")
        for number in range(3):
            socket.send_pyobj({"number": number})
        return None

    assert simulate(body, 2).raise_if_bad().results[0] == [{"number": number} for number in range(3)]


def test_a_message_that_nobody_sends_is_a_deadlock() -> None:
    """The wait is seen at once, with its line."""

    def body(rank: int) -> None:
        socket = _socket(zmq.PULL)
        socket.bind("ipc://queue")
        socket.recv()

    outcome = simulate(body, 1)
    assert outcome.verdict is Verdict.DEADLOCK
    assert any(frame.file == __file__ for side in outcome.findings[0].sides for frame in side.stack)


def test_an_address_that_is_taken() -> None:
    """As from the real socket."""

    def body(rank: int) -> int:
        first, second = _socket(zmq.PULL), _socket(zmq.PULL)
        first.bind("ipc://queue")
        with pytest.raises(zmq.ZMQError) as caught:
            second.bind("ipc://queue")
        return int(caught.value.errno)

    assert simulate(body, 1).raise_if_bad().results[0] == zmq.EADDRINUSE


def test_outside_the_ranks_sockets_are_real() -> None:
    """Before and after a run the process has pyzmq's own."""
    before = zmq.Context.socket
    simulate(lambda rank: None, 1).raise_if_bad()
    assert zmq.Context.socket is before
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        assert isinstance(socket, zmq.Socket)
