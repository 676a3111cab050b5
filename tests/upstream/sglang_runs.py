"""What is run of SGLang: its own `init_distributed_environment` and `initialize_model_parallel`, on simulated ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from refimpl.distributed import ParallelLayout
from simulator import Cluster, Limits, Outcome
from tests.upstream.rows import Row, timed

ISOLATE = ("sglang.srt.distributed.*", "sglang.srt.runtime_context", "sglang.srt.layers.dp_attention")
GROUPS = ("tp", "pp", "attn_tp", "attn_cp", "moe_ep", "moe_tp", "moe_dp", "dcp", "self_pp")
"""Sub-groups of SGLang that refimpl has too; SGLang keeps each in a global of that name in capitals."""
WIDTHS = {
    "tp": ("tensor_model_parallel_size", "tp_size"),
    "pp": ("pipeline_model_parallel_size", "pp_size"),
    "moe_ep": ("expert_model_parallel_size", "moe_ep_size"),
    "attn_dp": ("attention_data_parallel_size", "attn_dp_size"),
    "attn_cp": ("attention_context_model_parallel_size", "attn_cp_size"),
    "moe_dp": ("moe_data_model_parallel_size", "moe_dp_size"),
    "dcp": ("decode_context_parallel_size", "attn_dcp_size"),
}
"""For each width, the parameter that SGLang takes it in, and, from 0.5.23 on, the name in its context."""
PLAIN = (
    {"tp": 8},
    {"tp": 8, "moe_ep": 8},
    {"tp": 4, "pp": 2},
    {"tp": 8, "attn_dp": 2},
    {"tp": 8, "dcp": 2},
)
SERVING, JOINING, CAPACITY = 4, 2, 8
PATIENCE_S, POLL_S = 10.0, 0.5
Lists = dict[str, tuple[int, ...]]
OPTIONS: dict[str, Any] = {"isolate": ISOLATE, "accelerator": "cuda", "limits": Limits(spin_wall_s=120.0)}
"""The first rank imports SGLang, and torch's compiler with it: seconds, on a busy machine many."""


def start(widths: dict[str, int], backend: str, rank: int, world: int, **joiner: Any) -> Any:
    """One rank's start, as SGLang's worker makes it. `joiner`: what SGLang's bootstrap gives a joining one."""
    from sglang.srt.distributed import parallel_state

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.set_custom_all_reduce(False)  # its kernels are no Python
    elastic = {"recovered_rank": joiner.get("recovered_rank", False), "max_world_size": joiner.get("capacity")}
    parallel_state.init_distributed_environment(
        backend=backend, world_size=world, rank=rank, local_rank=torch.cuda.current_device(), distributed_init_method="env://",
        **(elastic if joiner else {}),
    )  # fmt: skip
    offset = {"rank_offset": joiner["rank_offset"]} if joiner.get("rank_offset") else {}
    if offset and not joiner["before_repair"]:
        elastic = {"recovered_rank": False, "max_world_size": None}
    _initialize(parallel_state, widths, {**(elastic if joiner else {}), **offset})
    return parallel_state


def _initialize(parallel_state: Any, widths: dict[str, int], rest: dict[str, Any]) -> None:
    code = parallel_state.initialize_model_parallel.__code__
    if "tensor_model_parallel_size" in code.co_varnames[: code.co_argcount]:
        given = {WIDTHS[name][0]: width for name, width in widths.items()}
        parallel_state.initialize_model_parallel(**given, **rest)
        return
    from sglang.srt.runtime_context import get_parallel

    given = {by_context: widths.get(name, 1) for name, (_, by_context) in WIDTHS.items()}
    with get_parallel().override(shared_experts_tp_size=1, **given):
        parallel_state.initialize_model_parallel(**rest)


def lists_of(parallel_state: Any) -> Lists:
    """For each group that this rank has, its global ranks."""
    groups = {name: getattr(parallel_state, f"_{name.upper()}", None) for name in GROUPS}
    return {name: tuple(group.ranks) for name, group in groups.items() if group is not None}


