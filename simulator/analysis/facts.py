"""Small questions to the records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.analysis.findings import Side
from simulator.engine.site import Stack
from simulator.memory_records import WordWait
from simulator.records import Blocked, Gathering, KeyWait, Note, PeerWait, RankRecord, Records

SPELLED_MAX = 16
"""Ranks of a list that are spelled out."""
CONSEQUENCES = ("Connection closed by peer", "Connection was likely closed", "Application timeout caused pair closure")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the analysis needs to know of the run besides the records.

    Attributes:
        end: name of the scheduler's `End`.
        cohorts: name to (kind, ranks).
        spinner: rank and stack of a task that never blocked.
        init_barrier: rank to whether TORCH_DIST_INIT_BARRIER is 1 there.
    """

    end: str
    torch_version: str
    cohorts: dict[str, tuple[str, tuple[int, ...]]]
    nodes: int
    spinner: tuple[int, Stack] | None
    init_barrier: dict[int, bool]
    end_s: float
    spin_wall_s: float
    idle_steps_max: int


def listed(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0, 1, 3`, `ranks 0-7, 9`."""
    numbers = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    for index, number in enumerate(numbers):
        if index + 1 < len(numbers) and numbers[index + 1] == number + 1:
            continue
        first, run = numbers[start], index - start + 1
        parts += [f"{first}-{number}"] if run > 2 else [str(n) for n in numbers[start : index + 1]]
        start = index + 1
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(parts)


def spelled(ranks: Sequence[int]) -> str:
    """A list of ranks as code shows it; a long one in spans."""
    if len(ranks) <= SPELLED_MAX:
        return str(list(ranks))
    return f"[{listed(ranks).partition(' ')[2]}]" if list(ranks) == sorted(set(ranks)) else f"[{len(ranks)} ranks]"


def some(names: Sequence[str], most: int = 6) -> str:
    """The first few names, and dots if there are more."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ..."


def final_blocked(records: Records) -> tuple[Blocked, ...]:
    """What waited when the run ended; () if everything finished."""
    return records.final


def is_consequence(record: RankRecord) -> bool:
    """The rank failed because a peer had failed before."""
    return any(text in record.error for text in CONSEQUENCES)


def notes_of(records: Records, kind: str) -> list[Note]:
    """The notes of one kind, in order."""
    return [note for note in records.notes if note.kind == kind]


def what_it_does(rank: int, records: Records, blocked: Sequence[Blocked]) -> tuple[str, Stack]:
    """What a rank does instead of what it should."""
    record = records.ranks.get(rank)
    if record is None:
        fault = next((fault.text for fault in records.faults if rank in fault.ended), None)
        return "never existed: no cohort has this rank" if fault is None else f"never started: [{fault}]", ()
    mine = [b for b in blocked if b.rank == rank]
    if mine:
        return f"waits in {mine[0].text}{reading(mine[0])}", mine[0].stack
    if record.status == "stuck":
        return "never entered", ()
    if record.status == "ok":
        return f"finished at {record.end_s or 0:g} s", ()
    if record.status == "exception":
        return f"raised {record.error}", record.stack
    if record.status == "killed" and record.fault:
        return f"was killed at {record.end_s or 0:g} s by [{record.fault}]", record.stack
    if record.status == "crash":
        return f"crashed (signal {-record.exit_code})", record.stack
    return f"ended with exit code {record.exit_code}", record.stack


def reading(blocked: Blocked) -> str:
    """Where the host waits, if that is elsewhere than where it gave its device what it waits for."""
    at = blocked.read_at[:1]
    return f"; its host waits at {at[0].place}" if at and at != blocked.stack[:1] else ""


def grouped(role: str, ranks: Iterable[int], records: Records, blocked: Sequence[Blocked]) -> list[Side]:
    """Sides for `ranks`, those that do the same at the same place together."""
    sides: dict[tuple[str, Stack], list[int]] = {}
    for rank in sorted(set(ranks)):
        sides.setdefault(what_it_does(rank, records, blocked), []).append(rank)
    return [Side(role, tuple(members), doing, stack) for (doing, stack), members in sides.items()]


def by_stack(role: str, doing: str, stacks: dict[int, Stack]) -> list[Side]:
    """Sides for ranks that do the same thing, told apart by where they do it."""
    sides: dict[Stack, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        sides.setdefault(stack, []).append(rank)
    return [Side(role, tuple(members), doing, stack) for stack, members in sides.items()]


def waits_for(blocked: Blocked) -> tuple[int, ...]:
    """The ranks that one wait depends on; () if that is not known."""
    what = blocked.what
    if isinstance(what, Gathering):
        return what.missing
    if isinstance(what, PeerWait) and what.peer >= 0:
        return (what.peer,)
    return what.expected if isinstance(what, WordWait) else ()


def keys_of(blocked: Blocked) -> tuple[str, ...]:
    """The store keys that a wait is for."""
    return blocked.what.keys if isinstance(blocked.what, KeyWait) else ()
