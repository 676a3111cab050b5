"""Simulated GPUs: what a rank sees of them, what tensors say, and that nothing of it stays."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simulator import ClusterOptions, UsageError, simulate
from simulator.cluster import Cluster

ORDINAL = "CUDA error: invalid device ordinal"


def on_gpus(fn, ranks=1, **options):
    """The results of ranks that have GPUs, in order of rank."""
    outcome = simulate(fn, ranks, accelerator="cuda", **options)
    assert outcome.ok, outcome.report() + "".join(record.traceback for record in outcome.ranks.values())
    return [outcome.results[rank] for rank in range(ranks)]


def error_of(call):
    """Type and first line of what a call raises."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "nothing", ""


def test_a_rank_sees_the_gpus_of_its_node():
    """device_count is gpus_per_node; the current device is 0 until the rank chooses one."""

    def work(rank):
        before = torch.cuda.current_device()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return torch.cuda.is_available(), torch.cuda.device_count(), before, torch.cuda.current_device()

    assert on_gpus(work, 4, nodes=2, gpus_per_node=2) == [(True, 2, 0, 0), (True, 2, 0, 1)] * 2


def test_cuda_visible_devices_renumbers():
    """It is read at the first use of a device, and not again."""

    def work(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        seen, wrong = torch.cuda.device_count(), error_of(lambda: torch.ones(1, device="cuda:1"))
        bus = torch.cuda.get_device_properties(0).pci_bus_id
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        return seen, wrong[1], bus, torch.cuda.device_count()

    assert on_gpus(work, 2) == [(1, ORDINAL, 1, 1), (1, ORDINAL, 2, 1)]


def test_no_visible_device_is_no_gpu():
    """An empty list of devices leaves torch.cuda unavailable, and a tensor on it raises."""

    def work(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return torch.cuda.is_available(), error_of(lambda: torch.ones(1, device="cuda"))

    assert on_gpus(work) == [(False, ("RuntimeError", "No CUDA GPUs are available"))]


def test_every_way_to_make_a_tensor_on_a_gpu():
    """Factories, moves, default devices and modules; views and results stay where their operands are."""

    def work(rank):
        torch.cuda.set_device(1)
        host = torch.ones(3)
        made = [torch.ones(3, device="cuda"), torch.tensor([1.0], device="cuda:1"), host.cuda(), host.to("cuda")]
        made += [
            host.to(made[0]),
            torch.zeros_like(made[0]),
            made[0].new_empty(2),
            torch.as_tensor(host, device="cuda"),
        ]
        made += [torch.empty_like(host, device="cuda"), host.type("torch.cuda.FloatTensor"), torch.randn(2, device=1)]
        with torch.device("cuda"):
            made += [torch.arange(3), nn.Linear(2, 2).weight]
        torch.set_default_device("cuda")
        made.append(torch.full((2,), 1.0))
        torch.set_default_device(None)
        made += [made[0] + 1, made[0][1:], made[0].sum(), nn.Linear(2, 2).cuda().weight, 2 * made[0]]
        made += [nn.functional.one_hot(torch.tensor([0, 1], device="cuda"))]
        assert {type(each) for each in made} == {torch.Tensor, nn.Parameter}
        assert all(each.is_cuda and each.get_device() == 1 and not each.is_cpu for each in made)
        host = [torch.ones(2), made[0].cpu(), made[0].to("cpu"), torch.empty_like(made[0], device="cpu")]
        return {str(each.device) for each in made}, {str(each.device) for each in host}

    assert on_gpus(work, gpus_per_node=2) == [({"cuda:1"}, {"cpu"})]


MIXED = {
    "add": "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "add_": "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "mm": "Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors on "
    "cuda:0 (when checking argument in method wrapper_CUDA_mm)",
    "cat": "Expected all tensors to be on the same device, but got tensors is on cpu, different from other tensors on "
    "cuda:0 (when checking argument in method wrapper_CUDA_cat)",
    "index": "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    "numpy": "can't convert cuda:0 device type tensor to numpy. "
    "Use Tensor.cpu() to copy the tensor to host memory first.",
    "generator": "Expected a 'cuda' device type for generator but found 'cpu'",
    "pin": "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    "ordinal": ORDINAL,
    "scalar": "",
    "host_index": "",
    "copy": "",
}


def mixed(rank):
    a, b, i = torch.ones(2, 2, device="cuda"), torch.ones(2, 2), torch.tensor([0])
    calls = {
        "add": lambda: b + a,
        "add_": lambda: b.add_(a),
        "mm": lambda: a @ b,
        "cat": lambda: torch.cat([a, b]),
        "index": lambda: b[i.cuda()],
        "numpy": lambda: a.numpy(),
        "generator": lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
        "pin": lambda: a.pin_memory(),
        "ordinal": lambda: torch.ones(1, device="cuda:9"),
        "scalar": lambda: a + torch.tensor(1.0),
        "host_index": lambda: a[i],
        "copy": lambda: (a.copy_(b), b.copy_(a)),
    }
    return {name: error_of(call)[1] for name, call in calls.items()}


def test_tensors_of_two_devices_raise_what_an_h200_raised():
    """The texts were read off an NVIDIA H200 with torch 2.11."""
    assert on_gpus(mixed) == [MIXED]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_gives_the_same_numbers_on_either_device(device):
    """Forward, backward, optimiser; gradients and states are where the parameters are."""

    def work(rank, device):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
        optimizer, x = torch.optim.AdamW(model.parameters(), lr=0.1), torch.ones(5, 4).to(device)
        for _ in range(3):
            nn.functional.cross_entropy(model(x), torch.zeros(5, dtype=torch.long, device=device)).backward()
            assert all(p.grad.device == p.device for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        return str(model[0].weight.device)[:4].rstrip(":"), [p.detach().cpu().tolist() for p in model.parameters()]

    (kind, numbers), (_, expected) = (on_gpus(work, args=[each])[0] for each in (device, "cpu"))
    assert (kind, numbers) == (device, expected)


def test_gradients_travel_back_through_a_copy():
    """The gradient of `x.cpu()` arrives on the GPU."""

    def work(rank):
        x = torch.ones(2, device="cuda", requires_grad=True)
        (x.cpu() * 3).sum().backward()
        return str(x.grad.device), x.grad.tolist()

    assert on_gpus(work) == [("cuda:0", [3.0, 3.0])]


def test_pickled_and_saved_tensors_come_back_on_their_gpu():
    """Pickle, deepcopy and torch.save keep the device; map_location changes it."""

    def work(rank):
        x, file = torch.ones(2, device="cuda:1"), io.BytesIO()
        torch.save(x, file)
        copies = [pickle.loads(pickle.dumps(x)), copy.deepcopy(x)]
        for where in (None, "cpu", "cuda:0"):
            file.seek(0)
            copies.append(torch.load(file, map_location=where))
        return [str(each.device) for each in copies]

    assert on_gpus(work, gpus_per_node=2) == [["cuda:1", "cuda:1", "cuda:1", "cpu", "cuda:0"]]


class Weight(nn.Parameter):
    """A class of parameters that adds nothing to torch's operators."""


def copies_of_parameters():
    """By the way they are made: parameters and buffers that come of others on a GPU."""
    x, plain = torch.ones(2, device="cuda"), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model, own, file = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda(), Weight(x), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    taken, emptied = copy.deepcopy(plain), copy.deepcopy(plain).to_empty(device="cuda")
    taken.load_state_dict(model.state_dict(), assign=True)
    normed, lazy = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2).cuda()), nn.LazyLinear(2).cuda()
    lazy(torch.ones(1, 3, device="cuda"))
    modules = [copy.deepcopy(model), torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))]
    modules += [taken, emptied, copy.deepcopy(normed), lazy, torch.optim.swa_utils.AveragedModel(model)]
    modules += [nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, batch_first=True), 2).cuda()]
    made = [each for module in modules for each in (*module.parameters(), *module.buffers()) if each.dim()]
    made += [copy.deepcopy(own), copy.copy(own), pickle.loads(pickle.dumps(own)), Weight(torch.ones(2)).cuda()]
    return [
        *made,
        copy.deepcopy(nn.Buffer(x)),
        own.data,
        nn.Parameter(own.data),
        torch.ones(2).as_subclass(Plain).cuda(),
    ]


