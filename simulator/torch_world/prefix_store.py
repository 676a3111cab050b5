"""PrefixStore: a store below, each key with a prefix. It waits, times out and raises as the store below does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from simulator.torch_world.store_base import DEFAULT_TIMEOUT, StoreBase, text_of, texts_of


class SimPrefixStore(StoreBase):
    """Another store, each key with a prefix."""

    def __init__(self, prefix: str, store: StoreBase) -> None:
        if store is None:
            raise ValueError("store argument cannot be None")
        if not isinstance(store, StoreBase):
            raise TypeError(
                f"PrefixStore over a {type(store).__name__} made outside the simulation: make the store inside the rank"
            )
        super().__init__(store._sim, store.table, DEFAULT_TIMEOUT)
        self._prefix = text_of("set", prefix)
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

    def set_timeout(self, timeout: timedelta, /) -> None:
        self._below.set_timeout(timeout)

    def path_of(self, key: str) -> str:
        """`key` as the store at the bottom names it."""
        joined = f"{self._prefix}/{key}"
        return self._below.path_of(joined) if isinstance(self._below, SimPrefixStore) else joined

    def clone(self) -> SimPrefixStore:
        return type(self)(self._prefix, self._below.clone())

    def has_extended_api(self) -> bool:
        return self._below.has_extended_api()

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._below.queue_pop(f"{self._prefix}/{text_of('queue_pop', key)}", block)

    def num_keys(self) -> int:
        return self._below.num_keys()

    def list_keys(self) -> list[str]:
        head = f"{self._prefix}/"
        return [key.removeprefix(head) for key in self._below.list_keys() if key.startswith(head)]

    def _wait_at_barrier(self, key: str, timeout: timedelta, explicit: bool) -> None:
        """Here torch forgets the time-out of the store below."""
        bottom = self._underlying_non_prefix_store
        bottom._wait_for([self.path_of(key)], timeout if explicit else self._timeout, "wait", explicit=explicit)


def _prefixed(name: str, many: bool) -> Any:
    def one_key(self: SimPrefixStore, key: str, /, *rest: Any) -> Any:
        return getattr(self._below, name)(f"{self._prefix}/{text_of(name, key)}", *rest)

    def many_keys(self: SimPrefixStore, keys: list[str], /, *rest: Any) -> Any:
        return getattr(self._below, name)([f"{self._prefix}/{key}" for key in texts_of(name, keys)], *rest)

    return many_keys if many else one_key


for _name in ("set", "get", "add", "compare_set", "delete_key", "append", "queue_push", "queue_len"):
    setattr(SimPrefixStore, _name, _prefixed(_name, many=False))
for _name in ("check", "wait", "multi_get", "multi_set"):
    setattr(SimPrefixStore, _name, _prefixed(_name, many=True))
