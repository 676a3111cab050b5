"""`hangcheck lint`: output formats, exit codes, settings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.cli import FINDINGS, OK, USAGE, main
from simulator.lint.rules.catalogue import RULES

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "lint.md"
BAD = "import torch.distributed as dist\ndef f(rank, lists):\n    if rank:\n        dist.new_group([0])\n"
LOOP = "    for ranks in set(lists):\n        dist.new_group(ranks)\n"
Tree = Callable[..., Path]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command; gives exit code, stdout and stderr."""

    def call(*argv: str) -> tuple[int, str, str]:
        code = main(["lint", *argv])
        return code, *capsys.readouterr()

    return call


def test_text(tree: Tree, run: Callable) -> None:
    """Place, code, message; the line; what to write; the certainty where it is no cause."""
    tree({"a.py": BAD + LOOP})
    code, out, err = run("a.py")
    assert (code, err) == (FINDINGS, "")
    assert out.splitlines() == [
        "a.py:4:9 HC003 new_group() is reached only by ranks for which `rank` (rank differs between ranks), and all "
        "ranks have to call it, members or not",
        "  line:  dist.new_group([0])",
        "  write: call it on all ranks, in one order, before the condition; or pass use_local_synchronization=True if "
        "just the members call it",
        "",
        "a.py:6:9 HC004 new_group() in a loop over the set `set(lists)`: sets have no order that ranks share",
        "  line:  dist.new_group(ranks)",
        "  write: loop over sorted(set(lists))",
        "  sure:  suspect",
        "",
        "hangcheck lint: 2 violations in 1 file",
    ]


def test_nothing_found(tree: Tree, run: Callable) -> None:
    tree({"a.py": "x = 1\n"})
    assert run(".") == (OK, "hangcheck lint: no violations in 1 file\n", "")


def test_json(tree: Tree, run: Callable) -> None:
    tree({"a.py": BAD})
    _, out, _ = run("a.py", "--output-format", "json")
    document = json.loads(out)
    (one,) = document.pop("violations")
    assert document == {"format": "hangcheck-lint 1", "files": 1, "passed_over": 0}
    place = {key: one[key] for key in ("path", "line", "column", "end_line", "end_column", "code", "certainty")}
    assert place == {
        "path": "a.py", "line": 4, "column": 9, "end_line": 4, "end_column": 28, "code": "HC003", "certainty": "cause",
    }  # fmt: skip


