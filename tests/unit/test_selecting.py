"""asyncio and selectors in a rank: timers pass in virtual time."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from typing import Any

import pytest
import torch.distributed as dist

from simulator import simulate


def test_an_hour_of_asyncio_sleep_passes_at_once() -> None:
    """Each rank's loop sleeps in virtual time, and collectives run on its threads."""

    def program(rank: int) -> float:
        dist.init_process_group("gloo")

        async def main() -> float:
            start = time.monotonic()
            await asyncio.sleep(3600 + rank)
            slept = time.monotonic() - start
            await asyncio.to_thread(dist.barrier)
            await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))
            return slept

        return asyncio.run(main())

    outcome = simulate(program, 2).raise_if_bad()
    assert outcome.results == pytest.approx({0: 3600.0, 1: 3601.0}, abs=0.01)
    assert outcome.virtual_s == pytest.approx(3603, abs=2)


def test_a_selector_sees_real_pipes_and_times_out_in_virtual_time() -> None:
    """What is ready is asked of the operating system; the waiting is virtual."""

    def program(rank: int) -> list[Any]:
        reader, writer = os.pipe()
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            start = time.monotonic()
            nothing = selector.select(100)
            waited = time.monotonic() - start
            os.write(writer, b"x")
            ready = selector.select(100)
        os.close(reader)
        os.close(writer)
        return [len(nothing), waited, len(ready)]

    results = simulate(program, 2).raise_if_bad().results
    assert [results[0], results[1]] == [[0, pytest.approx(100), 1]] * 2


def test_selectors_are_real_again_after_a_run() -> None:
    """A select outside the ranks waits on the wall clock."""
    simulate(lambda rank: None, 2).raise_if_bad()
    with selectors.DefaultSelector() as selector:
        start = time.monotonic()
        assert selector.select(0.05) == []
        assert time.monotonic() - start >= 0.04
