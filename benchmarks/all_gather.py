"""How fast the all-gather kernel is: against the bytes it must move, and against what a user has without it.

    python benchmarks/all_gather.py [--json FILE]                         # one GPU: W ranks as W streams
    torchrun --nproc-per-node gpu benchmarks/all_gather.py [--json FILE]  # one rank a GPU, against NCCL

On one GPU the floor is the bytes read and written, (W + 1) times the result, over the bandwidth of a plain copy that is
measured in the same run. "plain" is the best of two plain-torch ways to the same buffers: torch.cat into each buffer,
and a copy of each shard into each buffer. All is timed in CUDA graphs, in turns; a figure is the median, in brackets
the smallest and the largest. Figures hold for one machine and one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Bytes read and written a second by a plain copy, several times; 1 GiB each way."""
    source = torch.randint(0, 256, (1024 * MIB,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    once = replay_us(lambda: target.copy_(source), 1)
    return [2 * source.nbytes / (once() * 1e-6) for _ in range(TURNS)]


def shown(figures: list[float]) -> str:
    return f"{statistics.median(figures):9.1f} [{min(figures):.1f}, {max(figures):.1f}]"


def one_size(world: int, nbytes: int, device: torch.device, config: LaunchConfig | None = None) -> dict[str, Any]:
    """Times of one gather whose result has `nbytes`, on streams of one device."""
    ranks = loopback(world, capacity=nbytes, device=device)
    columns = nbytes // world // ROWS if nbytes // world >= 16 * ROWS else 16
    rows = nbytes // world // columns
    shards = list(torch.randint(0, 256, (world, rows, columns), dtype=torch.uint8, device=device))
    streams = [torch.cuda.Stream() for _ in range(world)]
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
    print(
        f"copy of 1 GiB: {rate / 1e12:.2f} TB/s read and written [{min(bandwidth) / 1e12:.2f}, {max(bandwidth) / 1e12:.2f}]"
    )
    print(f"{'W':>2} {'result':>9} {'kernel us':>26} {'floor us':>9} {'ratio':>6} {'plain us':>26} {'ratio':>6}")
    rows = []
    for world in WORLDS:
        preload(world, device)
        for nbytes in SIZES:
            figures = one_size(world, nbytes, device)
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
    """Launch configurations at W = 8: what `launch_config` is chosen from."""
    rows = []
    for block in (512, 1024, 2048, 4096):
        for warps in (4, 8, 16, 32):
            if block // (warps * 32) < 1:
                continue
            preload(8, device, block=block, warps=warps)
            for nbytes in (64 * KIB, MIB, 64 * MIB, 256 * MIB):
                shard_chunks = nbytes // 8 // 16
                for programs in (1, 4, 16, 32, 64):
                    if programs > max(1, shard_chunks // block) or programs * warps * 8 > 132 * 48:
                        continue
                    figures = one_size(8, nbytes, device, LaunchConfig(programs, block, warps))["kernel"]
                    rows.append((nbytes, statistics.median(figures), programs, block, warps))
    for nbytes in sorted({row[0] for row in rows}):
        best = sorted(row for row in rows if row[0] == nbytes)[:6]
        for _, us, programs, block, warps in best:
            print(f"{nbytes // KIB:7} KiB: {us:8.1f} us with programs={programs} block={block} warps={warps}")
    return {"sweep": rows}


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