def test_sarif(tree: Tree, run: Callable) -> None:
    """What the format requires: version, driver, rules that results point to, levels, addresses without spaces."""
    tree({"a b.py": BAD + LOOP})
    _, out, _ = run(".", "--output-format", "sarif")
    log = json.loads(out)
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    (job,) = log["runs"]
    rules = job["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.code for rule in RULES]
    assert [(one["ruleId"], one["level"]) for one in job["results"]] == [("HC003", "error"), ("HC004", "warning")]
    for one in job["results"]:
        assert rules[one["ruleIndex"]]["id"] == one["ruleId"]
        place = one["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "a%20b.py"
        assert place["region"]["endColumn"] > place["region"]["startColumn"] >= 1


def test_github(tree: Tree, run: Callable) -> None:
    """One command for each line; separators are escaped."""
    tree({"a,b.py": BAD})
    _, out, _ = run(".", "--output-format", "github")
    assert out.startswith(
        "::error file=a%2Cb.py,line=4,endLine=4,title=hangcheck HC003,col=9,endColumn=28::a,b.py:4:9 HC003 new_group()"
    )
    assert out.count("\n") == 1


def test_select_ignore_and_exit_zero(tree: Tree, run: Callable) -> None:
    tree({"a.py": BAD + LOOP})
    assert run(".", "--select", "HC004")[1].count(" HC0") == 1
    assert run(".", "--ignore", "HC003,HC004")[0] == OK
    assert run(".", "--select", "HC001", "--extend-select", "HC003")[0] == FINDINGS
    assert run(".", "--exit-zero")[0] == OK
    assert run(".", "--exclude", "a.py")[0] == OK


def test_output_file(tree: Tree, run: Callable) -> None:
    root = tree({"a.py": BAD})
    assert run("a.py", "--output-file", "out.txt")[:2] == (FINDINGS, "")
    assert "HC003" in (root / "out.txt").read_text()


def test_settings_come_from_the_nearest_pyproject(tree: Tree, run: Callable) -> None:
    """One without the table is passed by; flags add to it."""
    tree(
        {
            "pyproject.toml": "[tool.hangcheck.lint]\nignore = ['HC003']\nexclude = ['gen/*']\n",
            "src/pyproject.toml": "[project]\nname = 'x'\n",
            "src/a.py": BAD + LOOP,
            "gen/b.py": BAD + LOOP,
        }
    )
    assert run(".")[1].count(" HC004 ") == 1
    assert run("src/a.py", "--ignore", "HC004")[0] == OK


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give files or folders to lint"),
        (["empty"], "empty: no Python file was found; give files, or folders with some"),
        (["nowhere"], "nowhere: there is no such file; give Python files or folders"),
        (["a.ipynb"], "a.ipynb: notebooks are not linted; give Python files, or folders"),
        (["a.py", "--select", "X1"], "X1: there is no such rule; give some of HC001, "),
        (["a.py", "--config", "none.toml"], "none.toml: cannot be read (No such file or directory)"),
        (["a.py", "--config", "bad.toml"], "bad.toml: no valid TOML"),
        (["a.py", "--config", "other.toml"], "other.toml: has no table [tool.hangcheck.lint]; add one"),
        (["a.py", "--config", "odd.toml"], "has no setting 'colour'; there are select, "),
        (["a.py", "--config", "type.toml"], "type.toml: select: give a list of texts"),
        (["a.py", "--output-file", "no/such/folder"], "--output-file no/such/folder: cannot be written"),
        (["--explain", "HC777"], "--explain HC777: there is no such rule"),
    ],
)
def test_usage(argv: list[str], message: str, tree: Tree, run: Callable) -> None:
    tree({
        "a.py": "", "a.ipynb": "", "bad.toml": "=", "other.toml": "",
        "empty/note.txt": "",
        "odd.toml": "[tool.hangcheck.lint]\ncolour = 1\n", "type.toml": "[tool.hangcheck.lint]\nselect = 'HC001'\n",
    })  # fmt: skip
    code, out, err = run(*argv)
    assert (code, out) == (USAGE, "")
    assert err.startswith("hangcheck: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_explain(run: Callable) -> None:
    code, out, _ = run("--explain", "HC001")
    assert code == OK
    assert out.startswith("HC001 parameter-not-passed-on: ")


def test_torch_is_not_needed(tree: Tree) -> None:
    """In a process of its own."""
    root = tree({"a.py": BAD})
    code = "import sys\nfrom simulator.cli import main\nmain(['lint', sys.argv[1]])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(root)], cwd=ROOT, check=True, capture_output=True)


def test_the_reference_implementation_breaks_no_rule(monkeypatch: pytest.MonkeyPatch, run: Callable) -> None:
    monkeypatch.chdir(ROOT)
    assert run("refimpl")[0] == OK


def test_the_hook_calls_this_command() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: hangcheck lint\n" in text
    assert "types: [python]\n" in text


def samples() -> list[tuple[str, str, str]]:
    """From docs/lint.md: code, `wrong` or `right`, and the program."""
    import re

    found = []
    for section in re.split(r"^### ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]:
        code = section[:5]
        for kind, program in re.findall(
            r"^(Wrong|Right)[^\n]*:\n\n```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE
        ):
            found.append((code, kind, program))
    return found


def test_every_rule_is_explained_with_programs_that_break_and_keep_it(found: Callable) -> None:
    """The samples of the page are linted; the page says of each rule what the catalogue says."""
    text = DOCUMENT.read_text()
    for rule in RULES:
        assert f"### {rule.code} {rule.name}" in text
    shown = samples()
    for code in (rule.code for rule in RULES if rule.check is not None or rule.code == "HC001"):
        assert {kind for one, kind, _ in shown if one == code} == {"Wrong", "Right"}, code
    for code, kind, program in shown:
        assert {one for one, _ in found(program)} == ({code} if kind == "Wrong" else set()), (code, kind)
