"""In which order the ranks of a group bring their buffers together: the n-th buffers of all ranks become one."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.facts import listed, spelled
from simulator.analysis.findings import Certainty, Finding, Level, Side
from simulator.analysis.rendezvous import Key, complete, finding_on, key_of
from simulator.engine.site import Stack
from simulator.memory_records import MemoryLog, Offer, Rendezvous

SHOWN_MAX = 8
"""Places of an order that are shown."""


class Order:
    """Buffers that meet in one order on some ranks and in another on others.

    Attributes:
        permuted: all ranks bring the same buffers, known by where they were allocated.
    """

    def __init__(self, permuted: bool, places: dict[int, tuple[str, ...]]) -> None:
        self.permuted = permuted
        self.places = places

    @property
    def sides(self) -> list[tuple[tuple[int, ...], str]]:
        alike: dict[tuple[str, ...], list[int]] = {}
        for rank, places in self.places.items():
            alike.setdefault(places, []).append(rank)
        return [(tuple(ranks), _shown(places)) for places, ranks in alike.items()]

    @property
    def sentence(self) -> str:
        """Both orders, for a cause."""
        told = ", ".join(f"{text} on {listed(ranks)}" for ranks, text in self.sides)
        return f"the ranks bring buffers that were allocated at {told}"


def _shown(places: Sequence[str]) -> str:
    return " then ".join(places[:SHOWN_MAX]) + (" ..." if len(places) > SHOWN_MAX else "")


def order_of(log: MemoryLog, meetings: Sequence[Rendezvous]) -> Order | None:
    """How the orders of one group's ranks differ; None if they do not.

    A buffer is known by where it was allocated (all calls, or the innermost one, in case ranks call from different
    lines) and by its number among the rank's buffers from there that come to this group.
    """
    if not meetings:
        return None
    loose: Order | None = None
    for depth in (None, 1):
        ids = {rank: _identities(log, [m.offers[rank] for m in meetings], depth) for rank in meetings[0].ranks}
        orders = list(ids.values())
        if all(order == orders[0] for order in orders):
            return None
        places = _places(ids)
        if all(sorted(order) == sorted(orders[0]) for order in orders):
            return Order(True, places)
        loose = Order(False, places)
    return loose


def _identities(log: MemoryLog, offers: Sequence[Offer], depth: int | None) -> list[tuple[Stack, int]]:
    """What is brought, in order: (stack of the allocation, number among those of that stack)."""
    numbers: dict[Stack, list[int]] = {}
    for region in sorted({offer.region for offer in offers}):
        numbers.setdefault(log.regions[region].stack[:depth], []).append(region)
    stacks = [log.regions[offer.region].stack[:depth] for offer in offers]
    return [(stack, numbers[stack].index(offer.region)) for stack, offer in zip(stacks, offers, strict=True)]


def _places(ids: dict[int, list[tuple[Stack, int]]]) -> dict[int, tuple[str, ...]]:
    """What each rank brings, for people: as many lines of each stack as it takes to tell the orders apart."""
    for depth in range(1, 1 + max(len(stack) for order in ids.values() for stack, _ in order)):
        places = {rank: tuple(_place(stack[:depth], number) for stack, number in order) for rank, order in ids.items()}
        if len(set(places.values())) > 1:
            break
    return places


def _place(stack: Stack, number: int) -> str:
    lines = ", called at ".join(frame.place for frame in stack)
    return lines + (f" #{number + 1}" if number else "")


def disorders(log: MemoryLog) -> list[Finding]:
    """Groups to which ranks bring their buffers in different orders, although the sizes agree."""
    by_group: dict[Key, list[Rendezvous]] = {}
    for meeting in complete(log):
        by_group.setdefault(key_of(meeting), []).append(meeting)
    found = []
    for meetings in by_group.values():
        order = order_of(log, meetings)
        if order is not None and not any(meeting.refused for meeting in meetings):
            found.append(_disorder(meetings, order))
    return found


def _disorder(meetings: Sequence[Rendezvous], order: Order) -> Finding:
    meeting = _first_difference(meetings, order)
    if order.permuted:
        text, cause = "in different orders", "the n-th buffers of the ranks become one, and these are not the same"
    else:
        text, cause = "from different places", "the ranks pair buffers that were allocated at different lines of code"
    return finding_on(
        meeting,
        f"group '{meeting.label}' {spelled(meeting.ranks)}: the ranks bring their buffers {text}",
        tuple(Side("gave", ranks, f"from {told}", meeting.offers[ranks[0]].stack) for ranks, told in order.sides),
        cause,
        "bring the buffers to the group in one order on all ranks",
        "torch pairs the n-th rendezvous of each rank, and compares sizes only",
        level=Level.CONTRACT,
        certainty=Certainty.SUSPECT,
        warning=not order.permuted,
    )


def _first_difference(meetings: Sequence[Rendezvous], order: Order) -> Rendezvous:
    for meeting, places in zip(meetings, zip(*order.places.values(), strict=True), strict=True):
        if len(set(places)) > 1:
            return meeting
    return meetings[0]
