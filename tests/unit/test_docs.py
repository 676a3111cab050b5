"""What the documents say is so: samples run, reports are what is printed now, what is named is there.

Samples of one document share their names, from the first to the last. In a `console` block, lines after `$ command`
are its output; a line `...` stands for any lines.
"""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import simpy
import torch
import torch.distributed as dist

import refimpl.distributed
import refimpl.distributed.layout
import simulator
from simulator import (
    Certainty,
    Level,
    Limits,
    Verdict,
    barrier_model,
    cli,
    cluster,
    explore_command,
    job_arguments,
    pytest_plugin,
    torchrun,
)
from simulator.engine.scheduler import End
from simulator.scenarios import demo

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BASES = (ROOT, ROOT / "tests" / "unit")
READERS_OWN = {"script.py"}
OTHER_TOOLS = {  # of ruff; of tests/suite, tests/parity and tests/parity_mooncake
    "--check", "--fix", "--only", "--show", "--simulator-only", "--real-only", "--record",
}  # fmt: skip
ends_with_a_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def fenced(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def indented(text: str) -> list[str]:
    """The blocks that are indented by four spaces or more, one after another."""
    lines = [(line.strip() == "" or line.startswith("    "), line) for line in text.splitlines()]
    blocks: list[list[str]] = [[]]
    for inside, line in lines:
        if inside:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in (textwrap.dedent("\n".join(lines)).strip() for lines in blocks) if block]


def sample(module: Any) -> str:
    """The program in a module's docstring: the first indented block that is Python."""
    return next(block for block in indented(module.__doc__) if _is_python(block))


def _is_python(block: str) -> bool:
    try:
        ast.parse(block)
    except SyntaxError:
        return False
    return True


def run(code: str, names: dict[str, Any], name: str) -> None:
    exec(compile(code, name, "exec", dont_inherit=True), names)


def same(line: str) -> str:
    """A line of a report, without what may change with any edit or version: line numbers, torch's version."""
    return re.sub(r"torch \d+\.\d+\.\d+", "torch VERSION", re.sub(r"(\.py):\d+", r"\1:LINE", line)).rstrip()


# -- samples ---------------------------------------------------------------------------------------------------------


def test_the_report_in_the_readme_is_the_first_one_of_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line; only line numbers and torch's version may differ."""
    monkeypatch.chdir(ROOT)
    assert demo.main([]) == 0
    printed = [same(line) for line in capsys.readouterr().out.splitlines()]
    (shown,) = [[same(line) for line in block.splitlines()] for block in fenced(README, "text")]
    start = printed.index(next(line for line in printed if line.startswith("hangcheck: ")))
    assert printed[start : start + len(shown)] == shown


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a `console` block with the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.splitlines()


def matches(shown: list[str], printed: list[str]) -> bool:
    """Line by line; `...` in `shown` stands for any number of lines."""
    pattern = "".join(".*" if line == "..." else re.escape(same(line)) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(same(line) + "\n" for line in printed), re.DOTALL) is not None


def test_the_commands_in_the_readme_print_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of hangcheck are run; `echo $?` shows the exit code of the one before."""
    monkeypatch.chdir(ROOT)
    code, ran = cli.OK, 0
    for block in fenced(README, "console"):
        for command, shown in commands(block):
            if command == "echo $?":
                assert shown == [str(code)]
            elif command.startswith("hangcheck "):
                code, ran = cli.main(shlex.split(command)[1:]), ran + 1
                printed = capsys.readouterr().out.splitlines()
                assert matches(shown, printed), "\n".join([command, "printed:", *printed])
            else:
                assert command in ("make demo", "make test", "pip install -e ."), command
    assert ran >= 5


def python_samples() -> tuple[list[str], list[str]]:
    """The Python blocks of the README: programs, and tests."""
    blocks = fenced(README, "python")
    return [b for b in blocks if "def test_" not in b], [b for b in blocks if "def test_" in b]


def test_the_programs_in_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Their asserts count."""
    names: dict[str, Any] = {"__name__": "readme"}
    programs, _ = python_samples()
    for program in programs:
        run(program, names, "README.md")
    assert len(programs) >= 3
    assert "hangcheck: deadlock (1 finding, 4 ranks" in capsys.readouterr().out


