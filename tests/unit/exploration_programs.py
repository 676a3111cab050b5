"""Programs for the tests of exploration: some depend on who is slow, and some only look as if they did.

Each is a function of the rank, on as many ranks as its row says.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import shared_memory
from typing import Any

import torch
import torch.distributed as dist

Function = Callable[[int], Any]


def store_of(rank: int, ranks: int) -> Any:
    """A store at rank 0, and a default group on it."""
    store = dist.TCPStore("node0", 29500, ranks, rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    return store


def ones() -> torch.Tensor:
    return torch.ones(1)


# -- the outcome depends on the order ------------------------------------------------------------------------------


def a_flag_is_looked_at_once(rank: int) -> None:
    """Rank 1 takes part only if rank 0 has been quick."""
    store = store_of(rank, 2)
    if rank == 0:
        store.set("ready", "yes")
    elif not store.check(["ready"]):
        return
    dist.all_reduce(ones())


def a_sleep_is_to_order_two_ranks(rank: int) -> None:
    """Rank 0 sleeps, so that rank 1 comes first. In order it does."""
    store = store_of(rank, 2)
    if rank == 1:
        store.set("plan", "yes")
    else:
        time.sleep(1.0)
        if not store.check(["plan"]):
            return
    dist.all_reduce(ones())


def the_first_message_is_taken_for_rank_1s(rank: int) -> None:
    """A receive from any rank, and then one from rank 2."""
    dist.init_process_group("gloo")
    if rank:
        dist.send(ones() * rank, 0)
    else:
        dist.recv(ones())
        dist.recv(ones(), src=2)


def two_locks_in_opposite_order(rank: int) -> None:
    """Two threads of one rank."""
    first, second = threading.Lock(), threading.Lock()

    def hold(outer: Any, inner: Any) -> None:
        with outer, inner:
            pass

    threads = [threading.Thread(target=hold, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def two_threads_on_one_group(rank: int) -> None:
    """Which collective of a rank is the first one is up to its threads."""
    dist.init_process_group("gloo")
    threads = [threading.Thread(target=dist.all_reduce, args=(torch.ones(size),)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def a_segment_is_opened_before_it_is_made(rank: int) -> None:
    """Rank 1 does not wait for rank 0."""
    dist.init_process_group("gloo")
    memory = shared_memory.SharedMemory("plan", create=rank == 0, size=8)
    dist.barrier()
    memory.close()


def who_comes_last_does_the_work(rank: int) -> None:
    """Only rank 2 can do it."""
    store = store_of(rank, 3)
    if store.add("arrived", 1) == 3:
        assert rank == 2, "no file here"
    dist.barrier()


def a_time_limit_is_tested_on_local_clocks(rank: int) -> None:
    """Each rank decides by its own clock whether there is time for one more collective."""
    dist.init_process_group("gloo")
    since = time.monotonic()
    dist.barrier()
    if time.monotonic() - since < 0.02:
        dist.all_reduce(ones())


def two_flags_must_be_late(rank: int) -> None:
    """One delay is not enough."""
    store = store_of(rank, 3)
    if rank:
        store.set(f"flag {rank}", "yes")
    else:
        time.sleep(0.5)
        if not (store.check(["flag 1"]) or store.check(["flag 2"])):
            return
    dist.barrier()


def a_prefix_is_shared_by_two_groups(rank: int) -> list[int]:
    """The lists [0, 1, 2] and [0, 2, 4] have the same smallest rank and length, and so the same keys."""
    store = store_of(rank, 5)
    found: list[int] = []
    for ranks in ([0, 1, 2], [0, 2, 4]):
        if rank in ranks:
            own = dist.PrefixStore(f"{min(ranks)}x{len(ranks)}", store)
            own.set(str(ranks.index(rank)), str(rank))
            found += [int(own.get(str(index))) for index in range(3)]
    return found


def the_default_group_has_a_second_life(rank: int) -> float:
    """On one store, under one name. In order nobody is late."""
    store = store_of(rank, 2)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    total = ones()
    dist.all_reduce(total)
    return total.item()


RACES: dict[Function, tuple[int, str]] = {
    a_flag_is_looked_at_once: (2, "deadlock"),
    a_sleep_is_to_order_two_ranks: (2, "deadlock"),
    the_first_message_is_taken_for_rank_1s: (3, "deadlock"),
    two_locks_in_opposite_order: (1, "deadlock"),
    two_threads_on_one_group: (2, "race"),
    a_segment_is_opened_before_it_is_made: (2, "exception"),
    who_comes_last_does_the_work: (3, "exception"),
    a_time_limit_is_tested_on_local_clocks: (2, "deadlock"),
    two_flags_must_be_late: (3, "deadlock"),
    a_prefix_is_shared_by_two_groups: (5, "ok"),
    the_default_group_has_a_second_life: (2, "race"),
}
"""Program to the number of its ranks, and to how it ends in its bad order."""


# -- the order makes no difference ---------------------------------------------------------------------------------


def waits_for_a_key(rank: int) -> bytes:
    """However late it is set."""
    store = store_of(rank, 2)
    if rank == 0:
        time.sleep(1.0)
        store.set("key", "yes")
    store.wait(["key"])
    dist.barrier()
    return bytes(store.get("key"))


def polls_for_a_key(rank: int) -> None:
    """With sleeps in between, and a limit of half a minute."""
    store = store_of(rank, 2)
    if rank == 0:
        time.sleep(1.0)
        store.set("key", "yes")
    else:
        limit = time.monotonic() + 30.0
        while not store.check(["key"]):
            time.sleep(0.1)
            if time.monotonic() > limit:
                raise TimeoutError("the other rank does not come")
    dist.barrier()


def polls_for_a_key_without_a_pause(rank: int) -> None:
    """A hot loop."""
    store = store_of(rank, 2)
    if rank == 0:
        store.set("key", "yes")
    while not store.check(["key"]):
        pass
    dist.barrier()


def tries_again_after_a_time_out(rank: int) -> None:
    """Each wait has a short time-out of its own."""
    store = store_of(rank, 2)
    if rank == 0:
        time.sleep(0.5)
        store.set("key", "yes")
    for _ in range(20):
        try:
            store.wait(["key"], timedelta(seconds=0.2))
            break
        except dist.DistStoreError:
            continue
    else:
        raise TimeoutError("twenty times")
    dist.barrier()


def has_a_watchdog(rank: int) -> None:
    """A thread that ends the process if the work takes a minute."""

    def watch() -> None:
        time.sleep(60.0)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()
    dist.init_process_group("gloo")
    for _ in range(5):
        time.sleep(0.5)
        dist.barrier()


def counts_under_a_lock(rank: int) -> int:
    """Three threads of one rank."""
    lock, count = threading.Lock(), [0]

    def add() -> None:
        for _ in range(3):
            with lock:
                count[0] += 1

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count[0]


def sums_what_comes_from_any_rank(rank: int) -> float:
    """A sum has no order."""
    dist.init_process_group("gloo")
    total, part = 0.0, torch.zeros(1)
    if rank:
        dist.send(ones() * rank, 0)
        return total
    for _ in range(3):
        dist.recv(part)
        total += part.item()
    return total


def returns_times_and_pids(rank: int) -> dict[str, Any]:
    """Other ones in each run, and no race."""
    since = time.time()
    dist.init_process_group("gloo")
    dist.barrier()
    took = time.time() - since
    return {"pid": os.getpid(), "since": since, "took": took, "text": f"took {took} s", "object": object()}


def takes_items_from_a_queue(rank: int) -> list[int]:
    """One thread puts, the other one gets."""
    items: queue.Queue[int | None] = queue.Queue()
    thread = threading.Thread(target=lambda: [items.put(item) for item in (1, 2, 3, None)])
    thread.start()
    found = list(iter(items.get, None))
    thread.join()
    return found


def claims_work_by_a_counter(rank: int) -> float:
    """Who does what depends on the order; the sum does not."""
    store, mine = store_of(rank, 3), 0
    while (item := store.add("next", 1)) <= 6:
        mine += item
    total = torch.tensor([float(mine)])
    dist.all_reduce(total)
    return total.item()


def issues_without_waiting(rank: int) -> float:
    """Four collectives under way at once."""
    dist.init_process_group("gloo")
    parts = [ones() for _ in range(4)]
    for work in [dist.all_reduce(part, async_op=True) for part in parts]:
        work.wait()
    return sum(part.item() for part in parts)


CORRECT: dict[Function, int] = {
    waits_for_a_key: 2,
    polls_for_a_key: 2,
    polls_for_a_key_without_a_pause: 2,
    tries_again_after_a_time_out: 2,
    has_a_watchdog: 2,
    counts_under_a_lock: 1,
    sums_what_comes_from_any_rank: 4,
    returns_times_and_pids: 2,
    takes_items_from_a_queue: 1,
    claims_work_by_a_counter: 3,
    issues_without_waiting: 3,
}
"""Program to the number of its ranks."""
