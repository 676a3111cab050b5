"""How faults are written: the text form, its errors, and that it reads back."""

from __future__ import annotations

import random

import pytest

from simulator import Cluster, ClusterOptions, UsageError, simulate
from simulator.faults import Fault, described, fault_of
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.fault import parameters, usage
from simulator.faults.stores import give_up_s, retry_s
from simulator.faults.values import (
    Chance,
    CohortName,
    Count,
    How,
    Moment,
    Node,
    Offset,
    Ranks,
    Rate,
    Seconds,
    StoreOperation,
    read_seconds,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("kill rank=2 at=2.5s", "kill rank=2 at=2.5s"),
        ("kill at=2500ms rank=2", "kill rank=2 at=2.5s"),
        ("kill rank=2 at=call#7", "kill rank=2 at=call#7"),
        ("kill rank=2 at=allreduce#3", "kill rank=2 at=all_reduce#3"),
        ("kill rank=2 at=all_gather_into_tensor#1", "kill rank=2 at=all_gather#1"),
        ("kill rank=0,4,3,5 at=isend#1 how=raise", "kill rank=0,3-5 at=send#1 how=raise"),
        ("kill rank=any at=1s restart=2min", "kill rank=any at=1s restart=120s"),
        ("slow rank=1 by=50ms chance=0.25 until=1h", "slow rank=1 by=0.05s chance=0.25 until=3600s"),
        ("skew rank=1-3 by=-3s drift=100ppm", "skew rank=1-3 by=-3s drift=100ppm"),
        ("store_delay by=1s op=get calls=2", "store-delay by=1s op=get calls=2"),
        ("store-loss times=3 rank=1", "store-loss times=3 rank=1"),
        ("store-end at=1s", "store-end at=1s"),
        ("late cohort=scale-1 by=5s", "late by=5s cohort=scale-1"),
        ("cut node=1 since=2s until=10s", "cut node=1 since=2s until=10s"),
    ],
)
def test_a_fault_is_printed_in_one_form(text: str, canonical: str) -> None:
    """Whatever spelling, unit or order it was written in; and that form reads back."""
    fault = Fault.parse(text)
    assert str(fault) == canonical
    assert Fault.parse(canonical) == fault


def _drawn(kind: type, rng: random.Random) -> object:
    """Some value of a kind."""
    span = rng.choice([rng.uniform(0, 1e-4), rng.uniform(0, 1e6), float(rng.randrange(100))])
    return {
        Seconds: Seconds(span),
        Offset: Offset(-span),
        Chance: Chance(rng.uniform(1e-9, 1)),
        Rate: Rate(rng.uniform(-900, 900)),
        Count: Count(rng.randrange(1, 99)),
        Node: Node(rng.randrange(9)),
        How: rng.choice(list(How)),
        Ranks: Ranks(sorted(rng.sample(range(12), rng.randrange(6)))),
        CohortName: CohortName(rng.choice(["launch", "scale-1", "recover-12"])),
        StoreOperation: StoreOperation(rng.choice(["get", "compare_set"])),
        Moment: rng.choice([Moment(span), Moment(None, "call", 7), Moment(None, "all_to_all", rng.randrange(1, 50))]),
    }[kind]


