"""Runs a scenario on simulated ranks: the same program text, in virtual time."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from simulator import Cluster, Outcome
from tests.parity_mooncake.observer import Observer
from tests.parity_mooncake.records import HANGS, Observed, Record, ended
from tests.parity_mooncake.scenario import Process, Scenario


class MemoryChannel:
    """Records of one process, flags of all; what comes after the scenario's limit is not seen."""

    def __init__(self, flags: dict[str, str], limit_s: float) -> None:
        self._flags = flags
        self._limit_s = limit_s
        self.records: list[dict[str, Any]] = []

    def write(self, record: dict[str, Any]) -> None:
        if time.monotonic() <= self._limit_s:
            self.records.append(json.loads(json.dumps(record)))

    def flag(self, name: str, text: str = "") -> None:
        self._flags[name] = text

    def text(self, name: str) -> str:
        return self._flags[name]

    def is_up(self, name: str) -> bool:
        return name in self._flags


def simulated(scenario: Scenario) -> tuple[Observed, Outcome]:
    """What the processes see, and the simulator's verdict."""
    flags: dict[str, str] = {}
    channels = {p.label: MemoryChannel(flags, scenario.limit_s) for p in scenario.processes}

    def live(rank: int, processes: tuple[Process, ...]) -> None:
        from mooncake import pg

        process = next(p for p in processes if p.rank == rank)
        Observer(scenario, process, channels[process.label], pg).run()

    cluster = Cluster(on_hang="timeout")
    env = dict(scenario.env)
    for role, at_s in dict.fromkeys((p.role, p.at_s) for p in scenario.processes):
        mine = tuple(p for p in scenario.processes if (p.role, p.at_s) == (role, at_s))
        ranks = [p.rank for p in mine]
        if role == "launch":
            cluster.launch(live, ranks=len(ranks), args=(mine,), env=env)
        elif role == "scale":
            for first in [r for r in ranks if r - 1 not in ranks]:
                count = sum(r >= first for r in ranks)
                cluster.join(live, ranks=count, rank_offset=first, args=(mine,), env=env, at_s=at_s)
        else:
            cluster.recover(live, ranks=ranks, args=(mine,), env=env, at_s=at_s)
    outcome = cluster.run()
    return {p.label: _records(p, channels[p.label], outcome) for p in scenario.processes}, outcome


def _records(process: Process, channel: MemoryChannel, outcome: Outcome) -> list[Record]:
    code = outcome.ranks[process.rank].exit_code
    ended_by_signal = code is not None and code < 0
    return ended(channel.records, signal.Signals(-code).name if ended_by_signal else HANGS)