def expected(widths: dict[str, int], rank: int, offset: int = 0) -> Lists:
    """The same of refimpl."""
    layout = ParallelLayout(**widths)
    present = [name for name in GROUPS if name in layout.resolved()]
    return {name: next(r for r in layout.rank_lists(name, offset) if rank in r) for name in present}


def _plain(rank: int, widths: dict[str, int], backend: str, world: int) -> Lists:
    return lists_of(start(widths, backend, rank, world))


def plain(version: str, *, backends: tuple[str, ...] = ("gloo", "nccl", "mooncake"), layouts: Any = PLAIN) -> list[Row]:
    """Plain launches: each layout on each backend. The detail says where rank lists differ from refimpl's."""
    rows = []
    for widths in layouts:
        for backend in backends:
            world = widths["tp"] * widths.get("pp", 1)
            cluster = Cluster(nodes=1, **OPTIONS).launch(_plain, ranks=world, args=(widths, backend, world))
            outcome, wall_s = timed(cluster.run)
            name = " ".join(f"{key} {width}" for key, width in widths.items())
            differing = _differing(outcome, widths)
            rows.append(Row.of(f"sglang {name}, {backend}", version, world, wall_s, outcome, differing=differing))
    return rows


def _differing(outcome: Outcome, widths: dict[str, int]) -> list[str]:
    return [
        f"rank {rank} {name}: {got.get(name)} here, {want} in refimpl"
        for rank, got in outcome.results.items()
        for name, want in expected(widths, rank).items()
        if name in got and got[name] != want
    ]


# -- EP4 -> EP6 -----------------------------------------------------------------------------------------------------


def _serve(rank: int, widths: dict[str, int]) -> Any:
    start(widths, "mooncake", rank, SERVING, capacity=CAPACITY)
    from sglang.srt.elastic_ep.elastic_ep import try_admit_scale_ranks

    deadline_s = time.monotonic() + PATIENCE_S
    while not try_admit_scale_ranks(list(range(SERVING, SERVING + JOINING))):
        if time.monotonic() > deadline_s:
            return "nobody joined"
        time.sleep(POLL_S)
    return _sum_over_world()


def _join(rank: int, widths: dict[str, int], before_repair: bool) -> Any:
    """As `bootstrap._init_parallel_groups` calls the two: before the repair, model-parallel groups were recovered."""
    role = {"recovered_rank": True, "rank_offset": SERVING, "capacity": CAPACITY, "before_repair": before_repair}
    state = start(widths, "mooncake", rank, SERVING + JOINING, **role)
    from sglang.srt.elastic_ep.elastic_ep import join_scale_process_group

    join_scale_process_group()
    return _sum_over_world(), lists_of(state)


def _sum_over_world() -> float:
    ones = torch.ones(1, device="cuda")
    dist.all_reduce(ones)
    return ones.item()


def scale_up(version: str) -> list[Row]:
    """EP4 -> EP6 over Mooncake, with and without decode context parallelism."""
    rows = []
    for dcp in (1, 2):
        serving, joining = ({"tp": n, "moe_ep": n, "dcp": dcp} for n in (SERVING, JOINING))
        cluster = Cluster(nodes=1, **OPTIONS)
        cluster.launch(_serve, ranks=SERVING, args=(serving,))
        cluster.join(_join, ranks=JOINING, rank_offset=SERVING, args=(joining, version == "0.5.19"), at_s=1.0)
        outcome, wall_s = timed(cluster.run)
        results = {str(rank): result for rank, result in outcome.results.items()}
        title = f"sglang EP4 -> EP6, dcp {dcp}, mooncake"
        rows.append(Row.of(title, version, SERVING + JOINING, wall_s, outcome, results=results))
    return rows


# -- mutants --------------------------------------------------------------------------------------------------------


def _mutated(rank: int, mutate: Callable[[int], None], widths: dict[str, int], world: int) -> Lists:
    mutate(rank)
    return _plain(rank, widths, "gloo", world)


