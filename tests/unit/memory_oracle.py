"""Races of a small log by brute force: all predecessors of each event, and all pairs of accesses.

Written from the rules, byte by byte, with nothing in common with `simulator.analysis.happens_before`.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.memory_records import Access, CtaBarrier, Fence, MemoryLog, Observe, Publish


def racing_pairs(log: MemoryLog) -> set[tuple[int, int, tuple[int, int]]]:
    """(event, later event, (region, byte)) of all races."""
    return set(_Oracle(log).races())


class _Oracle:
    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.before: list[set[int]] = []
        for number in range(len(log.events)):
            direct = set(self.direct(number))
            self.before.append(direct.union(*(self.before[other] for other in direct)))

    def rank(self, number: int) -> int:
        return self.log.actors[self.log.events[number].actor].rank

    def races(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        for later, event in enumerate(self.log.events):
            for earlier in range(later):
                other = self.log.events[earlier]
                if not isinstance(event, Access) or not isinstance(other, Access) or event.actor == other.actor:
                    continue
                exempt = not (self.writes(earlier) or self.writes(later)) or self.morally_strong(earlier, later)
                if not exempt and earlier not in self.before[later]:
                    for byte in _bytes(event) & _bytes(other):
                        yield earlier, later, byte

    # -- what an access is -------------------------------------------------------------------------------------------

    def access(self, number: int) -> Access:
        event = self.log.events[number]
        assert isinstance(event, Access)
        return event

    def writes(self, number: int) -> bool:
        access = self.access(number)
        return access.kind == "write" or (access.kind == "rmw" and (access.compare is None or access.wrote is not None))

    def by_lane(self, number: int) -> bool:
        event = self.log.events[number]
        if isinstance(event, Access):
            return event.by_one_lane or event.order in ("acquire", "release", "acq_rel")
        return isinstance(event, Fence)

    def scopes_meet(self, one: int, other: int) -> bool:
        """Both scopes include the other's actor; of accesses and fences."""
        if self.log.events[one].actor == self.log.events[other].actor:
            return True
        scopes = {self.log.events[number].scope for number in (one, other)}  # type: ignore[union-attr]
        return scopes == {"sys"} or ("cta" not in scopes and "" not in scopes and self.rank(one) == self.rank(other))

    def morally_strong(self, one: int, other: int) -> bool:
        if self.log.events[one].actor == self.log.events[other].actor:
            return True
        strong = self.access(one).order != "weak" and self.access(other).order != "weak"
        return strong and self.scopes_meet(one, other)

    # -- edges ---------------------------------------------------------------------------------------------------------

    def direct(self, number: int) -> Iterator[int]:
        event = self.log.events[number]
        host = not self.log.actors[event.actor].kernel
        for other in range(number):
            earlier = self.log.events[other]
            if earlier.actor == event.actor:
                everybody = isinstance(earlier, CtaBarrier | Publish | Observe)
                closing = isinstance(event, CtaBarrier | Publish)
                if host or everybody or closing or (self.by_lane(other) and self.by_lane(number)):
                    yield other
            if isinstance(event, Observe) and isinstance(earlier, Publish) and earlier.token == event.token:
                yield other
        if isinstance(event, Access) and event.order in ("acquire", "acq_rel") and event.kind != "write":
            yield from (source for source in self.heard(number) if self.scopes_meet(source, number))
        if isinstance(event, Fence):
            for other in range(number):
                earlier = self.log.events[other]
                if isinstance(earlier, Access) and earlier.actor == event.actor and earlier.kind != "write":
                    yield from (source for source in self.heard(other) if self.scopes_meet(source, number))

    def heard(self, read: int) -> Iterator[int]:
        """Releases whose value this strong read sees, on any of its bytes."""
        if self.access(read).order == "weak":
            return
        for byte in _bytes(self.access(read)):
            above = read
            while True:
                writer = self.last_write(byte, above)
                if writer is None or self.access(writer).order == "weak" or not self.morally_strong(writer, above):
                    break
                yield from self.releases(writer)
                if self.access(writer).kind != "rmw":
                    break
                above = writer

    def releases(self, writer: int) -> Iterator[int]:
        if self.access(writer).order in ("release", "acq_rel"):
            yield writer
        for other in range(writer):
            event = self.log.events[other]
            if isinstance(event, Fence) and event.actor == self.access(writer).actor:
                yield other

    def last_write(self, byte: tuple[int, int], above: int) -> int | None:
        for other in range(above - 1, -1, -1):
            event = self.log.events[other]
            if isinstance(event, Access) and self.writes(other) and byte in _bytes(event):
                return other
        return None


def _bytes(access: Access) -> set[tuple[int, int]]:
    return {(region, byte) for region, start, stop in access.spans for byte in range(start, stop)}
