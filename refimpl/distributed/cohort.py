"""Who asks to come into a running deployment, and whether that can be: plain data and one pure question, no torch.

    >>> serving = Deployment(world_size=4, capacity=8, attention=Attention(tp=1, cp=1, pp=1))
    >>> cohort = Cohort(ranks=(5, 6), capacity=8, attention=Attention(tp=1, cp=1, pp=1), launch_id="a")
    >>> why_not(cohort, serving)
    'rank_offset is 5 but the deployment ends at rank 3, so rank 4 would be missing; give rank_offset=4'

Not here: whether the processes that ask are alive (`membership`), and in which order cohorts are heard (`elastic`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from refimpl.distributed.layout import ParallelLayout, Rank


@dataclass(frozen=True, slots=True)
class Attention:
    """How attention is shared out.  Equal in all cohorts: a request may be served by the ranks of any of them."""

    tp: int
    """Ranks that hold the heads of one replica."""
    cp: int
    """Ranks that share a sequence."""
    pp: int
    """Pipeline stages."""

    @classmethod
    def of(cls, layout: ParallelLayout) -> Attention:
        """Attention of a launch cohort with that layout."""
        return cls(tp=layout.attn_tp, cp=layout.attn_cp, pp=layout.pp)

    def __str__(self) -> str:
        return f"tp={self.tp} cp={self.cp} pp={self.pp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Ranks that were launched together and want in."""

    ranks: tuple[int, ...]
    """Global ranks, ascending."""
    capacity: int | None
    """`max_world_size` that they were started with, in ranks."""
    attention: Attention
    """How they share attention out among themselves."""
    launch_id: str
    """Name of this launch of theirs; another attempt has another one."""
    recovers: bool = False
    """They take the slots of lost ranks; otherwise they bring new slots."""

    @property
    def first(self) -> Rank:
        """Lowest global rank, which speaks for the cohort."""
        return Rank(self.ranks[0])

    @property
    def key(self) -> str:
        """Where its messages lie in the store."""
        return f"cohort/{self.launch_id}/{self.first}"

    def to_text(self) -> str:
        """JSON for the store."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str | bytes) -> Cohort:
        """The cohort that `to_text` described."""
        given = json.loads(text)
        return cls(**{**given, "ranks": tuple(given["ranks"]), "attention": Attention(**given["attention"])})

    def __str__(self) -> str:
        return named(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What runs, as rank 0 publishes it."""

    world_size: int
    """Slots in use, lost ones included: the next cohort starts here."""
    capacity: int | None
    """Slots that WORLD was launched with, in ranks; None for a deployment that never grows."""
    attention: Attention
    """How attention is shared out."""
    lost: tuple[int, ...] = ()
    """Global ranks that are gone, ascending."""
    launched: int | None = None
    """Ranks of the first cohort; only these can be recovered.  None for all."""
    generation: int = 0
    """Changes of the membership so far."""

    @property
    def active(self) -> tuple[int, ...]:
        """Global ranks that serve, ascending."""
        everybody = range(self.world_size)
        return tuple(rank for rank in everybody if rank not in self.lost) if self.lost else tuple(everybody)

    def to_text(self) -> str:
        """JSON for the store."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str | bytes) -> Deployment:
        """The deployment that `to_text` described."""
        given = json.loads(text)
        return cls(**{**given, "lost": tuple(given["lost"]), "attention": Attention(**given["attention"])})


def why_not(cohort: Cohort, serving: Deployment) -> str:
    """Why `cohort` cannot come in now: what was given and what would do, in one line; empty if it can."""
    if cohort.capacity != serving.capacity:
        return (
            f"max_world_size is {cohort.capacity} but the deployment was launched with {serving.capacity}, and groups "
            f"of different capacity do not find each other; give max_world_size={serving.capacity}"
        )
    if cohort.attention != serving.attention:
        return (
            f"the cohort shares attention out as {cohort.attention} but the deployment serves with "
            f"{serving.attention}; give the cohort a layout of that shape"
        )
    return _why_not_recover(cohort, serving) if cohort.recovers else _why_not_grow(cohort, serving)


class Line:
    """Cohorts that wait to be heard, in the order in which they came.  Rank 0 has it.

    A cohort may come too early: before the one that fills the gap in front of it, or before anybody has noticed that
    the rank is lost whose slot it takes.  So it is not sent away at once.
    """

    def __init__(self, early_s: float) -> None:
        """early_s: how long a cohort that comes too early may wait, in seconds."""
        self._early_s = early_s
        self._waiting: list[tuple[int, Cohort, float]] = []
        self.next_ticket = 1

    def add(self, cohort: Cohort, now_s: float) -> None:
        """The cohort that has `next_ticket` has come."""
        self._waiting.append((self.next_ticket, cohort, now_s))
        self.next_ticket += 1

    def hear(self, serving: Deployment, now_s: float) -> tuple[int, Cohort, str] | None:
        """The first cohort that can be answered: its ticket, itself, and why it cannot come in (empty if it can)."""
        for place, (ticket, cohort, since_s) in enumerate(self._waiting):
            if not _is_early(cohort, serving) or now_s >= since_s + self._early_s:
                del self._waiting[place]
                return ticket, cohort, why_not(cohort, serving)
        return None


def _is_early(cohort: Cohort, serving: Deployment) -> bool:
    if cohort.recovers:
        return any(rank in serving.active for rank in cohort.ranks)
    return cohort.first > serving.world_size


def _why_not_grow(cohort: Cohort, serving: Deployment) -> str:
    offset, end, free = cohort.first, cohort.ranks[-1] + 1, serving.world_size
    if offset < free:
        taken = [rank for rank in cohort.ranks if rank < free]
        return (
            f"rank_offset is {offset} but ranks 0 to {free - 1} are deployed, so {named(taken)} "
            f"{'is' if len(taken) == 1 else 'are'} taken; give rank_offset={free}"
        )
    if offset > free:
        missing = range(free, offset)
        return (
            f"rank_offset is {offset} but the deployment ends at rank {free - 1}, so {named(missing)} would be "
            f"missing; give rank_offset={free}"
        )
    if serving.capacity is None:
        return "the deployment was launched without max_world_size, so it never grows; launch it with one"
    if end > serving.capacity:
        room = serving.capacity - free
        return (
            f"the cohort ends at rank {end - 1} but the deployment has slots for ranks 0 to {serving.capacity - 1}; "
            f"let {room or 'none'} join, or launch the deployment with max_world_size={end} or more"
        )
    if serving.lost:
        return f"{named(serving.lost)} of the deployment {_is_are(serving.lost)} lost; recover first, then grow"
    return ""


def _why_not_recover(cohort: Cohort, serving: Deployment) -> str:
    launched = serving.world_size if serving.launched is None else serving.launched
    late = [rank for rank in cohort.ranks if rank >= launched]
    if late:
        return (
            f"{named(late)} {_is_are(late)} not of the first cohort, ranks 0 to {launched - 1}, whose groups alone can "
            "be attached to; let a new cohort join instead"
        )
    alive = [rank for rank in cohort.ranks if rank not in serving.lost]
    if alive:
        lost = f"{named(serving.lost)} {_is_are(serving.lost)}" if serving.lost else "none is"
        return f"{named(alive)} {_is_are(alive)} not lost; of the deployment {lost}"
    return ""


def _is_are(ranks: tuple[int, ...] | list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def named(ranks: tuple[int, ...] | list[int] | range) -> str:
    """`rank 4`, `ranks 4 to 7`, `ranks 4, 6`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