@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_fault_reads_back_from_its_text(kind: str) -> None:
    """Two hundred drawn ones of each kind, with and without what may be left out."""
    rng = random.Random(kind)
    for _ in range(200):
        taken = [p for p in parameters(kind) if p.required or rng.random() < 0.5]
        fault = Fault(kind, {p.name: _drawn(p.kind, rng) for p in taken})
        assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "zap rank=2",
            "fault 'zap rank=2': give one of kill, slow, skew, store-delay, store-loss, store-end, late, early, "
            "missing, cut, as in 'kill rank=2 at=all_reduce#3'",
        ),
        (
            "kill rank=2",
            "fault 'kill rank=2': at is missing; write kill rank=RANKS at=MOMENT [how=kill|raise] [restart=TIME]",
        ),
        (
            "kill rank=2 when=2s",
            "fault 'kill rank=2 when=2s': 'when=2s' does not fit; write "
            "kill rank=RANKS at=MOMENT [how=kill|raise] [restart=TIME]",
        ),
        (
            "kill rank=2 rank=3 at=2s",
            "fault 'kill rank=2 rank=3 at=2s': 'rank=3' does not fit; write "
            "kill rank=RANKS at=MOMENT [how=kill|raise] [restart=TIME]",
        ),
        (
            "kill rank=2 at=2",
            "fault 'kill rank=2 at=2': at=2: give a time (2.5s), the nth call (call#7), or the nth of its kind "
            "(all_reduce#3); kinds: all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, "
            "reduce_scatter, scatter, send, recv, create, store",
        ),
        (
            "kill rank=two at=2s",
            "fault 'kill rank=two at=2s': rank=two: give ranks, such as 2 or 0,3-5, or any for one that the seed "
            "chooses",
        ),
        (
            "slow rank=1 by=-1s",
            "fault 'slow rank=1 by=-1s': by=-1s: give a time with its unit, such as 2.5s, 50ms or 2min",
        ),
        (
            "slow rank=1 by=1s chance=0",
            "fault 'slow rank=1 by=1s chance=0': chance=0: give a probability above 0 and up to 1, such as 0.1",
        ),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_what_would_do(text: str, message: str) -> None:
    """One line: what was given, what to give."""
    with pytest.raises(UsageError) as caught:
        Fault.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    ["", "kill rank=3-1 at=1s", "kill rank=1 at=all_reduce#0", "kill rank=1 at=foo#1", "kill rank=-1 at=1s",
     "kill rank=99999999 at=1s", "kill rank=1 at=nans", "skew rank=1 drift=-1000000ppm", "skew rank=1 drift=5",
     "store-loss times=0", "store-delay by=1s op=fly", "late cohort=ranks by=1s", "cut node=x", "kill rank=1 at=infs"],
)  # fmt: skip
def test_more_texts_that_do_not_fit(text: str) -> None:
    """No other exception than a UsageError."""
    with pytest.raises(UsageError, match="give|write"):
        Fault.parse(text)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (["kill rank=7 at=1s"], "fault 'kill rank=7 at=1s': there is no rank 7; give ranks up to 1"),
        (["cut node=3"], "fault 'cut node=3': there is no node 3; give a node up to 0"),
        (["skew rank=1"], "fault 'skew rank=1': give by, drift, or both"),
        (["late by=1s"], "fault 'late by=1s': give either rank or cohort"),
        (
            ["slow rank=1 by=1s since=3s until=2s"],
            "fault 'slow rank=1 by=1s since=3s until=2s': it ends before it begins; give an until behind since",
        ),
        (
            ["kill rank=1 at=1s how=raise restart=1s"],
            "fault 'kill rank=1 at=1s how=raise restart=1s': restart goes with how=kill; after an exception the code "
            "decides",
        ),
        ("kill rank=1 at=1s", "faults='kill rank=1 at=1s': give a list of faults, such as ['kill rank=2 at=2.5s']"),
        ([3], "fault 3: give a text such as 'kill rank=2 at=2.5s', or a function"),
    ],
)
def test_what_cannot_be_in_this_cluster_is_refused(faults: object, message: str) -> None:
    """Before a rank runs."""
    with pytest.raises(UsageError) as caught:
        simulate(lambda rank: rank, 2, faults=faults)
    assert str(caught.value) == message


def test_when_faults_stop_is_a_time() -> None:
    """Not below 0, and with a unit where it is a text."""
    with pytest.raises(UsageError, match="faults_stop_at_s=-1: give a number of virtual seconds, 0 or more, or None"):
        ClusterOptions(faults_stop_at_s=-1)
    assert read_seconds("2min") == 120.0
    with pytest.raises(UsageError, match="'30': give a time with its unit, such as 2.5s, 50ms or 2min"):
        read_seconds("30")


def test_a_cluster_takes_faults_one_by_one() -> None:
    """Texts, faults and functions; it returns itself."""
    fault = Fault.parse("slow rank=1 by=1s")
    cluster = Cluster().fault("kill rank=1 at=9s").fault(fault)
    assert cluster.options.faults == ("kill rank=1 at=9s", fault)
    assert fault_of(fault) is fault
    with pytest.raises(UsageError, match="fault 'zap'"):
        Cluster().fault("zap")


def test_every_fault_says_how_it_is_written_and_what_it_does() -> None:
    """As `hangcheck faults` prints it."""
    listed = dict(described())
    assert list(listed) == [usage(kind) for kind in CATALOGUE]
    assert all(text.endswith(".") and len(text) > 40 for text in listed.values())


def test_a_lost_request_is_sent_again_as_linux_does() -> None:
    """After 0.2 s and twice as long each time; after 15 tries, 924.6 s in all, the connection is given up."""
    assert [round(retry_s(lost), 9) for lost in (0, 1, 2, 3, 9)] == [0, 0.2, 0.6, 1.4, 102.2]
    assert round(give_up_s(), 9) == 924.6
    assert retry_s(16) == float("inf")
