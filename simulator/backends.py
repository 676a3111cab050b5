"""How the simulated backends differ: plain data, and the texts of their errors.

Sources: torch's ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp, gloo's unbound_buffer.cc; for Mooncake measurements (see
docs/limits.md). `tests/unit/test_collectives.py` and its neighbours compare the gloo column with the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

Raises = Callable[[int, str], BaseException]
BITWISE = frozenset({"BAND", "BOR", "BXOR"})
_COMMON = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool,
           torch.int32, torch.int64)  # fmt: skip
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendModel:
    """How one backend differs from the others."""

    name: str
    title: str
    """As its own messages spell it."""
    error: type[Exception] = RuntimeError
    """What it raises for wrong arguments."""
    refused_reduce_ops: frozenset[str] = frozenset()
    """ReduceOps that it does not have."""
    refused_ops: frozenset[str] = frozenset()
    """Collectives that it does not have, as torch's backend class names them."""
    dtypes: frozenset[torch.dtype] | None = None
    """What collectives take; None: anything."""
    bad_dtype: Callable[[torch.dtype], Exception] = lambda dtype: TypeError(f"{dtype} is not supported")
    strides: str = "honour"
    """Tensors that are not contiguous: `honour`, `refuse`, or `ignore` (it takes the memory as if they were)."""
    equal_shapes: bool = False
    """The pieces of a collective must have the shape of the whole's rows, not only their number of elements."""
    any_source: bool = True
    """It can receive from any source."""
    monitored_barrier: bool = False
    """It has monitored_barrier."""
    notices_death: bool = False
    """Peers of a dead process get an error at once."""
    keeps_time: bool = True
    """It honours time-outs."""
    splits: bool = False
    """It can split a group (split_group)."""
    coalesces: bool = False
    """It can collect calls between _start_coalescing and _end_coalescing."""
    lazy_messages: bool = False
    """A message, once met, counts as completed only when somebody has waited for it; and it has no future."""
    early_exits: bool = False
    """A rank leaves a rooted collective once those have come with whom it exchanges messages (early_exits)."""
    self_messages: bool = True
    """A rank can send to itself."""
    on_device: bool = False
    """Its collectives run on a device: the host goes on, and waits where it reads."""
    connects_at_first_use: bool = False
    """The first use of a connection holds the host until the other end has called."""
    has_tags: bool = True
    """Messages meet by tag."""
    usable_after_destroy: bool = False
    """`destroy_process_group` of a sub-group leaves the object usable."""
    timed_out: Raises = lambda ms, op: RuntimeError(f"{op} timed out after {ms} ms")
    """The error of a collective that exceeded the group's time-out."""

    def refuse(self, op: str, text: str) -> Exception:
        """The error for a wrong argument of `op` (as the backend calls it)."""
        return self.error(f"ProcessGroup{self.title}::{op}: {text}")


def _gloo_timed_out(ms: int, op: str) -> RuntimeError:
    """gloo names the half of the operation that did not come to an end; which one depends on its algorithm."""
    half = "send" if op in ("send", "all_gather", "all_to_all", "all_to_all_single") else "recv"
    return RuntimeError(f"[gloo] Timed out waiting {ms}ms for {half} operation to complete")


GLOO = BackendModel(
    name="gloo",
    title="Gloo",
    refused_reduce_ops=frozenset({"PREMUL_SUM"}),
    refused_ops=frozenset({"alltoall"} if torch.__version__.startswith("2.11.") else ()),
    dtypes=frozenset(_COMMON),
    bad_dtype=lambda dtype: RuntimeError("Invalid scalar type"),
    strides="ignore",
    equal_shapes=True,
    monitored_barrier=True,
    notices_death=True,
    lazy_messages=True,
    early_exits=True,
    self_messages=False,
    usable_after_destroy=True,
    timed_out=_gloo_timed_out,
)
NCCL = BackendModel(
    name="nccl",
    title="NCCL",
    error=ValueError,
    any_source=False,
    splits=True,
    coalesces=True,
    refused_reduce_ops=BITWISE,
    dtypes=frozenset((*_COMMON, *_FLOAT8, *_COMPLEX)),
    bad_dtype=lambda dtype: TypeError(f"Input tensor data type is not supported for NCCL process group: {dtype}"),
    strides="refuse",
    on_device=True,
    connects_at_first_use=True,
    has_tags=False,
    timed_out=lambda ms, op: dist.DistBackendError(
        f"[nccl] Watchdog caught collective operation timeout: {op} ran for {ms} milliseconds before timing out."
    ),
)
MOONCAKE = BackendModel(
    name="mooncake",
    title="Mooncake",
    any_source=False,
    keeps_time=False,
    strides="ignore",
    has_tags=False,
)
MODELS = {"gloo": GLOO, "nccl": NCCL, "mooncake": MOONCAKE, "mooncake-cpu": MOONCAKE}


UNNAMED = (timedelta(0), timedelta(milliseconds=-1))
"""What stands for no time-out: kNoTimeout and kUnsetTimeout."""


def seconds(timeout: timedelta | None) -> float | None:
    """None where none is named: missing, zero (kNoTimeout), or -1 ms (kUnsetTimeout). Another negative one is over."""
    if timeout is None or timeout in UNNAMED:
        return None
    return max(0.0, timeout.total_seconds())
