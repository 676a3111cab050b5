"""What a launch was given: parameters of the kernel, options of the launch, the grid.

Harmless options (`num_stages`, `maxnreg`, ...) are accepted and change nothing. Refused, as they change what a kernel
may rely on: clusters (`num_ctas`), programmatic dependent launch, a cooperative grid that is not resident at once.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from simulator.torch_world.gpu.place import is_on_gpu
from simulator.triton_world import triton_api
from simulator.triton_world.errors import NotModelled

WARP = 32
WARPS_MAX = 32
GRID_MAX = (2**31 - 1, 65_535, 65_535)


@dataclass(frozen=True, slots=True)
class Given:
    """A launch, sorted out.

    Attributes:
        values: parameters as the user gave them, with defaults.
        warps: of a program.
        cooperative: the programs are to be resident at once.
    """

    values: dict[str, Any]
    warps: int
    cooperative: bool
    debug: bool


def given(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
    """Bind the arguments of `kernel[grid](*args, **kwargs)`.

    Raises:
        TypeError: they do not fit the parameters.
        KeyError: a keyword is neither a parameter nor an option.
        NotModelled: an option asks for what is not modelled.
    """
    signature = inspect.signature(kernel.fn)
    options = {name: value for name, value in kwargs.items() if name not in signature.parameters}
    known = triton_api.launch_options()
    for name in options:
        if name not in known:
            raise KeyError(f"Keyword argument {name} was specified but unrecognised")
    bound = signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in options})
    bound.apply_defaults()
    if options.get("num_ctas", 1) != 1:
        raise NotModelled(f"num_ctas={options['num_ctas']}: clusters of programs")
    if options.get("launch_pdl"):
        raise NotModelled("launch_pdl: a kernel that starts before the one before it has ended")
    warps = int(options.get("num_warps", 4))
    if not 1 <= warps <= WARPS_MAX or warps & (warps - 1):
        raise ValueError(f"num_warps={warps}: give a power of two up to {WARPS_MAX}")
    debug = bool(options.get("debug") or triton_api.debug_wanted(kernel))
    return Given(dict(bound.arguments), warps, bool(options.get("launch_cooperative_grid")), debug)


def converted(kernel: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the interpreter wants them: constexprs as they are, tensors as pointers, numbers as scalars."""
    out = {}
    for parameter in triton_api.parameters(kernel.fn):
        value = values[parameter.name]
        for tensor in tensors_in([value]):
            if tensor.device.type != "cpu" and not is_on_gpu(tensor):
                raise NotModelled(f"{parameter.name} is a tensor on {tensor.device}: simulated ranks have CPU memory")
        constant = parameter.is_constexpr
        out[parameter.name] = _plain(value) if constant else triton_api.argument(value, parameter.annotation_type)
    return out


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, triton_api.constexpr) else value


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments: bare, wrapped, in tuples, or under descriptors."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from tensors_in(value)
        else:
            base = getattr(value, "base", None)
            if isinstance(base, torch.Tensor):
                yield base


def grid_of(grid: Any, values: Mapping[str, Any]) -> tuple[int, int, int]:
    """The number of programs along x, y, z.

    Raises:
        ValueError: more axes, or more programs along one, than hardware has.
    """
    axes = grid(dict(values)) if callable(grid) else grid
    axes = tuple(operator.index(each) for each in (axes if isinstance(axes, tuple | list) else (axes,)))
    if not 1 <= len(axes) <= 3:
        raise ValueError(f"a grid has one to three axes, and this one is {axes}")
    whole = (*axes, 1, 1)[:3]
    if any(not 0 <= each <= limit for each, limit in zip(whole, GRID_MAX, strict=True)):
        raise ValueError(f"the grid {axes} is out of bounds: at most {GRID_MAX}")
    return whole
