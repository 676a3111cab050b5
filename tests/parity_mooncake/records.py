"""Records of one process, as plain data: what it called, what came of it, how many seconds it took.

A call without an end hangs, or has ended the process. The file of recorded real behaviour is written and read here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OBSERVED = Path(__file__).with_name("observed.json")
NOTED_S = 1.0
AT_ONCE_S = 3.0
START_S = 6.0
"""To start or to join takes real processes seconds on a busy machine."""
SLACK = 0.1
HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Record:
    """One observation."""

    name: str
    value: Any
    took_s: float

    def agrees(self, other: Record) -> bool:
        """The same value, after about the same time; of an abort, the signal counts."""
        if self.name != other.name:
            return False
        return _main(self.value) == _main(other.value) and self._as_long_as(other)

    def _as_long_as(self, other: Record) -> bool:
        least_s = START_S if self.name.startswith(("init", "join")) else AT_ONCE_S
        return abs(self.took_s - other.took_s) <= max(least_s, SLACK * max(self.took_s, other.took_s))

    @property
    def told(self) -> str:
        took = "" if self.took_s < AT_ONCE_S else f" after ~{self.took_s:.0f} s"
        return f"{self.name}: {self.value if isinstance(self.value, str) else json.dumps(self.value)}{took}"


Observed = dict[str, list[Record]]
"""Process to its records."""


def _main(value: Any) -> Any:
    return value.partition(":")[0] if isinstance(value, str) and value.startswith("SIG") else value


def ended(raw: list[dict[str, Any]], how: str) -> list[Record]:
    """What a process wrote; `how` it ended, if it was inside a call or did not say itself."""
    done = [Record(r["name"], r["value"], round(r["took_s"], 1)) for r in raw if "begins" not in r]
    if raw and "begins" in raw[-1]:
        done.append(Record(raw[-1]["name"], how, 0.0))
    elif how != HANGS and not (done and done[-1].name == "end"):
        done.append(Record("end", how, 0.0))
    return done


def to_json(observed: Observed) -> list[dict[str, Any]]:
    """Processes that saw the same stand together."""
    found: list[dict[str, Any]] = []
    for label, records in observed.items():
        plain = [[r.name, r.value] if r.took_s < NOTED_S else [r.name, r.value, r.took_s] for r in records]
        same = next((entry for entry in found if entry["saw"] == plain), None)
        if same is None:
            found.append({"processes": [label], "saw": plain})
        else:
            same["processes"].append(label)
    return found


def from_json(entries: list[dict[str, Any]]) -> Observed:
    """The other way round."""
    found = {
        label: [Record(name, value, took[0] if took else 0.0) for name, value, *took in entry["saw"]]
        for entry in entries
        for label in entry["processes"]
    }
    return dict(sorted(found.items()))


def save(recorded: Mapping[str, Observed], versions: Mapping[str, str], path: Path = OBSERVED) -> None:
    """One line for each group of processes."""
    lines = [f'{{"versions": {json.dumps(dict(sorted(versions.items())))},', '"scenarios": {']
    for number, (name, observed) in enumerate(sorted(recorded.items())):
        entries = ",\n   ".join(json.dumps(entry, sort_keys=True) for entry in to_json(observed))
        lines.append(f"{',' if number else ' '}{json.dumps(name)}: [\n   {entries}]")
    path.write_text("\n".join([*lines, "}}"]) + "\n")


def load(path: Path = OBSERVED) -> tuple[dict[str, Observed], dict[str, str]]:
    """Recorded scenarios, and the versions with which they were recorded."""
    text = json.loads(path.read_text())
    return {name: from_json(entries) for name, entries in text["scenarios"].items()}, text["versions"]
