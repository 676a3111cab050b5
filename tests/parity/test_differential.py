"""Random programs end alike on simulated ranks and on real gloo; `make parity` runs many more."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.parity.compare import real, simulated
from tests.parity.differential import compared
from tests.parity.faults import FAULTS
from tests.parity.plan_text import program_of
from tests.parity.program import Program, module_text
from tests.parity.random_programs import random_plan
from tests.parity.real_ranks import RealRanks, real_ranks
from tests.parity.real_worker import Job

PROGRAMS = 60
pytestmark = [pytest.mark.gloo, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[RealRanks]:
    """Real processes, several programs side by side."""
    with real_ranks(8) as found:
        yield found


def test_random_programs_end_alike(ranks: RealRanks) -> None:
    """Right ones and wrong ones: `ok` with the same values, a hang, or an error."""
    found = list(compared([random_plan(seed) for seed in range(PROGRAMS)], ranks))
    counts = Counter(comparison.real.what for comparison in found)
    assert len(found) == PROGRAMS
    assert counts["ok"] >= 20 and counts["hang"] >= 10, counts
    assert not [comparison.told() for comparison in found if not comparison.agrees]


def test_every_fault_is_made_and_no_plan_is_made_twice() -> None:
    """The generator covers what it claims to; equal seeds give equal texts."""
    plans = [random_plan(seed) for seed in range(400)]
    assert len({program_of(plan).source.split("\n", 1)[1] for plan in plans}) == len(plans)
    assert program_of(random_plan(7)) == program_of(plans[7])
    told = ("leaves out", "swaps", "returns after", "twice", "does not create", "instead of", "tag")
    assert all(any(word in plan.fault for plan in plans) for word in told)
    assert 100 < sum(bool(plan.fault) for plan in plans) < 300
    assert len(FAULTS) >= 10


ROOT_BY_LUCK = """
def main(rank, world_size):
    dist.init_process_group("gloo")
    x = torch.full((3,), float(rank))
    dist.broadcast(x, src=2 if rank == 0 else 1)
    return x.tolist()
"""


def test_a_wrong_root_may_go_well_on_gloo_by_its_tree(ranks: RealRanks) -> None:
    """Limit: rank 0 takes rank 2 for the root, and gets rank 1's data through it. Here it is a mismatch."""
    program = Program("root_by_luck", module_text("A wrong root.", ROOT_BY_LUCK), 4)
    mine, outcome = simulated(program)
    ((_, ends),) = ranks.run([Job(program, 10.0)])
    assert (outcome.verdict, mine.what) == ("mismatch", "hang")
    assert real(ends).values == {rank: [1.0, 1.0, 1.0] for rank in range(4)}


EARLY = """
def main(rank, world_size):
    dist.init_process_group("gloo")
    parts = [torch.zeros(1) for _ in range(3)] if rank == 0 else None
    x = torch.full((1,), float(rank))
    if rank == 2:
        dist.recv(x, src=1)
    dist.gather(x, parts, dst=0)
    if rank == 1:
        dist.send(x + 10, dst=2)
    return [part.item() for part in parts or ()]
"""


def test_who_leaves_a_gather_early_is_let_go_with_a_warning(ranks: RealRanks) -> None:
    """gloo lets rank 1 go once the root is there; rank 2 comes only then. The values are the real ones."""
    program = Program("early", module_text("An early exit.", EARLY), 3)
    mine, outcome = simulated(program)
    ((_, ends),) = ranks.run([Job(program, 10.0)])
    assert mine.agrees(real(ends)) and mine.values[0] == [0.0, 1.0, 11.0]
    assert [(f.level, f.warning, f.ranks("left"), f.ranks("late")) for f in outcome.findings] == [
        ("contract", True, (1,), (2,))
    ]


def test_a_hang_leaves_no_process_behind() -> None:
    """Ranks that hang are killed, and all end with their server."""
    source = ROOT_BY_LUCK.replace("dist.broadcast(x, src=2 if rank == 0 else 1)", "dist.barrier() if rank else None")
    program = Program("hang", module_text("A hang.", f"import os\n{source.replace('x.tolist()', 'os.getpid()')}"), 2)
    right = Program("pid", program.source.replace("if rank else None", ""), 2)
    with real_ranks(1) as ranks:
        (_, first), (_, second) = ranks.run([Job(right, 20.0), Job(program, 1.0)])
    assert [end.status for end in second.values()] == ["ok", "hung"]
    for end in (*first.values(), second[0]):
        with pytest.raises(ProcessLookupError):
            os.kill(end.value, 0)
