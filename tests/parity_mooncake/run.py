"""The Mooncake model against the real backend: `make parity-mooncake`.

    python -m tests.parity_mooncake.run                      all scenarios, on both sides
    python -m tests.parity_mooncake.run --only replacement   those with this text in their names
    python -m tests.parity_mooncake.run --simulator-only     against what was recorded of the real backend
    python -m tests.parity_mooncake.run --record             keep what the real backend does as the record
    python -m tests.parity_mooncake.run --real-only          only show what the real backend does

The scenarios are in the modules that `scenarios.py` names. One that races by its nature is run, and not compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.parity_mooncake.compare import Comparison, compare
from tests.parity_mooncake.records import Observed, from_json, load, save
from tests.parity_mooncake.scenario import Scenario
from tests.parity_mooncake.scenarios import scenarios
from tests.parity_mooncake.setup import SetupError, set_up
from tests.parity_mooncake.simulated import simulated

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 0 if nothing differs but what is documented."""
    options = _options(arguments)
    warnings.simplefilter("ignore")
    chosen = {name: s for name, s in scenarios().items() if options.only in name}
    began = time.monotonic()
    if options.simulator_only:
        recorded, versions = load()
        real = {name: recorded[name] for name in chosen if name in recorded}
    else:
        try:
            versions = set_up(options.venv, options.torch, options.pip_args.split())
        except SetupError as error:
            print(f"the real Mooncake backend cannot be set up: {error}", file=sys.stderr)
            return 2
        real = dict(_real(options.venv / "bin" / "python", chosen))
        versions["date"] = datetime.date.today().isoformat()
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.record:
        kept = load()[0] if options.only else {}
        save(kept | {name: saw for name, saw in real.items() if not chosen[name].races}, versions)
    if options.real_only:
        _show(real)
        return 0
    missing = [name for name in chosen if name not in real and not chosen[name].races]
    found = [_compared(chosen[name], real[name]) for name in chosen if name in real and not chosen[name].races]
    _tell(chosen, found, missing)
    print(f"{time.monotonic() - began:.0f} s")
    if options.json:
        rows = {c.scenario.name: {"verdict": c.verdict, "odd": [odd.told for odd in c.odd]} for c in found}
        Path(options.json).write_text(json.dumps({"versions": versions, "scenarios": rows}, indent=1) + "\n")
    return int(bool(missing) or not all(c.is_fine for c in found))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity_mooncake.run", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="scenarios with this in their names")
    parser.add_argument("--real-only", action="store_true", help="show what the real backend does")
    parser.add_argument("--simulator-only", action="store_true", help="compare with the record, without real processes")
    parser.add_argument("--record", action="store_true", help="write down what the real backend does")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-mooncake", help="of the real backend (%(default)s)")
    parser.add_argument("--torch", default="2.13.0", help="for a new one (default: %(default)s)")
    parser.add_argument("--pip-args", default="", help="for pip, e.g. '--index-url URL'")
    return parser.parse_args(arguments)


def _real(python: Path, chosen: dict[str, Scenario]) -> Iterator[tuple[str, Observed]]:
    command = [str(python), "-W", "ignore", "-m", "tests.parity_mooncake.real_ranks", *chosen]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            done = json.loads(line)
            print(f"\rreal Mooncake: {number} of {len(chosen)} scenarios", end="", file=sys.stderr, flush=True)
            yield done["name"], from_json(done["observed"])
    print(file=sys.stderr)


def _compared(scenario: Scenario, real: Observed) -> Comparison:
    return compare(scenario, real, simulated(scenario)[0])


def _tell(chosen: dict[str, Scenario], found: Sequence[Comparison], missing: Sequence[str]) -> None:
    by_name = {comparison.scenario.name: comparison for comparison in found}
    width = max(map(len, chosen), default=0)
    for name, scenario in chosen.items():
        told = f"not compared ({scenario.races})" if scenario.races else "was not observed"
        print(f"{name:{width}}  {by_name[name].verdict if name in by_name else told}")
        for odd in by_name[name].odd if name in by_name else ():
            print(f"    {odd.told}")
    documented = sum(bool(c.documented) for c in found if c.is_fine)
    agree = sum(c.is_fine for c in found) - documented
    print(f"{len(chosen)} scenarios: {agree} agree, {documented} differ as documented,", end=" ")
    print(f"{sum(not c.is_fine for c in found)} differ, {len(missing)} were not observed,", end=" ")
    print(f"{len(chosen) - len(found) - len(missing)} race")


def _show(real: dict[str, Observed]) -> None:
    for name, observed in real.items():
        print(name)
        for label, records in observed.items():
            print(f"  process {label}")
            for record in records:
                print(f"    {record.told}")


if __name__ == "__main__":
    sys.exit(main())
