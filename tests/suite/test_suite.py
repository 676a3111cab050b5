"""A part of the suite in every run of the tests; `make suite` runs all of it, and prints how good the verdicts are."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.parity.real_ranks import real_ranks
from tests.parity.real_worker import Job, RankEnd
from tests.suite.answer import Answer, fewer, of_ends, of_findings
from tests.suite.catalogue import generated, patterns, suite
from tests.suite.corpus import corpus
from tests.suite.known_misses import KNOWN_MISSES
from tests.suite.label import CLASSES, Case, Label
from tests.suite.random_faults import random_cases
from tests.suite.run import FRAMEWORKS, label_doubts, simulated
from tests.suite.score import Result, Score, by_fault, table

pytestmark = pytest.mark.filterwarnings("ignore")
SCHEDULES = 12
"""Fewer than `make suite` tries."""


def smoke(klass: str = "") -> list[Case]:
    """One instance of each pattern with each backend, some random programs, and the corpus."""
    return [case for case in (*generated(seeds=1), *random_cases(4), *corpus()) if klass in ("", case.klass)]


# -- the programs --------------------------------------------------------------------------------------------------


def test_the_suite_is_as_large_and_as_mixed_as_it_claims() -> None:
    """At least 400 programs, at least half of them right, all classes, both backends, 2 to 8 ranks, no text twice."""
    cases = suite()
    right = sum(case.label.is_right for case in cases)
    assert len(cases) >= 400 and right >= 200 and 2 * right >= len(cases)
    assert {case.klass for case in cases} == set(CLASSES)
    assert {case.program.backend for case in cases} == {"gloo", "nccl"}
    assert {case.program.world_size for case in cases} == set(range(2, 9))
    assert len({case.name for case in cases}) == len(cases)
    assert len({case.program.source for case in cases}) >= 0.99 * len(cases)


def test_every_wrong_program_has_its_line_marked_and_no_right_one_has() -> None:
    """The label is in the text; all texts are Python."""
    for case in suite():
        assert bool(case.program.marked_lines) or case.label.is_right, case.name
        assert callable(case.program.main()), case.name
        assert set(case.label.ranks) | set(case.label.also) <= set(range(case.program.world_size)), case.name
        if case.klass not in ("corpus", "random"):
            assert bool(case.program.marked_lines) != case.label.is_right, case.name


def test_programs_follow_from_their_seed() -> None:
    """The same seed gives the same text; another one gives another."""
    pattern = next(pattern for pattern in patterns() if pattern.name == "swapped")
    texts = [pattern.cases("gloo", seed)[0].program.source for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


# -- the simulator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("klass", CLASSES)
def test_no_class_has_a_fault_that_is_not_known(klass: str) -> None:
    """What is not yet right stands in `known_misses`, by pattern; what has become right must be taken out there."""
    results = []
    for case in smoke(klass):
        found = simulated(case, SCHEDULES if case.label.explore else 1)
        results.append(Result(case, of_findings(found.findings, case.program)))
    faults = by_fault(results)
    known = {name for name in KNOWN_MISSES if name.startswith(f"{klass}-")}
    assert faults.keys() <= known, {name: fault for name, fault in faults.items() if name not in known}
    assert known <= faults.keys(), f"right by now, take them out of known_misses.py: {sorted(known - faults.keys())}"


@pytest.mark.gloo
def test_real_gloo_ends_the_right_programs_with_the_same_values() -> None:
    """Labels are not the simulator's word: a right program has to end on real gloo too (every second one, here)."""
    cases = [case for case in smoke() if case.real and case.label.is_right]
    cases = [case for case in cases if not any(word in case.program.source for word in FRAMEWORKS)][::2]
    with real_ranks(4) as ranks:
        ends = {job.program.name: ends for job, ends in ranks.run([Job(case.program, 30.0, 20.0) for case in cases])}
    doubts = []
    for case in cases:
        outcome = simulated(case, 1)
        doubts += label_doubts(case, ends[case.name], getattr(outcome, "outcome", outcome))
    assert doubts == []
    assert len(cases) >= 40


# -- how answers are judged ------------------------------------------------------------------------------------------


def test_the_fewer_are_to_blame() -> None:
    """One who is missing, one who waits alone; both sides if they are alike."""
    assert fewer([0, 1, 3], [2]) == (2,)
    assert fewer([3], [0, 1, 2]) == (3,)
    assert fewer([0], [1]) == (0, 1)
    assert fewer([0, 1], []) == (0, 1)


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        (Answer("deadlock", (2,), (7,)), []),
        (Answer("deadlock", (2, 3), (5, 7)), []),
        (Answer("mismatch", (2,), (7,)), ["kind"]),
        (Answer("deadlock", (3,), (7,)), ["ranks"]),
        (Answer("deadlock", (0, 2), (7,)), ["ranks"]),
        (Answer("deadlock", (2,), (8,)), ["line"]),
        (Answer("ok"), ["missed"]),
    ],
)
def test_an_answer_is_judged_by_kind_ranks_and_line(answer: Answer, faults: list[str]) -> None:
    """Rank 2 is to blame, rank 3 may be named, line 7 is marked."""
    assert answer.faults(Label(("deadlock",), (2,), (3,)), (7,)) == faults


def test_what_gloo_says_today_is_read_generously() -> None:
    """Who timed out, who hangs, who raised; a closed connection is a consequence."""
    closed = RankEnd("error", error="RuntimeError: Connection closed by peer", lines=(9,))
    late = RankEnd("error", error="RuntimeError: Timed out waiting 5000ms for recv operation", lines=(8,))
    assert of_ends({0: late, 1: late, 2: RankEnd("ok")}) == Answer("deadlock", (2,), (8,))
    assert of_ends({0: closed, 1: RankEnd("error", error="ValueError: x", lines=(3,))}) == Answer(
        "exception", (1,), (3,)
    )
    assert of_ends({0: RankEnd("ok"), 1: RankEnd("ok")}) == Answer("ok")
    assert of_ends({0: RankEnd("died"), 1: closed}).kind == "crash"


def test_scores_and_their_table() -> None:
    """Counts, shares, and a dash where there is nothing to divide by."""
    by_label = {case.label.is_right: case for case in smoke("buffering_hazard")}
    right, wrong = by_label[True], by_label[False]
    exact = Answer(wrong.label.kinds[0], wrong.label.ranks, wrong.program.marked_lines)
    results = [
        Result(right, Answer("ok")),
        Result(right, Answer("deadlock")),
        Result(wrong, exact),
        Result(wrong, Answer("race")),
        Result(wrong, Answer("ok")),
    ]
    score = Score.of(results)
    assert (score.right, score.wrong, score.alarms, score.found, score.strict) == (2, 3, 1, 2, 1)
    assert (score.precision, score.recall, score.strict_recall) == (2 / 3, 2 / 3, 1 / 3)
    assert table("t", results).splitlines()[-1].split() == ["all", "2", "3", "1", "1", "0.667", "0.667", "0.333"]
    assert table("t", results[:1]).splitlines()[-1].split()[-3:] == ["-", "-", "-"]
    assert Counter(fault for result in results for fault in result.faults)["false alarm"] == 1
