"""Sends and receives whose partner is gone, and that would fit each other: one wrong peer number, not two faults.

Sizes are not compared: a wait does not know the size of its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.analysis.facts import listed
from simulator.analysis.findings import Finding
from simulator.records import Blocked, PeerWait

Told = tuple[Blocked, Finding]
"""A wait, and the finding of which it is the first."""


def joined(told: Sequence[Told]) -> list[Finding]:
    """The findings; of those that are for as many sends as receives of one group and tag, one for all."""
    found: dict[int, Finding] = {}
    for index, (_, finding) in enumerate(told):
        alike = [number for number, other in enumerate(told) if _would_fit(told[index], other)]
        ops = [told[number][0].what.op for number in alike]  # type: ignore[attr-defined]
        if len(ops) < 2 or 2 * ops.count("send") != len(ops):
            found[index] = finding
        elif alike[0] == index:
            found[index] = _one([told[number] for number in alike])
    return list(found.values())


def _would_fit(one: Told, other: Told) -> bool:
    """Both wait for a rank that is gone, on one channel; each fits itself."""
    mine, theirs = one[0].what, other[0].what
    if not isinstance(mine, PeerWait) or not isinstance(theirs, PeerWait):
        return False
    if not (_is_alone(one) and _is_alone(other)):
        return False
    return (mine.group, mine.tag, mine.channel) == (theirs.group, theirs.tag, theirs.channel)


def _is_alone(told: Told) -> bool:
    """The rank that it waits for has ended, and nothing else is to be said."""
    return " ended without " in told[1].cause


def _one(told: Sequence[Told]) -> Finding:
    sends = [(wait, f) for wait, f in told if isinstance(wait.what, PeerWait) and wait.what.op == "send"]
    receives = [(wait, f) for wait, f in told if isinstance(wait.what, PeerWait) and wait.what.op == "recv"]
    sides = [side for role in ("waiting", "missing", "also waiting") for _, f in told for side in f.sides
             if side.role == role]  # fmt: skip
    deeds = [_deed(wait) for wait, _ in (*sends, *receives)]
    gone = listed(wait.what.peer for wait, _ in told if isinstance(wait.what, PeerWait))
    return replace(
        told[0][1],
        title=f"{' and '.join(text for text in dict.fromkeys(wait.text for wait, _ in told))} cannot complete",
        sides=tuple(sides),
        cause=f"{'; '.join(deeds)}; {gone} ended without answering; a send here and a receive would fit each other, "
        "so the number of a peer is wrong on one side",
        remedy="compare the peer numbers of the two sides: the sender's dst has to be the receiver's rank, the "
        "receiver's src the sender's",
    )


def _deed(wait: Blocked) -> str:
    what = wait.what
    assert isinstance(what, PeerWait)
    return f"rank {wait.rank} {'sends to' if what.op == 'send' else 'receives from'} rank {what.peer}"
