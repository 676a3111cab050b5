"""What is said of multicast: whether a rank has it, and the operators `torch.ops.symm_mem` that would use it.

None of these operators is modelled: they are CUDA kernels inside torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.torch_world.context import RankContext

if TYPE_CHECKING:
    from simulator.torch_world.simulation import Simulation

_MULTICAST = ("multimem_", "memcpy_to_multicast_")


def is_set(context: RankContext, name: str) -> bool:
    """Whether an environment variable of the rank is 1."""
    return context.env.get(name.encode()) == b"1"


def multicast_allowed(sim: Simulation, context: RankContext) -> bool:
    """Whether the rank's device has multicast, and its environment lets it be used."""
    return sim.multicast and not is_set(context, "TORCH_SYMM_MEM_DISABLE_MULTICAST")


def refuse_operator(sim: Simulation, name: str) -> None:
    """A rank calls `torch.ops.symm_mem.<name>`.

    Raises:
        RuntimeError: it needs multicast, and the rank has none; as torch does.
        NotImplementedError: it is not modelled.
    """
    context = sim.must_be_here(f"torch.ops.symm_mem.{name}")
    if name.startswith(_MULTICAST) and not multicast_allowed(sim, context):
        sim.note("no_multicast", f"torch.ops.symm_mem.{name} needs multicast", off=not sim.multicast)
        raise RuntimeError(f"{name}: requires multicast support.")
    raise NotImplementedError(
        f"torch.ops.symm_mem.{name} is not modelled, since it is a CUDA kernel of torch: let the code under test take "
        "a path without it, such as collectives, or kernels in Triton"
    )
