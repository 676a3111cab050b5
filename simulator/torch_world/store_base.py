"""What the four stores of a simulation share: the calls of torch.distributed.Store on a table of keys, and waiting."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simulator.engine.scheduler import Wait
from simulator.faults.requests import UNANSWERED
from simulator.records import KeyWait
from simulator.torch_world.host_order import hear, tell
from simulator.torch_world.key_table import KeyTable
from simulator.torch_world.polling import looked
from simulator.torch_world.servers import millis
from simulator.torch_world.simulation import Simulation

DEFAULT_TIMEOUT = timedelta(seconds=300)
INFINITY = float("inf")
CLOSED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
_NUMBER = re.compile(rb"\s*[+-]?\d+")


def refuse(op: str) -> TypeError:
    signature = (getattr(_c.Store, op).__doc__ or "").strip().partition("\n")[0].removeprefix(op)
    return TypeError(
        f"{op}(): incompatible function arguments. The following argument types are supported:\n    1. {signature}"
    )


def text_of(op: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return bytes_of(op, value).decode("utf-8", "surrogateescape")


def bytes_of(op: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes | bytearray):
        raise refuse(op)
    return bytes(value)


def texts_of(op: str, values: Any) -> list[str]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise refuse(op)
    return [text_of(op, value) for value in values]


def duration_of(op: str, value: Any) -> timedelta:
    """torch takes a timedelta, or a float of seconds, and keeps whole milliseconds."""
    if isinstance(value, float):
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta):
        raise refuse(op)
    return timedelta(milliseconds=millis(value))


def _shown(keys: Sequence[str]) -> str:
    return ", ".join(map(repr, keys[:4]))


class StoreBase(_c.Store):
    """What the stores share. Subclasses say when and how a time-out is raised."""

    _extended = True
    _endless_at_zero = True
    _late_s = 0.0

    def __init__(self, sim: Simulation, table: KeyTable, timeout: timedelta) -> None:
        super().__init__()
        self._sim = sim
        self.table = table
        self._timeout = timeout

    # -- the protocol of torch.distributed.Store -------------------------------------------------------------------

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta, /) -> None:
        self._timeout = duration_of("set_timeout", timeout)

    def set(self, key: str, value: str | bytes, /) -> None:
        self._set("set", text_of("set", key), bytes_of("set", value))

    def get(self, key: str, /) -> bytes:
        key = text_of("get", key)
        self._wait_for([key], self._timeout, "get")
        self._looked(f"store.get({key!r})", found=True)
        return self.table.data.get(key, b"")

    def add(self, key: str, amount: int, /) -> int:
        key = text_of("add", key)
        if not isinstance(amount, int) or not -(2**63) <= amount < 2**63:
            raise refuse("add")
        self._announce("add", key, writes=amount != 0)
        self._send()
        value = self._increment(key, amount)
        self._looked(f"store.add({key!r}, {amount})", found=amount != 0)
        return value

    def check(self, keys: list[str], /) -> bool:
        keys = texts_of("check", keys)
        self._announce("check", *keys)
        self._send()
        found = all(map(self.table.has, keys))
        if found:
            self._heard_of(keys)
        self._looked(f"store.check({keys})", found)
        return found

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes, /) -> bytes:
        key, expected = text_of("compare_set", key), bytes_of("compare_set", expected_value)
        desired = bytes_of("compare_set", desired_value)
        self._announce("compare_set", key, writes=True)
        self._send()
        present = self.table.data.get(key)
        hear(self._sim, self._token(key))
        if present == expected or (present is None and not expected):
            self._write(key, desired)
            return desired
        self._looked(f"store.compare_set({key!r})", found=False)
        return expected if present is None else present

    def delete_key(self, key: str, /) -> bool:
        key = text_of("delete_key", key)
        self._announce("delete_key", key, writes=True)
        self._send()
        return self.table.data.pop(key, None) is not None

    def num_keys(self) -> int:
        self._request("num_keys", ())
        self._sim.announce("num_keys", ("keys", self.table.name), writes=False)
        self._send()
        count = len(self.table.data) + len(self.table.hidden)
        self._looked("store.num_keys()", found=False)
        return count

    def wait(self, keys: list[str], timeout: timedelta | None = None, /) -> None:
        given = self._timeout if timeout is None else duration_of("wait", timeout)
        self._wait_for(texts_of("wait", keys), given, "wait", explicit=timeout is not None)

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        keys = texts_of("multi_get", keys)
        self._wait_for(keys, self._timeout, "multi_get")
        return [self.table.data.get(key, b"") for key in keys]

    def multi_set(self, keys: list[str], values: list[str], /) -> None:
        keys = texts_of("multi_set", keys)
        given = [bytes_of("multi_set", value) for value in values]
        if len(given) < len(keys):
            raise dist.DistStoreError("multiSet keys and values vectors must be of same size")
        for key, value in zip(keys, given, strict=False):
            self._set("multi_set", key, value)

    def append(self, key: str, value: str | bytes, /) -> None:
        key = text_of("append", key)
        self._announce("append", key, writes=True)
        self._put("append", key, self.table.data.get(key, b"") + bytes_of("append", value))

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        key, given = text_of("queue_push", key), bytes_of("queue_push", value)
        self._announce("queue_push", key, writes=True)
        if self._send(answered=False):
            tell(self._sim, self._token(key))
            self.table.push(key, given)
            self._sim.scheduler.progress()

    def queue_len(self, key: str, /) -> int:
        key = text_of("queue_len", key)
        self._announce("queue_len", key)
        self._send()
        length = len(self.table.queues.get(key, ()))
        self._looked(f"store.queue_len({key!r})", found=length > 0)
        return length

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        key = text_of("queue_pop", key)
        queues = self.table.queues
        if block:
            self._wait_for([key], self._timeout, "queue_pop", present=lambda key: bool(queues.get(key)))
        else:
            self._announce("queue_pop", key, writes=True)
            self._send()
        if not queues.get(key):
            self._looked(f"store.queue_pop({key!r}, False)", found=False)
            raise dist.QueueEmptyError("queue is empty")
        self._heard_of([key])
        self._sim.scheduler.progress()
        return queues[key].popleft()

    def list_keys(self) -> list[str]:
        self._request("list_keys", ())
        self._sim.announce("list_keys", ("keys", self.table.name), writes=False)
        self._send()
        self._looked("store.list_keys()", found=True)
        return sorted(self.table.data)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        key, given = text_of("barrier", key), self._timeout if timeout is None else duration_of("barrier", timeout)
        if self.add(f"{key}/num_members", 1) == world_size:
            self.set(f"{key}/last_member", "1")
        self._wait_at_barrier(f"{key}/last_member", given, timeout is not None)

    def clone(self) -> StoreBase:
        """Another object on the same keys."""
        raise NotImplementedError

    def has_extended_api(self) -> bool:
        return self._extended

    # -- what the calls are made of --------------------------------------------------------------------------------

    def _send(self, answered: bool = True) -> bool:
        """Whether the request reaches the store."""
        return True

    def _token(self, key: str) -> Hashable:
        """Names a key in the log of memory."""
        return ("key", self.table.name, key)

    def _write(self, key: str, value: bytes) -> None:
        tell(self._sim, self._token(key))
        self.table.put(key, value)
        self._sim.scheduler.progress()

    def _write_late(self, key: str, value: bytes) -> None:
        """A fault holds the request up, and the client goes on."""
        late_s, self._late_s = self._late_s, 0.0
        tell(self._sim, self._token(key))
        if late_s == INFINITY:
            return
        arrival = self._sim.scheduler.env.timeout(late_s)
        arrival.callbacks.append(lambda _: self.table.put(key, value))
        arrival.callbacks.append(lambda _: self._sim.scheduler.progress())

    def _announce(self, verb: str, *keys: str, writes: bool = False) -> None:
        self._request(verb, keys)
        for key in keys:
            self._sim.announce(verb, ("key", self.table.name, key), writes=writes)

    def _request(self, verb: str, keys: Sequence[str]) -> float:
        """Faults may hold a request up; for how many virtual seconds (of a `set`: for how many more)."""
        faults = self._sim.faults
        if faults is None or not self.table.is_served:
            return 0.0
        late_s = faults.requests.send(verb, keys, self.table.name, self.table.node)
        self._late_s = late_s if verb in UNANSWERED else 0.0
        return late_s

    def _answer(self, verb: str, keys: Sequence[str]) -> None:
        """What the client has waited for, or a time-out, has to be answered."""
        if self._sim.faults is not None and self.table.is_served:
            self._sim.faults.requests.answer(verb, keys, self.table.name, self.table.node)

    def _set(self, op: str, key: str, value: bytes) -> None:
        self._announce(op, key, writes=True)
        self._put(op, key, value)

    def _put(self, op: str, key: str, value: bytes) -> None:
        if self._send(answered=False):
            self._write_late(key, value) if self._late_s and op in UNANSWERED else self._write(key, value)
            self._sim.log("store_set", key)
            self._looked(f"store.{op}({key!r})", found=True)

    def _increment(self, key: str, amount: int) -> int:
        found = _NUMBER.match(self.table.data.get(key, b"0"))
        if found is None:
            raise self._no_number()
        value = int(found.group()) + amount
        hear(self._sim, self._token(key))
        tell(self._sim, self._token(key))
        self.table.put(key, str(value).encode())
        if amount != 0:
            self._sim.scheduler.progress()
            self._sim.log("store_add", key, value)
        return value

    def _no_number(self) -> Exception:
        return ValueError("stoll")

    def _looked(self, text: str, found: bool) -> None:
        looked(self._sim, text, changed=found)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait_at_barrier(self, key: str, timeout: timedelta, explicit: bool) -> None:
        self._wait_for([key], timeout, "barrier", explicit=explicit)

    def _wait_for(
        self,
        keys: list[str],
        timeout: timedelta,
        op: str,
        *,
        explicit: bool = False,
        present: Callable[[str], bool] | None = None,
    ) -> None:
        verb, endless = op.partition(",")[0], self._endless_at_zero and not timeout
        patience_s = self._patience_s(timeout, op)
        late_s = self._request(verb, keys)
        for key in keys:
            self._sim.announce(verb, ("key", self.table.name, key), writes=op == "queue_pop")
        if late_s > patience_s and not endless:
            raise self._timed_out(op, keys, keys, timeout)
        self._send()
        here = present or self.table.has
        deadline, waited = self._sim.scheduler.env.now + patience_s - late_s, False
        for key in keys:
            while not here(key):
                waited = True
                left = None if endless else deadline - self._sim.scheduler.env.now
                missing = tuple(key for key in keys if not here(key))
                if (left is not None and left < 0) or not self._wait_once(missing, left, op, explicit):
                    self._answer(verb, keys)
                    self._sim.note("store_timeout", f"store.{op}({_shown(keys)}) timed out")
                    raise self._timed_out(op, keys, missing, timeout)
                if not self.table.alive and not here(key):
                    raise dist.DistNetworkError(CLOSED)
        if waited:
            self._answer(verb, keys)
        self._heard_of(keys)

    def _heard_of(self, keys: Sequence[str]) -> None:
        for key in keys:
            hear(self._sim, self._token(key))

    def _wait_once(self, missing: tuple[str, ...], left_s: float | None, op: str, explicit: bool) -> bool:
        self._sim.must_be_here(f"a wait for the store key {missing[0]!r}")
        event = self._sim.scheduler.event()
        self.table.expect(missing[0], event)
        call, _, workers = op.partition(", ")
        reason = f"the {self.table.name} waits for {workers} workers, and fewer ranks connect to it" if workers else ""
        what = KeyWait(missing, self.table.name, reason)
        text = f"store.{call}({workers or _shown(missing)})"
        wait = Wait("store", text, self._sim.sites.capture(2), what, explicit)
        came = self._sim.wait(event, wait, left_s)
        if not came:
            self.table.forget(missing[0], event)
        return came

    def _patience_s(self, timeout: timedelta, op: str) -> float:
        return timeout.total_seconds()

    def _timed_out(self, op: str, keys: Sequence[str], missing: Sequence[str], timeout: timedelta) -> Exception:
        return dist.DistStoreError("Wait timeout")
