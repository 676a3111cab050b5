"""What a rank's role forbids: joiners whose groups reach too far or run alone, and probes that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.analysis.facts import RunFacts, by_stack, listed, notes_of, some, spelled
from simulator.analysis.findings import Certainty, Finding, Level, Verdict
from simulator.records import Note, Records


def wrong_ranks(records: Records, facts: RunFacts) -> list[Finding]:
    """Joiners whose groups reach outside their cohort, and groups that silently run alone."""
    alone = [] if alone_in_world(records) else _alone(notes_of(records, "local_only"))
    return [*_outside(records, facts), *alone, *_wrong_options(records)]


def alone_in_world(records: Records) -> list[Finding]:
    """The default group of a rank runs alone, which explains whatever it does later."""
    notes = notes_of(records, "local_only")
    return _alone(notes) if notes and notes[0].facts["group"].label == "WORLD" else []


def _outside(records: Records, facts: RunFacts) -> list[Finding]:
    by_cohort: dict[str, list[Note]] = {}
    for note in notes_of(records, "outside_cohort"):
        by_cohort.setdefault(note.facts["cohort"], []).append(note)
    return [_outside_of(notes, *facts.cohorts[cohort]) for cohort, notes in by_cohort.items()]


def _outside_of(notes: Sequence[Note], kind: str, mine: Sequence[int]) -> Finding:
    desc, ranks, outside = (notes[0].facts[name] for name in ("desc", "ranks", "outside"))
    same = {n.rank: n.stack for n in notes if (n.facts["desc"], n.facts["ranks"]) == (desc, ranks)}
    groups = sorted({n.facts["desc"] for n in notes})
    shifted = all(rank + min(mine) in mine for rank in ranks)
    callers = sorted(same)
    verb_of = "creates" if len(callers) == 1 else "create"
    if kind == "scale":
        verb = "does" if len(outside) == 1 else "do"
        cause = (
            f"the list names {listed(outside)}, launched before, which {verb} not create it: it lies outside the "
            f"joiners, {listed(mine)}" + (f", as a list that lacks rank_offset={min(mine)} does" if shifted else "")
        )
        remedy = "pass rank_offset on to this sub-group, so that its lists are those of the launch, shifted"
        remedy += "" if shifted else ", and give every joiner the same lists"
    else:
        cause = f"the list names none of the ranks that were launched together ({listed(mine)}): a rank_offset above 0 "
        cause += "on ranks that do not join"
        remedy = "use rank_offset=0 for every rank that is launched or recovers; only a scale joiner has an offset"
    return Finding(
        kind=Verdict.WRONG_RANKS,
        level=Level.CONTRACT,
        certainty=Certainty.CAUSE,
        title=f"{listed(callers)} {verb_of} group '{desc}' {spelled(ranks)}, which reaches outside their cohort"
        + (f" (groups: {some(groups)})" if len(groups) > 1 else ""),
        group=desc,
        group_ranks=ranks,
        sides=tuple(by_stack("creating", f"new_group({spelled(ranks)})", same)),
        cause=cause,
        remedy=remedy,
        at_other_level="a rank that is in none of its lists gets None or the non-member constant from new_group, and a "
        "later collective on it runs on WORLD or does nothing",
    )


def _alone(notes: Sequence[Note]) -> list[Finding]:
    if not notes:
        return []
    first = notes[0]
    group = first.facts["group"]
    labels = list(dict.fromkeys(note.facts["group"].label for note in notes))
    same = {n.rank: n.stack for n in notes if n.facts["group"].label == group.label}
    return [
        Finding(
            kind=Verdict.WRONG_RANKS,
            level=Level.TORCH,
            certainty=Certainty.CAUSE,
            title=f"group '{group.label}' {spelled(group.ranks)} silently runs alone on each of its ranks"
            + (f" ({len(labels)} groups: {some(labels)})" if len(labels) > 1 else ""),
            group=group.label,
            group_ranks=group.ranks,
            sides=tuple(by_stack("alone", _call(first), same)),
            cause=_why_alone(first) + "; Mooncake then falls back to local-only execution",
            remedy=_how_to_attach(first),
            at_other_level=f"{_call(first)} returns without an error and every collective gives the rank its own data "
            "back",
        )
    ]


def _is_world(note: Note) -> bool:
    return bool(note.facts["group"].label == "WORLD")


def _call(note: Note) -> str:
    return "init_process_group" if _is_world(note) else f"new_group({spelled(note.facts['group'].ranks)})"


def _why_alone(note: Note) -> str:
    others, capacity = note.facts["others"], note.facts["capacity"]
    if others:
        have = " or ".join(str(other) for other in others)
        return f"it was created with is_extension and max_group_size {capacity}, and the group to attach to has {have}"
    return (
        f"it was created with is_extension, and no group of that name, with these first ranks and capacity {capacity}, "
        "exists to attach to"
    )


def _how_to_attach(note: Note) -> str:
    others = note.facts["others"]
    if others:
        return f"give max_group_size {others[0]}, as the group to attach to has"
    if _is_world(note):
        return (
            "let the serving ranks create WORLD first, as the first ranks of this one and with the same max_group_size"
        )
    return (
        "create it without is_extension (SGLang: recovered_rank=False), or create the group to attach to first, with "
        "the same max_group_size (SGLang: max_world_size)"
    )


_OPTION_FAULTS = {
    "not_attached": (
        "it was created without is_extension (SGLang: recovered_rank=False): serving ranks would create it again",
        "create this sub-group of a recovering joiner with is_extension (SGLang: pass recovered_rank on to it)",
    ),
    "reserves": (
        "only WORLD grows in a scale-up; a joiner's other groups are fixed to its cohort",
        "give the model-parallel groups of a scale joiner no max_group_size (SGLang: max_world_size=None)",
    ),
}


def _wrong_options(records: Records) -> list[Finding]:
    """Mooncake options that do not go with the joiner's role."""
    findings = []
    for kind, (cause, remedy) in _OPTION_FAULTS.items():
        notes = notes_of(records, kind)
        if not notes:
            continue
        group = notes[0].facts["group"]
        labels = list(dict.fromkeys(note.facts["group"].label for note in notes))
        same = {n.rank: n.stack for n in notes if n.facts["group"].label == group.label}
        findings.append(
            Finding(
                kind=Verdict.WRONG_RANKS,
                level=Level.CONTRACT,
                certainty=Certainty.CAUSE,
                title=notes[0].text + (f" (groups: {some(labels)})" if len(labels) > 1 else ""),
                group=group.label,
                group_ranks=group.ranks,
                sides=tuple(by_stack("gave", f"new_group({spelled(group.ranks)})", same)),
                cause=cause,
                remedy=remedy,
                at_other_level="the installed torch and Mooncake do not check this",
            )
        )
    return findings


def probes(records: Records, facts: RunFacts) -> list[Finding]:
    """Topology probes on a cluster of one node."""
    notes = notes_of(records, "probe")
    if not notes:
        return []
    stacks = {note.rank: note.stack for note in notes}
    return [
        Finding(
            kind=Verdict.UNNEEDED_PROBE,
            level=Level.CONTRACT,
            certainty=Certainty.CAUSE,
            title=f"{notes[0].text} runs although the cluster has one node",
            sides=tuple(by_stack("probing", notes[0].text, stacks)),
            cause="the probe is a collective on the CPU group, and on one node its answer is known beforehand",
            remedy="ask first whether the group has more than one rank and then whether the deployment has more than "
            "one node, in that order, and probe only then",
        )
    ]
