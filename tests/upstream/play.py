"""Runs one set of scenarios in this process: `python -m tests.upstream.play sglang 0.5.20 scale_up`."""

from __future__ import annotations

import argparse
import json
import warnings
from importlib import import_module
from pathlib import Path

from tests.upstream.environments import environment


def main() -> None:
    """Print each report, and write the rows to `--json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("version")
    parser.add_argument("scenario")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    environment(args.framework, args.version).enter()
    runs = import_module(f"tests.upstream.{args.framework.split('-')[0]}_runs")
    rows = getattr(runs, args.scenario)(args.version)
    for row in rows:
        print(f"{row.line()}\n{row.report}\n{row.facts}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([row.to_dict() for row in rows], default=str))


if __name__ == "__main__":
    main()
