"""The store of an elastic deployment: who asks, who is answered, what was decided.

    registry = Registry(open_store("tcp://node0:29500"), patience)
    registry.ask(cohort)                            # a joiner; rank 0 of the deployment hears of it in `next_cohort`
    registry.agree(cohort, "configure", rank, members, error)   # all members: one decision, made by rank 0

Rank 0 alone decides.  Everybody else reads the decision under a key that rank 0 writes once, so no two ranks can hold
different ones, and nobody waits without a limit.  The store is the one that the default group was started with.

Not here: a second life of the store.  It lives in the process of rank 0, and goes with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from refimpl.distributed.cohort import Cohort, Deployment, named


class ElasticError(RuntimeError):
    """A change of the membership did not come about; the text says why, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long each step may take, in seconds."""

    answer_s: float = 120.0
    """A joiner: until the deployment answers, earlier cohorts included."""
    peers_s: float = 120.0
    """The deployment: from its answer until every rank of the cohort is ready to join."""
    early_s: float = 60.0
    """The deployment: for a cohort that comes too early, until the one before it has come, or the loss is noticed."""
    admit_s: float = 30.0
    """One group: until its newcomers have called `join_group`.  Mooncake adds up to 20 s of its own."""
    step_s: float = 60.0
    """All members: until each has said how a step went."""
    poll_s: float = 0.05
    """Between two looks at something that can only be looked at."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give seconds above 0")


class Decision(NamedTuple):
    """What rank 0 decided: go on, or why not."""

    ok: bool
    why: str = ""

    def to_text(self) -> str:
        """JSON for the store."""
        return json.dumps(self._asdict())


def open_store(init_method: str, timeout_s: float = 60.0) -> Store:
    """A client of the store at "tcp://host:port", or at MASTER_ADDR and MASTER_PORT for "env://".

    Raises: ValueError for any other address; torch's DistNetworkError when nobody serves there.
    """
    if init_method == "env://":
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    else:
        address = urlsplit(init_method)
        if address.scheme != "tcp" or not address.hostname or address.port is None:
            raise ValueError(f"init_method is {init_method!r}; give 'tcp://host:port' or 'env://'")
        host, port = address.hostname, address.port
    timeout = timedelta(seconds=timeout_s)
    client = TCPStore(host, port, None, False, timeout=timeout, wait_for_workers=False)
    return PrefixStore("elastic", client)


