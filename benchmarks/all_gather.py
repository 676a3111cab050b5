"""How fast the all-gather kernel is: against the bytes it must move, and against what a user has without it.

    python benchmarks/all_gather.py [--json FILE]                         # one GPU: W ranks as W streams
    torchrun --nproc-per-node gpu benchmarks/all_gather.py [--json FILE]  # one rank a GPU, against NCCL

On one GPU the floor is the bytes read and written, (W + 1) times the result, over the bandwidth of a plain copy that is
measured in the same run (the better of torch's copy_ and an addition of 0). "plain" is the better of two plain-torch
ways to the same buffers: torch.cat into each buffer, and a copy of each shard into each buffer. All is timed in CUDA
graphs, in turns; a figure is the median, in brackets the smallest and the largest. Figures hold for one machine and
one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a hardware queue a stream: the ranks wait for each other

import torch
import torch.distributed as dist
import triton

from refimpl.kernels.loopback import all_gather_on_streams, loopback, preload
from refimpl.kernels.multimem_all_gather import launch
from refimpl.kernels.workspace import LaunchConfig, Workspace

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
WORLDS = (2, 4, 8)
TURNS = 15
ROWS = 64


def replay_us(run: Callable[[], object], inner: int) -> Callable[[], float]:
    """A function that gives the microseconds of one `run`, captured `inner` times in a graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / inner

    once()
    return once


def in_turns(runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """All figures of all candidates, one after the other in each turn."""
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            figures[name].append(run())
    return figures


def copy_bandwidth(device: torch.device) -> list[float]:
    """Bytes read and written a second by the better of two plain copies, several times; 2 GiB each way."""
    source = torch.rand(512 * MIB, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "add": lambda: torch.add(source, 0.0, out=target),
    }
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS + 1):
        for name, run in ways.items():
            start.record()
            run()
            end.record()
            end.synchronize()
            figures[name].append(2 * source.nbytes / (start.elapsed_time(end) * 1e-3))
    return max((rates[1:] for rates in figures.values()), key=statistics.median)


def shown(figures: list[float]) -> str:
    return f"{statistics.median(figures):9.1f} [{min(figures):.1f}, {max(figures):.1f}]"