def test_the_tests_in_the_readme_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the programs above them in one file."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    programs, tests = python_samples()
    pytester.makepyfile("\n".join([*programs, *tests]))
    pytester.runpytest().assert_outcomes(passed=sum(block.count("def test_") for block in tests))


STUBS = """
import pytest
import torch
import torch.distributed as dist

def work(rank):
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    return total.item()

def buggy(rank):
    dist.init_process_group("gloo")
    if rank:
        dist.barrier()

def serve(rank):
    return "serves"

def grow(rank):
    return "joined"
"""


def test_the_tests_in_the_plug_ins_docstring_pass(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(STUBS + "\n" + sample(pytest_plugin))
    pytester.runpytest().assert_outcomes(passed=5)


def test_the_samples_in_the_simulators_docstrings_run() -> None:
    """Package, cluster, barrier model, exploration."""
    names: dict[str, Any] = {"simpy": simpy, "simulate": simulator.simulate, **vars(barrier_model)}
    names["explore"] = simulator.explore
    run(STUBS, names, "stubs.py")
    for module in (simulator, cluster, barrier_model, import_module("simulator.exploration.explore")):
        run(sample(module), names, module.__name__)


def test_the_sample_in_refimpls_docstring_runs() -> None:
    """On four simulated ranks, each with its own number, and with an address filled in."""
    code = sample(refimpl.distributed)
    assert "cohort_rank=2" in code
    assert "tcp://..." in code
    code = code.replace("cohort_rank=2", "cohort_rank=rank").replace("tcp://...", "tcp://node0:29533")

    def start(rank: int) -> float:
        names: dict[str, Any] = {"rank": rank, "x": torch.ones(1)}
        run(code, names, "refimpl")
        dist.destroy_process_group()
        return float(names["x"].item())

    assert simulator.simulate(start, 4).raise_if_bad().results == dict.fromkeys(range(4), 4.0)


def test_the_sample_of_the_layout_is_right() -> None:
    result = doctest.testmod(refimpl.distributed.layout)
    assert (result.failed, result.attempted > 2) == (0, True)


# -- what is named is there --------------------------------------------------------------------------------------------

PATH = re.compile(r"`(\.ci/run|[A-Za-z_.][\w./-]*(?:/|\.(?:py|md|toml|txt)))(?:::(\w+))?`")


@ends_with_a_document
def test_named_files_and_tests_exist(path: Path) -> None:
    """A path is meant from the root, or from `tests/unit/`."""
    for name, test in PATH.findall(path.read_text()):
        if name in READERS_OWN:
            continue
        found = next((base / name for base in BASES if (base / name).exists()), None)
        assert found is not None, f"{path.name} names {name}"
        assert not test or f"def {test}(" in found.read_text(), f"{path.name} names {name}::{test}"


def anchors(path: Path) -> set[str]:
    """The anchors that a reader's viewer makes of headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@ends_with_a_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@ends_with_a_document
def test_named_objects_exist(path: Path) -> None:
    """Dotted names of the two packages, and what is imported from them."""
    text = path.read_text()
    for dotted in re.findall(r"`((?:simulator|refimpl)(?:\.\w+)+)`", text):
        module, _, name = dotted.rpartition(".")
        assert hasattr(import_module(module), name), dotted
    for line in re.findall(r"^ *(from (?:simulator|refimpl)[\w.]* import .*)$", text, re.MULTILINE):
        run(line, {}, path.name)


def help_text(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        cli.main(argv)
    return capsys.readouterr().out


def test_named_flags_exist(capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config) -> None:
    """Each is one of the commands, of pytest or of ruff."""
    known = OTHER_TOOLS.copy()
    for command in ("run", "explore", "replay", "lint", "demo", ""):
        argv = [command, "--help"] if command else ["--help"]
        known.update(re.findall(r"--[a-z][a-z-]+", help_text(argv, capsys)))
    of_pytest = ("--gpu", "--seed", "--hangcheck-seed", "--hangcheck-schedule", "--full-trace")
    known.update(flag for flag in of_pytest if known_to(pytestconfig, flag))
    for path in DOCUMENTS:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text()))
        assert named <= known, f"{path.name} names {sorted(named - known)}"


def known_to(config: pytest.Config, flag: str) -> bool:
    missing = object()
    return config.getoption(flag, missing) is not missing


def test_named_make_targets_and_extras_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in DOCUMENTS:
        for target in re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", path.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name} names make {target}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.search(r"The extras are (.*?)\.", README.read_text(), re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(extras)


# -- what is there is documented ---------------------------------------------------------------------------------------


def rows() -> set[str]:
    """What stands in backquotes in the reference."""
    return set(re.findall(r"`([^`\n]+)`", REFERENCE.read_text()))


def test_every_option_is_documented() -> None:
    wanted = {field.name for kind in (simulator.ClusterOptions, Limits) for field in fields(kind)}
    assert wanted <= rows(), sorted(wanted - rows())


def test_every_flag_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """All of ours, and those of torchrun that have a meaning here or are refused."""
    theirs, parser = job_arguments.parsers("explore", None, explore_command._add_flags)
    flags = set(parser._option_string_actions) - set(theirs._option_string_actions)
    texts = [
        help_text(argv, capsys) for argv in (["demo", "--help"], ["replay", "--help"], ["lint", "--help"], ["--help"])
    ]
    flags |= set(re.findall(r"--[a-z-]+", " ".join(texts)))
    flags |= {f"--{name.replace('_', '-')}" for name in (*torchrun.UNDERSTOOD, *torchrun.REFUSED)}
    flags -= {"--help", "--training-script", "--training-script-args"}
    text = REFERENCE.read_text()
    assert not [flag for flag in sorted(flags) if not re.search(rf"`[^`]*{flag}(?![\w-])", text)]


def test_every_verdict_grade_end_and_exit_code_is_documented() -> None:
    text = REFERENCE.read_text()
    graded = [str(member) for kind in (Verdict, Level, Certainty) for member in kind]
    assert not [word for word in graded if f"`{word}`" not in text]
    ends = [end.value for end in End if end not in (End.STOPPED, End.FAULT)]  # these never reach an outcome
    assert not [value for value in ends if f'"{value}"' not in text]
    for code in (cli.OK, cli.FINDINGS, cli.USAGE, cli.FAULT, cli.INTERRUPTED):
        assert f"\n| {int(code)} |" in text


def test_every_key_of_the_json_is_documented() -> None:
    """Of the outcome, its ranks, findings, sides and frames."""

    def hangs(rank: int) -> None:
        dist.init_process_group("gloo")
        if rank:
            dist.barrier()

    def keys(value: Any) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield key
            yield from keys(inner)
        for inner in value if isinstance(value, list | tuple) else ():
            yield from keys(inner)

    found = {key for key in keys(simulator.simulate(hangs, 2).to_dict()) if not key.isdecimal()}
    assert found <= rows(), sorted(found - rows())


def test_every_kind_of_trace_event_is_documented() -> None:
    """Those that the source logs."""
    kinds: set[str] = set()
    for path in (ROOT / "simulator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                place = {"log": 0, "add": 2}.get(node.func.attr)
                if place is not None and _is_event(node, place):
                    kinds.add(node.args[place].value)  # type: ignore[attr-defined]
    assert len(kinds) > 10
    assert kinds <= rows(), sorted(kinds - rows())


def _is_event(call: ast.Call, place: int) -> bool:
    """`sim.log("kind", ...)`, or `trace.add(time, rank, "kind", ...)`."""
    if place >= len(call.args) or not isinstance(call.args[place], ast.Constant):
        return False
    owner = ast.unparse(call.func.value)  # type: ignore[attr-defined]
    return owner.endswith("trace" if place else "sim")


# -- how they are written ----------------------------------------------------------------------------------------------


@ends_with_a_document
def test_documents_name_no_machine(path: Path) -> None:
    """No path of somebody's machine, no address of somebody's network."""
    assert not re.findall(r"(?<![\w.])/(?:home|root|work|tmp|usr|mnt|data)/\S+|https?://\S+", path.read_text())
