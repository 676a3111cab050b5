"""Symmetric memory: buffers that do not fit together. (Races and deadlocks over it: elsewhere.)"""

from __future__ import annotations

from simulator.analysis.buffer_order import disorders, order_of
from simulator.analysis.facts import spelled
from simulator.analysis.findings import Finding, Level
from simulator.analysis.rendezvous import Key, Row, complete, finding_on, key_of, sides_of, title_of
from simulator.analysis.signal_pads import shared_pads, small_pads, without_multicast
from simulator.memory_records import MemoryLog, Offer, Rendezvous
from simulator.records import Records


def symmetric_memory(records: Records) -> list[Finding]:
    """Everything that is wrong with how ranks share memory, but for races and deadlocks."""
    log = records.memory
    return [
        *_refused(log),
        *small_pads(records),
        *without_multicast(records),
        *_unlike(log),
        *disorders(log),
        *_multicast_differs(log),
        *shared_pads(log),
    ]


def _tensor(offer: Offer) -> str:
    return f"{offer.nbytes} bytes, {offer.dtype} {list(offer.shape)}"


_REFUSALS: dict[str, tuple[str, Row, str, str, str]] = {
    "sizes": (
        "the buffers differ in size",
        _tensor,
        "the n-th buffers that the ranks bring to a group become one, and these differ",
        "allocate buffers of one size on all ranks, and bring them to the group in one order",
        "torch compares the sizes and raises on all ranks",
    ),
    "pads": (
        "the signal pads differ in size",
        lambda offer: f"a signal pad of {offer.pad_bytes} bytes",
        "set_signal_pad_size was given other values on other ranks, or was called after the allocation on some",
        "call set_signal_pad_size with one value on all ranks, before the first buffer is allocated",
        "torch 2.14 compares where the buffer begins behind its pad, and raises; older ones notice nothing",
    ),
    "devices": (
        "ranks of one node gave the same device",
        lambda offer: f"{offer.device or 'its own device'} of node {offer.node}",
        "torch refuses ranks of one host that share a device",
        "give each rank of a node a device of its own, such as torch.device('cuda', local_rank)",
        "torch compares host names and device numbers and raises on all ranks",
    ),
    "nodes": (
        "the group spans nodes",
        lambda offer: f"a buffer on node {offer.node}",
        "memory handles are file descriptors here, which do not leave a node",
        "use symmetric memory in groups of one node, and collectives across nodes",
        "a rank whose neighbour is on another node raises `Failed to send fd`, and the others wait for it; where one "
        "NVLink domain spans the nodes (fabric handles), it works",
    ),
}


def _refused(log: MemoryLog) -> list[Finding]:
    """The first refused rendezvous of each group."""
    first: dict[Key, Rendezvous] = {}
    for meeting in log.meetings:
        if meeting.refused:
            first.setdefault(key_of(meeting), meeting)
    return [_refusal(log, meeting) for meeting in first.values()]


def _refusal(log: MemoryLog, meeting: Rendezvous) -> Finding:
    text, row, cause, remedy, real = _REFUSALS[meeting.refused]
    order = order_of(log, [m for m in complete(log) if key_of(m) == key_of(meeting)])
    told = f"; {order.sentence}" if order is not None and meeting.refused == "sizes" else ""
    sides = sides_of(log, meeting, row, at_call=meeting.refused == "nodes")
    return finding_on(meeting, f"{title_of(meeting)}: {text}", sides, cause + told, remedy, real)


def _unlike(log: MemoryLog) -> list[Finding]:
    """Tensors of one size and another shape or type."""
    found = []
    for meeting in complete(log):
        offers = list(meeting.offers.values())
        if not meeting.refused and len({(offer.shape, offer.dtype) for offer in offers}) > 1:
            found.append(
                finding_on(
                    meeting,
                    f"{title_of(meeting)}: the tensors differ in shape or type",
                    sides_of(log, meeting, _tensor),
                    "the buffers have one size in bytes, but not one meaning",
                    "bring tensors of one shape and type to a rendezvous",
                    "torch asks for it and compares bytes only",
                    level=Level.CONTRACT,
                )
            )
    return found


def _multicast_differs(log: MemoryLog) -> list[Finding]:
    found: dict[Key, Finding] = {}
    for meeting in complete(log):
        if key_of(meeting) not in found and len({offer.multicast for offer in meeting.offers.values()}) > 1:
            found[key_of(meeting)] = finding_on(
                meeting,
                f"group '{meeting.label}' {spelled(meeting.ranks)}: some of its ranks have multicast turned off",
                sides_of(
                    log, meeting, lambda o: "multicast" if o.multicast else "TORCH_SYMM_MEM_DISABLE_MULTICAST=1",
                    at_call=True,
                ),
                "has_multicast_support() is not the same on all ranks, so that ranks that ask it take different paths",
                "set TORCH_SYMM_MEM_DISABLE_MULTICAST alike on all ranks",
                "torch warns and turns multicast off for the group: multicast_ptr is 0 on all of its ranks",
                level=Level.CONTRACT,
            )  # fmt: skip
    return list(found.values())