class Plain(torch.Tensor):
    """A class of tensors that adds nothing to torch's operators."""


def test_copies_of_parameters_stay_on_their_gpu():
    """deepcopy, pickle, torch.load, assigned states, parametrised and lazy modules; classes of parameters too."""

    def work(rank):
        made = copies_of_parameters()
        own = copy.deepcopy(Weight(torch.ones(2, device="cuda")))
        own.data = own.data.cpu()
        mixed = error_of(lambda: Weight(torch.ones(2)) + torch.ones(2, device="cuda"))
        return len(made) > 50, {str(each.device) for each in made}, type(own).__name__, str(own.device), mixed

    assert on_gpus(work) == [(True, {"cuda:0"}, "Weight", "cpu", ("RuntimeError", MIXED["add"]))]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traced_functions_compute_with_numbers():
    """torch.jit.trace of functions with constants, on both devices: same code and results as without GPUs."""

    def work(rank, device):
        traced = torch.jit.trace(lambda a: (a * 2 + 1.5) / 4, torch.ones(2, device=device))
        return traced.code, traced(torch.ones(2, device=device)).cpu().tolist()

    expected = simulate(work, 1, args=["cpu"]).raise_if_bad().results[0]
    assert [on_gpus(work, args=[device])[0] for device in ("cpu", "cuda")] == [expected] * 2
    assert expected[1] == [0.875, 0.875]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_on_a_gpu_are_refused():
    """By all ways to one, with the layout; on the host they are torch's own."""

    def work(rank):
        sparse, there, module = torch.eye(2).to_sparse(), torch.eye(2, device="cuda"), nn.Module()
        module.register_buffer("held", sparse)
        calls = [sparse.cuda, lambda: sparse.to("cuda"), lambda: sparse.to(there), there.to_sparse, module.cuda]
        calls += [lambda: torch.as_tensor(sparse, device="cuda"), lambda: torch.zeros_like(sparse, device="cuda")]
        kept = sparse.to("cpu", torch.float64).to_dense()
        return {error_of(call) for call in calls}, error_of(there.to_sparse_csr)[1], kept.equal(torch.eye(2).double())

    text = "a tensor of layout sparse_{} on a simulated GPU is not modelled (see docs/limits.md): use device='cpu'"
    assert on_gpus(work) == [({("NotImplementedError", text.format("coo"))}, text.format("csr"), True)]


