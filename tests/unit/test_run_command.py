"""`hangcheck run` gives an unmodified script what torchrun would give it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import FINDINGS, OK, main

SHOW = """
import json, os, sys
with open(f"rank{os.environ['RANK']}.json", "w") as file:
    json.dump({"env": dict(os.environ), "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
               "package": __package__, "spec": getattr(__spec__, "name", None)}, file)
"""
DIFFERENT = {
    "TORCHELASTIC_ERROR_FILE",  # of the agent's own log folder
    "TORCHELASTIC_RUN_ID",  # random there, seeded here
    "MASTER_PORT",  # any free port there
}
OURS = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_", "MASTER_", "TORCH", "OMP_")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `show.py`, which writes what it sees to rank<N>.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "show.py").write_text(SHOW)
    return tmp_path


def seen(folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, by rank; the files are gone afterwards."""
    files = sorted(folder.glob("rank*.json"), key=lambda path: int(path.stem[4:]))
    found = [json.loads(path.read_text()) for path in files]
    for path in files:
        path.unlink()
    return found


def launcher_values(rank: dict[str, Any]) -> dict[str, str]:
    """The part of a rank's environment that a launcher sets."""
    return {key: value for key, value in rank["env"].items() if key.startswith(OURS) and key not in DIFFERENT}


@pytest.mark.gloo
@pytest.mark.parametrize(
    "flags",
    [
        ["--nproc-per-node", "2"],
        ["--nproc-per-node", "1", "--master-port", "29517", "--role", "worker", "--max-restarts", "2"],
        ["--standalone", "--nproc-per-node", "2", "-m"],
    ],
    ids=["plain", "static", "module"],
)
def test_ranks_see_what_torchrun_shows_them(flags: list[str], folder: Path) -> None:
    """The same command line through real torchrun and through the simulation."""
    target = "show" if "-m" in flags else "show.py"
    command = [sys.executable, "-m", "torch.distributed.run", *flags, target, "--lr", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    real = seen(folder)
    assert main(["run", *flags, target, "--lr", "1"]) == OK
    simulated = seen(folder)
    assert len(real) == len(simulated) == (1 if "--master-port" in flags else 2)
    for expected, got in zip(real, simulated, strict=True):
        assert launcher_values(got) == launcher_values(expected)
        assert {k: got[k] for k in got if k != "env"} == {k: expected[k] for k in expected if k != "env"}
        absent = [key for key in expected["env"].keys() - got["env"].keys() if key.startswith(OURS)]
        assert absent == ["TORCHELASTIC_ERROR_FILE"]


def test_nodes_are_counted_as_torchrun_counts_them(folder: Path) -> None:
    """Of a range of nodes all come; `group` is torchrun's word for a node, and node 0 has the store."""
    assert main(["run", "--nnodes", "1:2", "--nproc-per-node", "3", "show.py"]) == OK
    ranks = [launcher_values(rank) for rank in seen(folder)]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"] * 2
    assert [rank["GROUP_RANK"] for rank in ranks] == ["0"] * 3 + ["1"] * 3
    shared = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR")
    assert {tuple(rank[key] for key in shared) for rank in ranks} == {("6", "3", "2", "6", "node0")}


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        (["--master-addr", "10.1.2.3", "--master-port", "1234"], ("10.1.2.3", "1234")),
        (["--rdzv-endpoint", "head:1234"], ("head", "1234")),
        (["--rdzv-endpoint", "head"], ("head", "29500")),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "head:1234"], ("node0", "39999")),
        (["--nnodes", "2", "--master-addr", "localhost", "--master-port", "77"], ("node0", "77")),
    ],
)
def test_the_master_is_where_the_flags_say(flags: list[str], address: tuple[str, str], folder: Path) -> None:
    assert main(["run", *flags, "show.py"]) == OK
    for rank in seen(folder):
        assert (rank["env"]["MASTER_ADDR"], rank["env"]["MASTER_PORT"]) == address


