"""Logs of shared memory, made by hand."""

from __future__ import annotations

from simulator.engine.site import Frame
from simulator.memory_records import Access, Actor, CtaBarrier, Fence, MemoryLog, Observe, Publish, Region, Span

FILE = "/kernels/gather.py"


def line(number: int) -> tuple[Frame, ...]:
    """A stack of one frame."""
    return (Frame(FILE, number, "kernel"),)


class LogBook:
    """A log in the making: one buffer and one signal pad a rank, each of `nbytes`.

    Regions: 2 * rank is the buffer of a rank, 2 * rank + 1 its signal pad. Actors 0 to ranks - 1 are the hosts.
    """

    def __init__(self, ranks: int = 2, nbytes: int = 64) -> None:
        self.log = MemoryLog()
        for rank in range(ranks):
            self.log.regions.append(Region(2 * rank, rank, "buffer", nbytes, f"buffer of rank {rank}"))
            self.log.regions.append(Region(2 * rank + 1, rank, "pad", nbytes, f"signal pad of rank {rank}"))
            self.log.actors.append(Actor(rank, rank))
        self._launches = dict.fromkeys(range(ranks), 0)

    # -- launches ---------------------------------------------------------------------------------------------------

    def launch(self, rank: int, programs: int = 1, kernel: str = "gather") -> list[int]:
        """The host launches a kernel; the numbers of its programs."""
        launch = self._launches[rank]
        self._launches[rank] += 1
        token = ("launch", rank, launch)
        self.publish(rank, token)
        numbers = []
        for program in range(programs):
            actor = Actor(len(self.log.actors), rank, kernel, (program, 0, 0), launch)
            self.log.actors.append(actor)
            numbers.append(actor.number)
            self.observe(actor.number, token)
        return numbers

    def program(self, rank: int) -> int:
        """A launch of one program."""
        return self.launch(rank)[0]

    def end(self, *programs: int) -> None:
        """The programs of one launch end, and their host sees it."""
        for program in programs:
            self.publish(program, ("end", programs))
        self.observe(self.log.actors[programs[0]].rank, ("end", programs))

    # -- what orders --------------------------------------------------------------------------------------------------

    def publish(self, actor: int, token: object) -> None:
        self.log.events.append(Publish(actor, token))

    def observe(self, actor: int, token: object) -> None:
        self.log.events.append(Observe(actor, token))

    def meet(self, *hosts: int) -> None:
        """A collective of hosts."""
        token = ("meeting", len(self.log.events))
        for host in hosts:
            self.publish(host, token)
        for host in hosts:
            self.observe(host, token)

    def barrier(self, program: int) -> None:
        self.log.events.append(CtaBarrier(program))

    def fence(self, program: int, scope: str = "sys", order: str = "acq_rel") -> None:
        self.log.events.append(Fence(program, order, scope))

    # -- accesses ---------------------------------------------------------------------------------------------------

    def access(
        self,
        actor: int,
        kind: str,
        *spans: Span,
        order: str = "weak",
        scope: str = "sys",
        at: int = 1,
        lane: bool = False,
        compare: int | None = None,
        wrote: int | None = None,
    ) -> None:
        scope = "" if order == "weak" else scope
        self.log.events.append(Access(actor, kind, order, scope, spans, line(at), lane, compare, wrote))

    def read(self, actor: int, rank: int, at: int = 1, **how: object) -> None:
        """Read word 0 of the buffer of `rank`."""
        self.access(actor, "read", (2 * rank, 0, 4), at=at, **how)  # type: ignore[arg-type]

    def write(self, actor: int, rank: int, at: int = 2, **how: object) -> None:
        """Write word 0 of the buffer of `rank`."""
        self.access(actor, "write", (2 * rank, 0, 4), at=at, **how)  # type: ignore[arg-type]

    def word(self, actor: int, kind: str, rank: int, slot: int, order: str, at: int, **how: object) -> None:
        """One thread's strong access to a word of the signal pad of `rank`."""
        span = (2 * rank + 1, 4 * slot, 4 * slot + 4)
        self.access(actor, kind, span, order=order, at=at, lane=True, **how)  # type: ignore[arg-type]

    def put(
        self, actor: int, rank: int, slot: int = 0, order: str = "release", scope: str = "sys", at: int = 3
    ) -> None:
        """Compare-and-swap from 0 to 1."""
        self.word(actor, "rmw", rank, slot, order, at, scope=scope, compare=0, wrote=1)

    def take(
        self, actor: int, rank: int, slot: int = 0, order: str = "acquire", scope: str = "sys", at: int = 4
    ) -> None:
        """Compare-and-swap from 1 to 0."""
        self.word(actor, "rmw", rank, slot, order, at, scope=scope, compare=1, wrote=0)

    def fail(self, actor: int, rank: int, slot: int = 0, compare: int = 1, order: str = "acquire", at: int = 4) -> None:
        """A compare-and-swap that does not find what it expects."""
        self.word(actor, "rmw", rank, slot, order, at, compare=compare, wrote=None)