class Registry:
    """What joiners and deployment write for each other."""

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store = store
        self.patience = patience

    # The deployment

    def publish(self, deployment: Deployment) -> None:
        """Rank 0: say what runs now."""
        self._store.set("deployment", deployment.to_text())

    def deployment(self) -> Deployment:
        """What runs.  Raises: ElasticError when nobody says so in time."""
        found = self._wait("deployment", self.patience.answer_s, "no deployment is published; start it first")
        return Deployment.from_text(found)

    # Cohorts

    def arrive(self, cohort: Cohort, rank: int) -> None:
        """Every rank of a cohort: be counted.  Raises: ElasticError when that launch has been here before."""
        if self._store.add(f"{cohort.key}/arrived/{rank}", 1) > 1:
            raise ElasticError(f"launch_id {cohort.launch_id!r} of {cohort} was used before; give each launch its own")

    def ask(self, cohort: Cohort) -> None:
        """The first rank of a cohort: get in line once all are there; if they do not come, turn those away who did."""
        keys = [f"{cohort.key}/arrived/{rank}" for rank in cohort.ranks]
        missing = self._missing(keys, self.patience.peers_s)
        if missing:
            who = named([rank for rank, key in zip(cohort.ranks, keys, strict=True) if key in missing])
            why = f"{who} did not start in {self.patience.peers_s:g} s; launch the whole cohort again"
            self.decide(cohort, "answer", Decision(False, why))
            return
        ticket = self._store.add("tickets", 1)
        self._store.set(f"ticket/{ticket}", cohort.to_text())

    def cohort(self, ticket: int) -> Cohort | None:
        """Who has that place in the line, counted from 1; None when nobody has come yet."""
        key = f"ticket/{ticket}"
        return Cohort.from_text(self._store.get(key)) if self._store.check([key]) else None

    def decide(self, cohort: Cohort, step: str, decision: Decision) -> None:
        """Rank 0: what holds for all from now on."""
        self._store.set(f"{cohort.key}/{step}", decision.to_text())

    def decide_if_open(self, cohort: Cohort, step: str, decision: Decision) -> None:
        """Rank 0: the same, unless it has decided already."""
        if not self._store.check([f"{cohort.key}/{step}"]):
            self.decide(cohort, step, decision)

    def turned_away(self, cohort: Cohort, step: str) -> Decision | None:
        """A joiner: the decision, if there is one already and it says no.  Does not wait."""
        key = f"{cohort.key}/{step}"
        decision = Decision(**json.loads(self._store.get(key))) if self._store.check([key]) else None
        return None if decision is None or decision.ok else decision

    def wait_decision(self, cohort: Cohort, step: str, limit_s: float, remedy: str) -> Decision:
        """What rank 0 decided.  Raises: ElasticError when it does not in time."""
        found = self._wait(f"{cohort.key}/{step}", limit_s, remedy)
        return Decision(**json.loads(found))

    def say_ready(self, cohort: Cohort, rank: int) -> None:
        """A joiner: its groups are there, and what it had to load."""
        self._store.set(f"{cohort.key}/ready/{rank}", "")

    def all_ready(self, cohort: Cohort) -> bool:
        """Whether all of the cohort are ready to join.  Does not wait."""
        return bool(self._store.check([f"{cohort.key}/ready/{rank}" for rank in cohort.ranks]))

    def not_ready(self, cohort: Cohort) -> list[int]:
        """Global ranks of the cohort that are not."""
        return [rank for rank in cohort.ranks if not self._store.check([f"{cohort.key}/ready/{rank}"])]

    # Steps that all members take together

    def agree(self, cohort: Cohort, step: str, rank: int, members: Sequence[int], error: str = "") -> Decision:
        """Report how `step` went on this rank (`error` is empty if well) and learn how it went for all `members`.

        Collective over `members`; rank 0 is one of them and decides.  Nobody is inside a collective of a process
        group meanwhile.  Raises: ElasticError when rank 0 does not decide in time.
        """
        self._store.set(f"{cohort.key}/{step}/{rank}", error)
        if rank == 0:
            self.decide(cohort, step, self._gather(cohort, step, members))
        remedy = f"rank 0 did not say how {step!r} went; it is dead, or no longer takes part"
        return self.wait_decision(cohort, step, 2 * self.patience.step_s, remedy)

    def _gather(self, cohort: Cohort, step: str, members: Sequence[int]) -> Decision:
        keys = {f"{cohort.key}/{step}/{rank}": rank for rank in members}
        missing = self._missing(list(keys), self.patience.step_s)
        if missing:
            who = named([keys[key] for key in missing])
            return Decision(False, f"{who} did not finish {step!r} in {self.patience.step_s:g} s")
        errors = zip(members, self._store.multi_get(list(keys)), strict=True)
        failed = [f"rank {rank}: {error.decode()}" for rank, error in errors if error]
        return Decision(False, "; ".join(failed)) if failed else Decision(True)

    def _missing(self, keys: list[str], limit_s: float) -> list[str]:
        """Those of the keys that nobody has written when the time is over."""
        try:
            self._store.wait(keys, timedelta(seconds=limit_s))
        except dist.DistNetworkError as error:
            raise ElasticError(f"the store of the deployment is gone, so rank 0 is: {error}") from None
        except dist.DistError:
            return [key for key in keys if not self._store.check([key])]
        return []

    def _wait(self, key: str, limit_s: float, remedy: str) -> bytes:
        if self._missing([key], limit_s):
            raise ElasticError(f"waited {limit_s:g} s for {key!r}: {remedy}")
        return bytes(self._store.get(key))