def test_the_job_id_comes_from_the_seed(folder: Path) -> None:
    ids = []
    for seed in ("1", "1", "2"):
        assert main(["run", "--standalone", "--seed", seed, "show.py"]) == OK
        ids.append(seen(folder)[0]["env"]["TORCHELASTIC_RUN_ID"])
    assert ids[0] == ids[1] != ids[2]


def test_ranks_of_two_nodes_meet(folder: Path) -> None:
    (folder / "meet.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1)\n"
        "dist.all_reduce(x)\n"
        "assert x.item() == 4\n"
    )
    assert main(["run", "--nnodes", "2", "--nproc-per-node", "2", "meet.py"]) == OK


def test_classes_of_the_script_can_be_sent(folder: Path) -> None:
    """pickle looks a class up in `__main__`, which each rank has for itself."""
    (folder / "send.py").write_text(
        "import sys, torch.distributed as dist\n"
        "class Load:\n"
        "    def __init__(self, rank): self.rank = rank\n"
        "dist.init_process_group('gloo')\n"
        "loads = [None] * 3\n"
        "dist.all_gather_object(loads, Load(dist.get_rank()))\n"
        "assert [type(load) is Load and load.rank for load in loads] == [0, 1, 2], loads\n"
        "assert vars(sys.modules['__main__']) is globals()\n"
    )
    outside = sys.modules["__main__"], list(sys.path), list(sys.argv)
    assert main(["run", "--nproc-per-node", "3", "send.py"]) == OK
    assert (sys.modules["__main__"], sys.path, sys.argv) == outside


def test_a_package_runs_by_its_main(folder: Path) -> None:
    (folder / "shown").mkdir()
    (folder / "shown" / "__init__.py").write_text("")
    (folder / "shown" / "__main__.py").write_text(SHOW)
    assert main(["run", "-m", "shown", "x"]) == OK
    (rank,) = seen(folder)
    assert rank["argv"] == [str(folder / "shown" / "__main__.py"), "x"]
    assert (rank["name"], rank["package"], rank["spec"]) == ("__main__", "shown", "shown.__main__")


def test_a_syntax_error_is_the_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "typo.py").write_text("x = = 1\n")
    assert main(["run", "--nproc-per-node", "2", "typo.py"]) == FINDINGS
    assert "ranks 0, 1 ended with SyntaxError: invalid syntax (typo.py, line 1)" in capsys.readouterr().out


def test_a_script_inherits_no_future_of_the_launcher(folder: Path) -> None:
    (folder / "notes.py").write_text("def f(x: int): pass\nassert f.__annotations__ == {'x': int}\n")
    assert main(["run", "notes.py"]) == OK


def test_the_replay_line_gives_the_same_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quoting and all; variables that torch's parser reads are part of it."""
    (folder / "a bug.py").write_text("import random, sys\nsys.exit(f'{random.random()} {sys.argv[1]}')\n")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    assert main(["run", "a bug.py", "it's"]) == FINDINGS
    first = capsys.readouterr().out
    replay = first.splitlines()[-1]
    assert replay == """replay: PET_NPROC_PER_NODE=2 hangcheck run --seed 0 'a bug.py' 'it'"'"'s'"""
    assert main(shlex.split(replay)[3:]) == FINDINGS
    assert capsys.readouterr().out == first


def test_json_has_stdout_for_itself(folder: Path) -> None:
    """In a process of its own: what native code writes to descriptor 1 must not get in either."""
    (folder / "loud.py").write_text("import os\nprint('python', flush=True)\nos.write(1, b'native\\n')\n")
    command = [sys.executable, "-m", "simulator", "run", "--json", "loud.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout)["verdict"] == "ok"
    assert done.stderr == "python\nnative\n"


def test_flags_without_a_meaning_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--log-dir", "logs", "--tee", "3", "--node-rank", "0", "show.py"]) == OK
    assert capsys.readouterr().err == "hangcheck: no effect in a simulation: --log-dir, --tee\n"


def test_a_rank_that_spins_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "spin.py").write_text("while True:\n    pass\n")
    assert main(["run", "--spin-limit", "0.5", "spin.py"]) == FINDINGS
    assert "rank 0 ran for 0.5 s of wall time without blocking" in capsys.readouterr().out