def _skip_one(rank: int) -> None:
    """Rank 2 leaves out one `new_group`: that of the device group of pp list 1."""
    from sglang.srt.distributed import parallel_state

    real = parallel_state.torch

    def new_group(ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        skipped = ranks == [1, 5] and kwargs["group_desc"] == "pp:device"
        return dist.GroupMember.NON_GROUP_MEMBER if skipped else dist.new_group(ranks, *args, **kwargs)

    if rank == 2:
        parallel_state.torch = With(real, distributed=With(real.distributed, new_group=new_group))


def _rotate_one(rank: int) -> None:
    """Rank 2 has the lists of the pp groups in another order: the first one last."""
    from sglang.srt.distributed import parallel_state

    real = parallel_state.init_model_parallel_group

    def init_model_parallel_group(group_ranks: Any, *args: Any, **kwargs: Any) -> Any:
        rotated = [*group_ranks[1:], group_ranks[0]] if kwargs.get("group_name") == "pp" else group_ranks
        return real(rotated, *args, **kwargs)

    if rank == 2:
        parallel_state.init_model_parallel_group = init_model_parallel_group


class With:
    """A module as it is, but for some of its names."""

    def __init__(self, real: Any, **names: Any) -> None:
        self._real = real
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def mutants(version: str) -> list[Row]:
    """One rank skips a `new_group`; one rank's lists are rotated."""
    widths, world, rows = {"tp": 4, "pp": 2}, 8, []
    for mutate in (_skip_one, _rotate_one):
        cluster = Cluster(nodes=1, **OPTIONS).launch(_mutated, ranks=world, args=(mutate, widths, world))
        outcome, wall_s = timed(cluster.run)
        rows.append(Row.of(f"sglang tp 4 pp 2, {mutate.__name__.strip('_')}", version, world, wall_s, outcome))
    return rows


# -- the gatherer ---------------------------------------------------------------------------------------------------


def _gather(rank: int, world: int, backend: str, nnodes: int | None) -> str:
    """Make the gatherer; `nnodes` is what the settings say, None: they are not published yet."""
    start({"tp": world}, backend, rank, world)
    from sglang.srt.distributed.device_communicators.triton_symm_mem_ag import MultimemAllGatherer

    with _settings(nnodes):
        gatherer = MultimemAllGatherer(max_tokens=64)
    return "multimem off" if gatherer._state is None else "multimem kept"


@contextmanager
def _settings(nnodes: int | None) -> Iterator[None]:
    from sglang.srt import runtime_context

    if nnodes is None:
        yield
    elif hasattr(runtime_context.get_parallel(), "override_permanently"):
        with runtime_context.get_parallel().override(nnodes=nnodes):
            yield
    else:
        runtime_context._CONTEXT.set_server_args(SimpleNamespace(nnodes=nnodes))
        yield


GATHERERS: dict[str, tuple[int, int, str, int | None]] = {
    "nnodes 1": (4, 1, "mooncake", 1),
    "world 1, settings not published": (1, 1, "mooncake", None),
    "settings say nnodes 2, one node": (4, 1, "mooncake", 2),
    "two nodes": (4, 2, "gloo", 2),
}
"""Ranks, nodes, backend, and nnodes of the settings."""


def gatherer(version: str) -> list[Row]:
    """SGLang's multimem gatherer, with and without a reason to probe the topology."""
    rows = []
    for name, (world, nodes, backend, nnodes) in GATHERERS.items():
        backend = "gloo" if version == "0.5.15" else backend  # its Mooncake is an older one, the module mooncake.ep
        cluster = Cluster(nodes=nodes, gpus_per_node=max(1, world // nodes), **OPTIONS)
        cluster.launch(_gather, ranks=world, args=(world, backend, nnodes))
        outcome, wall_s = timed(cluster.run)
        states = sorted(set(outcome.results.values()))
        rows.append(Row.of(f"sglang gatherer, {name}", version, world, wall_s, outcome, states=states))
    return rows
