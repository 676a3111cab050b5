"""What a report says of injected faults: which struck, when and where, and which did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.analysis.facts import listed

if TYPE_CHECKING:
    from simulator.records import InjectedFault


def render_faults(faults: Sequence[InjectedFault], end_s: float | None) -> str:
    """One block: a fault, and below it what came of it."""
    head = "faults injected:" if end_s is None else f"faults injected (until {end_s:g} s):"
    lines = [head]
    for fault in faults:
        lines += [f"  {fault.text}", f"    {_what_came(fault)}"]
    return "\n".join(lines)


def _what_came(fault: InjectedFault) -> str:
    first = fault.first
    if first is None:
        return f"never struck: {fault.why_not}"
    who = f"rank {first.rank} " if first.rank >= 0 else ""
    place = f", {first.stack[0].place}" if first.stack else ""
    more = "" if fault.count == 1 else f"; {fault.count} times in all, on {listed(fault.ranks)}"
    more = more if fault.ranks else more.partition(", on")[0]
    spent = f"; {fault.spent_s:g} s lost" if fault.spent_s else ""
    return f"struck {who}at {first.time_s:g} s: {first.text}{place}{more}{spent}"


def faults_data(faults: Sequence[InjectedFault]) -> list[dict[str, Any]]:
    """Plain data for JSON."""
    return [
        {
            "fault": fault.text,
            "strikes": fault.count,
            "ranks": list(fault.ranks),
            "first": None
            if fault.first is None
            else {"rank": fault.first.rank, "time_s": fault.first.time_s, "doing": fault.first.text},
            "spent_s": fault.spent_s,
            "why_not": fault.why_not,
        }
        for fault in faults
    ]
