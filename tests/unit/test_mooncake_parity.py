"""The Mooncake model does what was recorded of the real backend; `make parity-mooncake` asks the real one itself."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.parity_mooncake.compare import compare
from tests.parity_mooncake.known import DIFFERENCES
from tests.parity_mooncake.records import Observed, Record, ended, from_json, load, save, to_json
from tests.parity_mooncake.scenario import Launch, Table
from tests.parity_mooncake.scenarios import scenarios
from tests.parity_mooncake.simulated import simulated

SCENARIOS = scenarios()
COMPARED = [name for name, scenario in SCENARIOS.items() if not scenario.races]
pytestmark = pytest.mark.filterwarnings("ignore")


@cache
def _recorded() -> dict[str, Observed]:
    return load()[0]


@pytest.mark.parametrize("name", COMPARED)
def test_simulated_ranks_see_what_real_ones_saw(name: str) -> None:
    """Values, masks, epochs, statuses, errors and times agree, but for differences that are documented."""
    found = compare(SCENARIOS[name], _recorded()[name], simulated(SCENARIOS[name])[0])
    assert not found.odd, "\n".join(odd.told for odd in found.odd)
    assert not found.stale, f"documented, and no difference any more: {found.stale}"


def test_the_record_holds_every_scenario_and_nothing_else() -> None:
    """A scenario that is new or changed in name has to be recorded; the versions are named."""
    recorded, versions = load()
    assert sorted(recorded) == sorted(COMPARED)
    assert set(versions) == {"date", "mooncake-transfer-engine", "torch"}


def test_documented_differences_belong_to_scenarios_and_stand_in_the_documentation() -> None:
    """Each has a scenario that is compared, and its reason is a line of docs/mooncake.md."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "mooncake.md").read_text().split())
    assert set(DIFFERENCES) <= set(COMPARED)
    for differences in DIFFERENCES.values():
        assert all(difference.reason in text for difference in differences)


def test_a_difference_of_value_of_time_or_of_end_is_seen() -> None:
    """The comparison itself can fail."""
    table = Table()
    table.add("one", lambda me: None, "One call.", (Launch(1),))
    scenario = table.scenarios["one"]
    real = {"0": [Record("sum", [3.0], 0.0), Record("end", "done", 0.0)]}
    assert compare(scenario, real, real).verdict == "agrees"
    for other in (
        [Record("sum", [4.0], 0.0), Record("end", "done", 0.0)],
        [Record("sum", [3.0], 20.0), Record("end", "done", 0.0)],
        [Record("sum", "hangs", 0.0)],
        [Record("mean", [3.0], 0.0), Record("end", "done", 0.0)],
        [],
    ):
        assert compare(scenario, real, {"0": other}).verdict == "differs"


def test_a_call_without_an_end_hangs_or_has_ended_the_process() -> None:
    """What a process wrote last tells how it ended."""
    begun = [{"name": "sum", "begins": True, "at_s": 0.0}]
    assert ended(begun, "hangs") == [Record("sum", "hangs", 0.0)]
    assert ended(begun, "SIGABRT: text") == [Record("sum", "SIGABRT: text", 0.0)]
    assert ended([], "SIGKILL") == [Record("end", "SIGKILL", 0.0)]
    assert Record("sum", "SIGABRT: text", 0.0).agrees(Record("sum", "SIGABRT", 0.0))


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Processes that saw the same share an entry; times below the class `at once` are left out."""
    saw = [Record("wait", True, 30.2), Record("end", "done", 0.0)]
    observed = {"0": saw, "1": list(saw), "2": [Record("end", "exit 7", 0.0)]}
    assert len(to_json(observed)) == 2 and from_json(json.loads(json.dumps(to_json(observed)))) == observed
    save({"dies": observed}, {"torch": "2"}, tmp_path / "observed.json")
    assert load(tmp_path / "observed.json") == ({"dies": observed}, {"torch": "2"})
