"""What ranks return, as leaves that can be compared between runs: numbers, texts and tensors, by their path.

    leaves({0: {"loss": 0.5, "seen": [1, 2]}})      # {"0.loss": 0.5, "0.seen.0": 1, "0.seen.1": 2, ...}

Compared with a tolerance: floating-point numbers. Not compared: other objects, of which only the type counts, and what
lies deeper than eight levels. What differs between two runs of one schedule (times, pids, addresses) is volatile, and
left out by whoever compares.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

DEPTH_MAX = 8
LEAVES_MAX = 20_000
LISTED_MAX = 1_024
"""Elements up to which a tensor is compared one by one; a larger one by its sums."""
TOLERANCE = 1e-5

Leaves = dict[str, object]


def leaves(value: object) -> Leaves:
    """Path to value, `LEAVES_MAX` at most."""
    found: Leaves = {}
    for path, leaf in _walk(value, "", 0):
        found[path] = leaf
        if len(found) >= LEAVES_MAX:
            break
    return found


def _walk(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        yield path, value
    elif depth >= DEPTH_MAX:
        yield path, type(value).__name__
    elif _is_tensor(value):
        yield from _tensor(value, path)
    else:
        yield from _parts(value, path, depth)


def _parts(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    yield f"{path}:type", type(value).__name__
    for name, part in _named(value):
        yield from _walk(part, f"{path}.{name}" if path else name, depth + 1)


def _named(value: object) -> list[tuple[str, object]]:
    """The parts of a container by name; those of a set, and the keys of a mapping, have no order."""
    if isinstance(value, Mapping):
        return [(_key(key), value[key]) for key in value]
    if isinstance(value, set | frozenset):
        return [(str(index), part) for index, part in enumerate(sorted(map(repr, value)))]
    if isinstance(value, list | tuple):
        return [(str(index), part) for index, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def _key(key: object) -> str:
    return key if isinstance(key, str) else repr(key)


def _is_tensor(value: object) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "tolist")


def _tensor(value: Any, path: str) -> Iterator[tuple[str, object]]:
    """A tensor of torch or an array of NumPy: dtype, shape, elements or a digest of them."""
    yield f"{path}:type", f"{value.dtype} {list(value.shape)}"
    value = value.detach() if hasattr(value, "detach") else value
    flat = value.reshape(-1).tolist()
    if len(flat) <= LISTED_MAX:
        for index, element in enumerate(flat):
            yield f"{path}[{index}]", element
    elif flat and isinstance(flat[0], float):
        yield f"{path}:sum", math.fsum(x for x in flat if math.isfinite(x))
        yield f"{path}:sum of squares", math.fsum(x * x for x in flat if math.isfinite(x))
        yield f"{path}:weighted sum", math.fsum(i * x for i, x in enumerate(flat, 1) if math.isfinite(x))
    else:
        yield f"{path}:digest", hashlib.sha256(repr(flat).encode()).hexdigest()


def differing(first: Leaves, second: Leaves, *, tolerance: float = TOLERANCE) -> list[str]:
    """Paths at which two results differ, in the order of the first. `tolerance`: of floats, absolute and relative."""
    paths = dict.fromkeys((*first, *second))
    return [path for path in paths if not _alike(first.get(path, _ABSENT), second.get(path, _ABSENT), tolerance)]


_ABSENT = ("absent",)


def _alike(first: object, second: object, tolerance: float) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
    return type(first) is type(second) and first == second
