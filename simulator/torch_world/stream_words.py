"""Words that torch writes on the current stream: `memset32` and `stream_write_value32`. Here they are written at once.

On the stream a written value comes after a fence for the whole system, a fill does not (CUDA driver API,
cuStreamWriteValue32).

Source: torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu, for checks and texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simulator.memory_records import Access
from simulator.torch_world.host_order import await_stream
from simulator.torch_world.symmetric_space import bare
from simulator.torch_world.touched import spans_of

if TYPE_CHECKING:
    from simulator.torch_world.simulation import Simulation

_UINT32_MAX = (1 << 32) - 1


def fill_words(sim: Simulation, tensor: torch.Tensor, offset: int, value: int, count: int) -> torch.Tensor:
    """Set `count` words of a flat uint32 tensor, from `offset` on.

    Raises:
        RuntimeError: not such a tensor, or words that it does not have, with torch's texts.
    """
    _check("memset32_", tensor, offset, value)
    if count <= 0:
        raise RuntimeError(f"symm_mem::memset32_: count must be a positive integer (got {count})")
    if offset + count > tensor.numel():
        raise RuntimeError(
            f"symm_mem::memset32_: offset + count ({offset + count}) exceeded the numel of the input ({tensor.numel()})"
        )
    return _write(sim, tensor, offset, value, count, "weak")


def write_word(sim: Simulation, tensor: torch.Tensor, offset: int, value: int) -> torch.Tensor:
    """Set one word of a flat uint32 tensor.

    Raises:
        RuntimeError: not such a tensor, or a word that it does not have, with torch's texts.
    """
    _check("stream_write_value32_", tensor, offset, value)
    if offset >= tensor.numel():
        raise RuntimeError(
            f"symm_mem::stream_write_value32_: offset ({offset}) exceeded the numel of the input ({tensor.numel()})"
        )
    return _write(sim, tensor, offset, value, 1, "release")


def _check(name: str, tensor: torch.Tensor, offset: int, value: int) -> None:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.dtype != torch.uint32:
        raise RuntimeError(f"symm_mem::{name}: input must be a flat, contiguous uint32 tensor.")
    if offset < 0:
        raise RuntimeError(f"symm_mem::{name}: offset must be greater than or equal to 0 (got {offset})")
    if not 0 <= value <= _UINT32_MAX:
        raise RuntimeError(f"symm_mem::{name}: val must be in the range of [0, {_UINT32_MAX}] (uint32_t).")


def _write(sim: Simulation, tensor: torch.Tensor, offset: int, value: int, count: int, order: str) -> torch.Tensor:
    await_stream(sim)
    with bare():
        words = tensor.detach()[offset : offset + count]
        words.fill_(value)
    record(sim, words, "write", order)
    return tensor


def record(sim: Simulation, tensor: torch.Tensor, kind: str, order: str) -> None:
    """The calling rank reads or writes all of a tensor, not through an operator."""
    context = sim.here()
    if context is None:
        return
    with bare():
        spans = spans_of(sim.memory, tensor)
    if spans:
        actor, scope = sim.memory.host(context.rank).number, "" if order == "weak" else "sys"
        sim.memory.record(Access(actor, kind, order, scope, spans, sim.sites.capture(1)))
