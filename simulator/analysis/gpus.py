"""Two ranks of one `nccl` communicator on the same simulated GPU."""

from __future__ import annotations

from typing import Any

from simulator.analysis.facts import by_stack, listed, notes_of
from simulator.analysis.findings import Certainty, Finding, Level, Side, Verdict
from simulator.records import GroupView, Note, RankRecord, Records

KIND = "duplicate_gpu"


def shared_gpus(records: Records) -> list[Finding]:
    """One finding for each group and GPU that several of its ranks have brought."""
    together: dict[tuple[GroupView, tuple[int, int]], list[Note]] = {}
    for note in notes_of(records, KIND):
        together.setdefault((note.facts["group"], note.facts["mine"].place), []).append(note)
    return [_shared(group, place, notes) for (group, place), notes in together.items()]


def refused_ranks(records: Records) -> set[int]:
    """Those that NCCL has told of it."""
    return {note.rank for note in notes_of(records, KIND)}


def was_refused(record: RankRecord, records: Records) -> bool:
    """The rank ended with what NCCL says of such a GPU, which is a finding of its own."""
    return record.error_type == "DistBackendError" and record.rank in refused_ranks(records)


def _shared(group: GroupView, place: tuple[int, int], notes: list[Note]) -> Finding:
    claims: dict[int, Any] = {}
    for note in notes:
        for claim in (note.facts["other"], note.facts["mine"]):
            claims[claim.rank] = claim
    forgot = [claim.rank for claim in claims.values() if not claim.was_set]
    ranks = listed(sorted(claims))
    cause = f"{ranks} of group '{group.label}' use one GPU, and NCCL refuses that: Duplicate GPU detected"
    remedy = "let each rank of a node use a GPU of its own"
    if forgot:
        cause = (
            f"{listed(sorted(forgot))} never called torch.cuda.set_device, so 'cuda' is cuda:0; "
            "NCCL refuses two ranks on one GPU"
        )
        remedy = "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first tensor on 'cuda'"
    stacks = {rank: claim.stack for rank, claim in sorted(claims.items())}
    doing = {rank: f"uses its cuda:{claim.index}" for rank, claim in claims.items()}
    sides: tuple[Side, ...] = tuple(
        side
        for text in dict.fromkeys(doing[rank] for rank in sorted(doing))
        for side in by_stack("gave", text, {rank: stacks[rank] for rank in stacks if doing[rank] == text})
    )
    return Finding(
        kind=Verdict.WRONG_DEVICE,
        level=Level.TORCH,
        certainty=Certainty.CAUSE,
        title=f"{ranks} share GPU {place[1]} of node{place[0]} in group '{group.label}'",
        group=group.label,
        group_ranks=group.ranks,
        sides=sides,
        cause=cause,
        remedy=remedy,
        time_s=notes[0].time_s,
    )
