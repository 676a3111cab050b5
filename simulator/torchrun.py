"""torchrun's command line, read into a job: what to run on how many nodes, with which environment.

torch's own parser reads the flags, so the installed torch decides which there are, and `PET_*` variables count too.

Different from torchrun, on purpose:
    - one command plays all nodes, so --node-rank means nothing;
    - of a range of nodes MIN:MAX, MAX nodes come at once; nothing is restarted;
    - what torchrun leaves to chance (a free port, a job id) is fixed by the seed;
    - ranks per node is a number: what hardware this machine has must not change the result;
    - a loop-back master address with several nodes stands for the first node.
"""

from __future__ import annotations

import argparse
import os
import random
import uuid
from dataclasses import dataclass

from simulator.engine.errors import UsageError

DEFAULT_PORT = 29500
FREE_PORT = 39_999
"""Stands for the free port that torchrun finds, apart from ports that scripts name."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0")
UNDERSTOOD = (
    *("nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "role", "max_restarts", "module"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "standalone", "signals_to_handle", "run_path"),
    *("training_script", "training_script_args"),
)
"""What has a meaning here, by torch's names. Everything else of torchrun has no effect in a simulation."""
REFUSED = {
    "no_python": "--no-python: ranks are simulated inside this Python; leave it out and name a Python script",
    "virtual_local_rank": "--virtual-local-rank is not simulated; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a torchrun command line asks for."""

    target: str
    """Path of the script, or name of the module."""
    args: tuple[str, ...]
    """Arguments of the script."""
    as_module: bool
    """`target` names a module."""
    nodes: int
    ranks_per_node: int
    env: dict[str, str]
    """What the environment of every rank has besides the ranks' numbers."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def agent_store(self) -> tuple[str, int]:
        """Where torchrun's agent keeps a store for the ranks to meet at."""
        return self.env["MASTER_ADDR"], int(self.env["MASTER_PORT"])


def job_of(args: argparse.Namespace, *, seed: int) -> Job:
    """The job that parsed arguments of torchrun ask for.

    Raises:
        UsageError: a value that torchrun would refuse, or one that cannot be simulated.
    """
    for name, reason in REFUSED.items():
        if getattr(args, name, False):
            raise UsageError(reason)
    nodes, ranks_per_node = _nodes(args.nnodes), _ranks_per_node(args.nproc_per_node)
    return Job(
        target=args.training_script,
        args=tuple(args.training_script_args),
        as_module=args.module,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        env=_environment(args, nodes, ranks_per_node, seed),
    )


def flags_without_effect(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """The flags given that a simulation has no use for, as torchrun spells them."""
    given = []
    for action in parser._actions:
        meaningless = action.dest not in (*UNDERSTOOD, *REFUSED) and hasattr(args, action.dest)
        if meaningless and getattr(args, action.dest) != action.default:
            given.append(max(action.option_strings, key=len).replace("_", "-"))
    return given


def _nodes(text: str) -> int:
    try:
        counts = [int(part) for part in text.split(":")]
    except ValueError:
        counts = []
    if len(counts) not in (1, 2) or not 1 <= counts[0] <= counts[-1]:
        raise UsageError(f"--nnodes {text}: give a number of nodes, 1 or more, or a range MIN:MAX of such numbers")
    return counts[-1]


def _ranks_per_node(text: str) -> int:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    if text in ("auto", "cpu", "gpu", "xpu"):
        raise UsageError(
            f"--nproc-per-node {text}: give a number, 1 or more; the ranks are simulated, and what this machine has "
            "does not count"
        )
    raise UsageError(f"--nproc-per-node {text}: give a number of ranks per node, 1 or more")


def _environment(args: argparse.Namespace, nodes: int, ranks_per_node: int, seed: int) -> dict[str, str]:
    """As torch/distributed/elastic/agent/server/local_elastic_agent.py sets it for a worker."""
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts}: give 0 or more")
    host, port = _master(args, nodes)
    env = {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "ROLE_NAME": args.role,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(args.max_restarts),
        "TORCHELASTIC_RUN_ID": _run_id(args, nodes, seed),
        "TORCHELASTIC_SIGNALS_TO_HANDLE": args.signals_to_handle,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if ranks_per_node > 1:
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    return env


def _is_local(args: argparse.Namespace, nodes: int) -> bool:
    """torchrun meets on a free local port when one node asks for nothing in particular."""
    unasked = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None
    return bool(args.standalone) or (unasked and nodes == 1)


def _run_id(args: argparse.Namespace, nodes: int, seed: int) -> str:
    if not _is_local(args, nodes):
        return str(args.rdzv_id)
    return str(uuid.UUID(int=random.Random(seed).getrandbits(128), version=4))


def _master(args: argparse.Namespace, nodes: int) -> tuple[str, int]:
    port = DEFAULT_PORT if args.master_port is None else args.master_port
    if _is_local(args, nodes):
        return "localhost", FREE_PORT
    if args.rdzv_backend != "static":
        return "node0", FREE_PORT
    host = args.master_addr
    if args.rdzv_endpoint:
        host, port = _endpoint(args.rdzv_endpoint)
    if not 1 <= port <= 65535:
        raise UsageError(f"master port {port}: give a port from 1 to 65535")
    return ("node0" if nodes > 1 and host in LOOPBACK else host), port


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal():
        return text, DEFAULT_PORT
    return host, int(port)