def one_size(
    streams: list[torch.cuda.Stream], nbytes: int, device: torch.device, config: LaunchConfig | None = None
) -> dict[str, Any]:
    """Times of one gather whose result has `nbytes`, a rank on each of the streams."""
    world = len(streams)
    ranks = loopback(world, capacity=nbytes, device=device)
    columns = nbytes // world // ROWS if nbytes // world >= 16 * ROWS else 16
    rows = nbytes // world // columns
    shards = list(torch.randint(0, 256, (world, rows, columns), dtype=torch.uint8, device=device))
    views = [rank.buffer.view(rows, world * columns) for rank in ranks]
    inner = 1 if nbytes >= 16 * MIB else 10

    def kernel() -> None:
        all_gather_on_streams(ranks, shards, streams)

    def configured() -> None:
        current = torch.cuda.current_stream()
        for rank, shard, stream in zip(ranks, shards, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                launch(rank, shard, entry_sync=True, config=config)
        for stream in streams:
            current.wait_stream(stream)

    def cat() -> None:
        for view in views:
            torch.cat(shards, dim=-1, out=view)

    def copies() -> None:
        for view in views:
            for number, part in enumerate(view.split(columns, dim=-1)):
                part.copy_(shards[number])

    runs = {"kernel": replay_us(configured if config else kernel, inner)}
    if config is None:
        runs |= {"cat": replay_us(cat, inner), "copies": replay_us(copies, inner)}
    return in_turns(runs)


def on_one_gpu(device: torch.device) -> dict[str, Any]:
    """The table of one GPU."""
    bandwidth = copy_bandwidth(device)
    rate = statistics.median(bandwidth)
    low, high = min(bandwidth) / 1e12, max(bandwidth) / 1e12
    print(f"copy of 2 GiB: {rate / 1e12:.2f} TB/s read and written [{low:.2f}, {high:.2f}]")
    print(f"{'W':>2} {'result':>9} {'kernel us':>26} {'floor us':>9} {'ratio':>6} {'plain us':>26} {'ratio':>6}")
    rows = []
    for world in WORLDS:
        preload(world, device)
        streams = [torch.cuda.Stream() for _ in range(world)]
        for nbytes in SIZES:
            figures = one_size(streams, nbytes, device)
            plain = min(figures["cat"], figures["copies"], key=statistics.median)
            floor = (world + 1) * nbytes / rate * 1e6
            kernel = statistics.median(figures["kernel"])
            print(
                f"{world:2} {nbytes // KIB:6} KiB {shown(figures['kernel']):>26} {floor:9.1f} {kernel / floor:6.2f} "
                f"{shown(plain):>26} {statistics.median(plain) / kernel:6.2f}"
            )
            rows.append({"world": world, "bytes": nbytes, "floor_us": floor, **figures})
    return {"copy_bytes_per_s": bandwidth, "rows": rows}


def sweep(device: torch.device) -> dict[str, Any]:
    """Launch configurations at W = 8: what `launch_config` is chosen from.

    All programs must find room on the device at once, or the ranks wait for ever: two with up to 64 registers a thread
    and 512 threads fit on a multiprocessor.
    """
    rows: list[tuple[int, float, LaunchConfig]] = []
    streams = [torch.cuda.Stream() for _ in range(8)]
    configs = [
        LaunchConfig(programs, block, warps)
        for block in (512, 1024, 2048, 4096)
        for warps in (4, 8, 16)
        for programs in (1, 2, 4, 8, 16, 32)
        if 1 <= block // (warps * 32) <= 4 and (programs <= 16 or block <= 1024)
    ]
    for config in configs:
        preload(8, device, block=config.block, warps=config.warps)
        for nbytes in (64 * KIB, MIB, 64 * MIB, 256 * MIB):
            steps = nbytes // 8 // 16 / (config.programs * config.block)
            if 1 <= steps <= 2048 or (config.programs == 1 and steps <= 1):
                figures = one_size(streams, nbytes, device, config)["kernel"]
                rows.append((nbytes, statistics.median(figures), config))
    for nbytes in sorted({row[0] for row in rows}):
        for _, us, best in sorted((row for row in rows if row[0] == nbytes), key=lambda row: row[1])[:8]:
            print(f"{nbytes // KIB:7} KiB: {us:8.1f} us with {best}")
    return {"sweep": [(nbytes, us, str(config)) for nbytes, us, config in rows]}


def on_many_gpus() -> dict[str, Any]:
    """One rank a GPU: the kernel against NCCL and torch's own symmetric-memory all-gather, if they run here."""
    from refimpl.distributed import BootstrapArgs, ParallelLayout, bring_up, get_tp_group
    from refimpl.kernels.multimem_all_gather import all_gather
    from refimpl.kernels.symmetric import build_workspace

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    layout = ParallelLayout(tp=world)
    bring_up(BootstrapArgs(layout=layout, cohort_rank=rank, backend="nccl", device=str(device), init_method="env://"))
    group = get_tp_group()
    built, reason = build_workspace(group, max(SIZES))
    if built is None:
        raise SystemExit(f"no symmetric memory here: {reason}")
    workspace: Workspace = built
    rows = []
    for nbytes in SIZES:
        shard = torch.randint(0, 256, (ROWS, max(16, nbytes // world // ROWS)), dtype=torch.uint8, device=device)
        out = torch.empty(world * shard.shape[0], shard.shape[1], dtype=torch.uint8, device=device)
        runs = {
            "kernel": replay_us(lambda shard=shard: all_gather(workspace, shard), 5),
            "nccl": replay_us(
                lambda shard=shard, out=out: dist.all_gather_into_tensor(out, shard, group=group.device_group), 5
            ),
        }
        figures = in_turns(runs)
        rows.append({"world": world, "bytes": nbytes, **figures})
        if rank == 0:
            print(f"{world} GPUs {nbytes // KIB:7} KiB " + "  ".join(f"{n} {shown(f)}" for n, f in figures.items()))
        group.barrier()
    return {"transport": "multicast" if workspace.multicast else "peer stores", "rows": rows}


def main() -> None:
    """Measure what this machine allows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--sweep", action="store_true", help="try launch configurations instead (one GPU)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU; torch sees none here")
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    device = torch.device("cuda", 0)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    if int(os.environ.get("RANK", "0")) == 0:
        print(", ".join(f"{name} {value}" for name, value in about.items()))
    figures = on_many_gpus() if many else sweep(device) if args.sweep else on_one_gpu(device)
    if args.json is not None and int(os.environ.get("RANK", "0")) == 0:
        args.json.write_text(json.dumps({**about, **figures}, indent=1))


if __name__ == "__main__":
    main()
