"""The main job: the joiner deadlock and the probe, before and after their repair."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import refimpl.distributed.group as group_module
from simulator import Cluster, Verdict
from simulator.scenarios import demo
from simulator.scenarios.scale_up import scale_up
from simulator.scenarios.start_up import start_up


def test_the_first_report_says_who_waits_for_whom_where_why_and_what_to_do() -> None:
    """Ranks 4 and 5 wait, ranks 0 to 3 are missing; the group, the line, cause and remedy; both levels."""
    finding = scale_up("before-repair").findings[0]
    assert (finding.kind, finding.level, finding.certainty) == (Verdict.DEADLOCK, "contract", "cause")
    assert (finding.waiting, finding.missing) == ((4, 5), (0, 1, 2, 3))
    assert (finding.group, finding.group_ranks) == ("tp:device", (4, 5))
    assert "use_local_synchronization=True" in finding.remedy
    assert "ranks 4, 5 joined later" in finding.cause
    assert "no barrier after new_group" in finding.at_other_level
    assert "Mooncake runs it alone" in finding.at_other_level
    assert "ranks 4, 5 would pass the store barrier too, by the stale key of the group that ranks 0-3 made" in (
        finding.at_other_level
    )


def test_the_line_is_that_of_the_new_group_call_in_the_reference_implementation() -> None:
    """A user can go there."""
    site = scale_up("before-repair").findings[0].sides[0].site
    assert site is not None
    assert site.file == group_module.__file__
    assert "dist.new_group(" in Path(site.file).read_text().splitlines()[site.line - 1]


def test_the_store_barrier_lets_the_joiners_pass_by_a_stale_key() -> None:
    """As measured on the real backend: the serving ranks' group of that name has left its key behind."""
    outcome = scale_up("before-repair", env={"TORCH_DIST_INIT_BARRIER": "1"})
    assert outcome.findings[0].waiting == (4, 5)
    assert [f.kind for f in outcome.findings if f.level == "torch"] == [Verdict.WRONG_RANKS, Verdict.EXCEPTION]


def test_without_a_stale_key_the_store_barrier_holds_the_joiners() -> None:
    """The serving ranks have made no group yet, so nobody has left a key behind."""

    def start(rank: int, world_size: int, joins: bool) -> None:
        from mooncake import pg

        options = pg.MooncakeBackendOptions(torch.ones(8, dtype=torch.int32), joins, 8)
        dist.init_process_group("mooncake-cpu", rank=rank, world_size=world_size, pg_options=options)
        if joins:
            os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
            dist.new_group([4, 5], pg_options=pg.MooncakeBackendOptions(torch.ones(2, dtype=torch.int32), True))

    cluster = Cluster().launch(start, ranks=4, args=(4, False))
    outcome = cluster.join(start, ranks=2, rank_offset=4, args=(6, True), at_s=1.0).run()
    torch_level = [f for f in outcome.findings if f.kind is Verdict.DEADLOCK and f.level == "torch"]
    assert [f.waiting for f in torch_level] == [(4, 5)]
    assert "store barrier" in torch_level[0].title


def test_the_groups_that_run_alone_and_those_that_lack_the_offset_are_named() -> None:
    """The true effect of recovered_rank=True, and the two forgotten sub-groups."""
    outcome = scale_up("before-repair")
    wrong = [f for f in outcome.findings if f.kind is Verdict.WRONG_RANKS]
    assert [f.group for f in wrong] == ["self_pp:device", "world:device"]


def test_after_the_repair_all_six_ranks_meet() -> None:
    """Nothing is found, and the sum over WORLD counts every rank."""
    outcome = scale_up("repaired")
    assert (outcome.verdict, outcome.findings) == (Verdict.OK, ())
    assert outcome.results == dict.fromkeys(range(6), 6.0)


def test_the_unguarded_probe_is_flagged_and_the_others_go_on_without_the_one_that_crashed() -> None:
    """One rank dies as by SIGSEGV; Mooncake lets the three others go on with their own data, and nobody asks."""
    outcome = start_up(guard=False)
    kinds = [f.kind for f in outcome.findings]
    assert kinds[:2] == [Verdict.UNNEEDED_PROBE, Verdict.CRASH] and set(kinds[2:]) == {Verdict.WRONG_RANKS}
    assert [r.exit_code for r in outcome.ranks.values()].count(-11) == 1
    assert all(len(finding.ranks("went on")) == 3 for finding in outcome.findings[2:])


@pytest.mark.parametrize(("crash", "dead"), [("none", 0), ("all", 4)])
def test_the_modelled_crash_is_configurable(crash: str, dead: int) -> None:
    """`none` shows the probe alone, `all` kills every rank."""
    outcome = start_up(guard=False, probe_crash=crash)
    assert [r.status for r in outcome.ranks.values()].count("crash") == dead
    assert outcome.verdict is Verdict.UNNEEDED_PROBE


def test_the_guard_keeps_multimem_and_asks_nothing() -> None:
    """On one node nothing is probed; on two the probe runs and is right."""
    assert start_up(guard=True).findings == ()
    two_nodes = start_up(guard=True, nodes=2)
    assert two_nodes.findings == ()
    assert two_nodes.results[0] == [0.0, 1.0, 2.0, 3.0]


def test_the_demo_prints_four_reports_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Its exit code says whether every verdict was the expected one."""
    assert demo.main([]) == 0
    out = capsys.readouterr().out
    assert out.index("waiting: ranks 4, 5") < out.index("2. the same, by the repaired rules")
    assert out.count("hangcheck: ") == 4
    assert "UNEXPECTED" not in out


def test_the_demo_has_a_form_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON document, nothing else."""
    assert demo.main(["--json"]) == 0
    acts = json.loads(capsys.readouterr().out)
    assert [act["verdict"] for act in acts] == ["deadlock", "ok", "unneeded_probe", "ok"]