def test_each_gpu_has_its_own_random_numbers():
    """The numbers of a GPU follow from its seed and leave those of the host alone."""

    def work(rank):
        torch.manual_seed(5)
        first, state = torch.rand(2, device="cuda"), torch.cuda.get_rng_state()
        host = torch.rand(1).item()
        more = torch.rand(2, device="cuda")
        torch.cuda.set_rng_state(state)
        again = torch.rand(2, device="cuda")
        torch.cuda.manual_seed(5)
        torch.manual_seed(5)
        return first.equal(torch.rand(2, device="cuda")), again.equal(more), host == torch.rand(1).item()

    assert on_gpus(work) == [(True, True, True)]


def test_memory_is_counted_while_tensors_live():
    """512 bytes for a small tensor, given back with its last view."""

    def work(rank):
        start = torch.cuda.memory_allocated()
        x = torch.ones(3, device="cuda")
        view = x[1:]
        del x
        held, free = torch.cuda.memory_allocated() - start, torch.cuda.mem_get_info()[0]
        del view
        return held, torch.cuda.memory_allocated() - start, torch.cuda.mem_get_info()[0] - free

    assert on_gpus(work) == [(512, 0, 512)]


def test_streams_and_events():
    """The current stream is that of the context; events ask for two records."""

    def work(rank):
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        early = error_of(lambda: event.elapsed_time(event))
        with torch.cuda.stream(stream):
            inside = torch.cuda.current_stream() == stream
            event.record()
        event.synchronize()
        torch.cuda.current_stream().wait_stream(stream)
        outside = torch.cuda.current_stream() == torch.cuda.default_stream()
        return early, inside, outside, event.query(), event.elapsed_time(event)

    early = ("ValueError", "Both events must be recorded before calculating elapsed time.")
    assert on_gpus(work) == [(early, True, True, True, 0.0)]


