"""The suite as a command: precision, recall and strict recall of the simulator, and of what a user has today.

    python -m tests.suite.run                       all programs, simulated and on real gloo
    python -m tests.suite.run --simulator-only      without real processes
    python -m tests.suite.run --show NAME           the text of a program, its label, and the simulator's report
    python -m tests.suite.run --write FOLDER        all programs as files, which torchrun and hangcheck can run

What a user has today is asked on the gloo programs: plain gloo with a time-out of 5 s, and a sample with
TORCH_DISTRIBUTED_DEBUG=DETAIL. Real gloo also checks the labels: a right program has to end there, with the values
that the simulator gives, and a wrong one must not end, unless its label says that it may.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator import Exploration, Outcome, explore, simulate
from tests.parity.real_ranks import real_ranks
from tests.parity.real_worker import Job, RankEnd
from tests.suite.answer import of_ends, of_findings
from tests.suite.catalogue import SEEDS, suite
from tests.suite.label import Case
from tests.suite.score import Result, by_class, by_fault, table

TIMEOUT_S = 5.0
DEADLINE_S = 12.0
DETAIL_EVERY = 3
SCHEDULES = 50
"""For programs whose fault depends on the order of the ranks."""
FRAMEWORKS = ("DistributedDataParallel", "DeviceMesh", "functional")
"""Words of programs that import what takes long."""
SLOW_IMPORTS = ("torch._dynamo", "torch.distributed._functional_collectives", "torch.nn.parallel.distributed", "numpy")
Ends = dict[int, RankEnd]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; 0 unless a label is wrong."""
    options = _options(arguments)
    cases = suite(options.seeds)
    if options.show:
        return _show([case for case in cases if case.name in options.show])
    if options.write:
        return _write(cases, Path(options.write))
    cases = [case for case in cases if options.only in case.name]
    outcomes, results = _simulated(cases, options.schedules)
    report: dict[str, Any] = {"programs": len(cases), "simulator": _told("the simulator", results)}
    bad_labels: list[str] = []
    if not options.simulator_only:
        on_gloo = [case for case in cases if case.program.backend == "gloo"]
        same = [result for result in results if result.case.program.backend == "gloo"]
        report["simulator, gloo programs"] = _told("the simulator, gloo programs only", same)
        plain = dict(_real(on_gloo, "plain gloo", options.lanes))
        report["plain gloo"] = _told(
            f"plain gloo, time-out {TIMEOUT_S:g} s", [Result(case, of_ends(plain[case.name])) for case in on_gloo]
        )
        sample = on_gloo[::DETAIL_EVERY] if not options.all_detail else on_gloo
        detail = dict(_real(sample, "DETAIL", options.lanes, detail=True))
        report["gloo with DETAIL"] = _told(
            "gloo with TORCH_DISTRIBUTED_DEBUG=DETAIL", [Result(case, of_ends(detail[case.name])) for case in sample]
        )
        bad_labels = [text for case in on_gloo for text in label_doubts(case, plain[case.name], outcomes[case.name])]
        print("\nlabels that real gloo contradicts:", *(bad_labels or ["none"]), sep="\n  ")
    report["labels that real gloo contradicts"] = bad_labels
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 1 if bad_labels else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.suite.run", description="The labelled suite.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="instances of each pattern (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose name has this in it")
    parser.add_argument("--schedules", type=int, default=0, help="run every program under so many schedules")
    parser.add_argument("--simulator-only", action="store_true", help="without real processes")
    parser.add_argument("--all-detail", action="store_true", help="DETAIL on all gloo programs, not on a sample")
    parser.add_argument("--lanes", type=int, default=10, help="programs side by side on real gloo (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--show", nargs="+", metavar="NAME", help="show programs, with their reports")
    parser.add_argument("--write", metavar="FOLDER", help="write all programs there, and end")
    return parser.parse_args(arguments)


def _simulated(cases: Sequence[Case], schedules: int) -> tuple[dict[str, Outcome], list[Result]]:
    outcomes, results = {}, []
    for done, case in enumerate(cases, 1):
        found = simulated(case, schedules)
        outcomes[case.name] = found.outcome if isinstance(found, Exploration) else found
        results.append(Result(case, of_findings(found.findings, case.program)))
        _progress("simulator", done, len(cases))
    return outcomes, results


def simulated(case: Case, schedules: int = 0) -> Outcome | Exploration:
    """Simulate one program; what its ranks print is dropped.

    Args:
        schedules: under how many the program is run; 0: one, or `SCHEDULES` if its fault depends on the order.
    """
    program, many = case.program, schedules or (SCHEDULES if case.label.explore else 1)
    if any(word in program.source for word in FRAMEWORKS):
        for module in SLOW_IMPORTS:  # in a rank this may take so long that it counts as spinning
            importlib.import_module(module)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if many == 1:
            return simulate(program.main(), program.world_size, args=(program.world_size,))
        return explore(program.main(), program.world_size, args=(program.world_size,), schedules=many, workers=1)


def _real(cases: Sequence[Case], name: str, lanes: int, *, detail: bool = False) -> Iterator[tuple[str, Ends]]:
    jobs = [Job(case.program, DEADLINE_S, TIMEOUT_S, detail) for case in cases]
    with real_ranks(lanes, SLOW_IMPORTS) as ranks:
        for job, ends in ranks.run(jobs, lambda done: _progress(name, done, len(jobs))):
            yield job.program.name, ends


def label_doubts(case: Case, ends: Ends, outcome: Outcome) -> list[str]:
    """In what real gloo contradicts a label."""
    if not case.real:
        return []
    ended = all(end.status == "ok" for end in ends.values())
    values = {rank: end.value for rank, end in ends.items()}
    if case.label.is_right and not ended:
        return [f"{case.name}: is right, and ends with {_first_error(ends.values())}"]
    if case.label.is_right and outcome.ok and repr(sorted(values.items())) != repr(sorted(outcome.results.items())):
        return [f"{case.name}: gives {values}, simulated {outcome.results}"]
    if ended and not case.label.is_right and not case.label.silent:
        return [f"{case.name}: is wrong, and ends"]
    return []


def _first_error(ends: Iterable[RankEnd]) -> str:
    return next(end.error or end.status for end in ends if end.status != "ok")


def _told(title: str, results: Sequence[Result]) -> dict[str, Any]:
    print("\n" + table(title, results))
    return {
        "scores": {name: score.to_dict() for name, score in by_class(results).items()},
        "faults": by_fault(results),
    }


def _show(cases: Sequence[Case]) -> int:
    for case in cases:
        found = simulated(case)
        print(f"# {case.name}\n{case.program.source}\n{case.label}\nculprit lines: {case.program.marked_lines}\n")
        print(f"{found.report()}\n{of_findings(found.findings, case.program)}")
    return 0


def _write(cases: Sequence[Case], folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        (folder / case.program.file).write_text(case.program.source)
    print(f"{len(cases)} programs in {folder}")
    return 0


def _progress(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total or done % 100 == 0:
        end = "\n" if done == total or not sys.stderr.isatty() else ""
        print(f"\r{name}: {done} of {total} programs", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"\n{time.monotonic() - began:.0f} s")
    sys.exit(code)