def test_autocast_casts_on_a_gpu():
    """torch.autocast("cuda") computes matrix products in the dtype that is asked for."""

    def work(rank):
        a = torch.ones(2, 2, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            product = a @ a
        return str(product.dtype), str(product.device), str((a @ a).dtype)

    assert on_gpus(work) == [("torch.bfloat16", "cuda:0", "torch.float32")]


def test_what_is_not_modelled_says_its_name():
    """CUDA graphs and other functions raise NotImplementedError."""

    def work(rank):
        return error_of(torch.cuda.CUDAGraph), error_of(torch.cuda.memory_snapshot)

    text = "torch.cuda.{} is not modelled by the simulated accelerator (see docs/limits.md)"
    kinds = ("CUDAGraph", "memory_snapshot")
    assert on_gpus(work) == [tuple(("NotImplementedError", text.format(name)) for name in kinds)]


def test_nothing_stays_after_the_run():
    """Names, properties and the answer of torch.cuda are as before; a run without the option has no GPU."""
    names = [(torch, "zeros"), (torch.cuda, "Stream"), (torch.Tensor, "to"), (torch.Tensor, "device")]
    names += [(torch.version, "cuda"), (torch.cuda, "is_available"), (torch, "Generator"), (torch, "autocast")]
    before = [getattr(owner, name) for owner, name in names]
    registry, available = vars(torch.serialization)["_package_registry"], torch.cuda.is_available()
    on_gpus(mixed)
    assert [getattr(owner, name) for owner, name in names] == before
    assert "device" not in vars(torch.Tensor)
    assert vars(torch.serialization)["_package_registry"] is registry
    outcome = simulate(lambda rank: (torch.cuda.is_available(), str(torch.ones(1).device)), 1)
    assert outcome.results == {0: (available, "cpu")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_torch_refuses_cuda_again_after_the_run():
    """A CPU build raises its own error for a GPU, as if there had been no simulation."""
    before = error_of(lambda: torch.zeros(1, device="cuda"))
    on_gpus(mixed)
    assert error_of(lambda: torch.zeros(1, device="cuda")) == before != ("nothing", "")


def test_a_wrong_accelerator_is_refused():
    """Only `cuda` is known, and it needs threads."""
    with pytest.raises(UsageError, match="accelerator='rocm': give 'cuda', or leave it out"):
        ClusterOptions(accelerator="rocm")
    with pytest.raises(UsageError, match="needs a thread of its own; give carrier='thread'"):
        Cluster(accelerator="cuda", carrier="greenlet")


def test_real_gloo_works_before_and_after(tmp_path):
    """A process group of one real rank, on both sides of a simulation with GPUs."""
    for number in range(2):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{number}", rank=0, world_size=1)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.destroy_process_group()
        assert x.tolist() == [1.0, 1.0]
        on_gpus(mixed)


FRESH = """
import torch
from simulator import simulate

def body(rank):
    with torch.device("cuda"):
        return torch.ones(1).device.type

assert simulate(body, 1, accelerator="cuda").raise_if_bad().results == {0: "cuda"}
with torch.device("meta"):
    assert torch.ones(1).device.type == torch.arange(3).device.type == "meta"
assert torch.ones in torch.overrides.get_ignored_functions()
"""


def test_tables_that_torch_makes_once_hold_its_own_functions():
    """A process in which nothing has asked for them before: default devices go on working after the run."""
    subprocess.run([sys.executable, "-c", FRESH], check=True, timeout=120)
