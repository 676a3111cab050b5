"""What an operator of torch does to the tensors that it is given, by its schema: reads, writes, views.

Not known: what an operator written in Python does inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

_NO_VALUES = ("_unsafe_view", "_reshape_alias", "record_stream", "is_same_size", "resize_")
_OVERWRITE = ("copy_", "fill_", "zero_", "set_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_")


class Operand(NamedTuple):
    """One argument that holds tensors: where it stands, and what happens to them."""

    place: int
    name: str
    written: bool
    viewed: bool
    read: bool


def operands(func: Any) -> Iterator[Operand]:
    """The tensors that an operator takes, and what it does to them; none for a question about a tensor."""
    name = func.overloadpacket.__name__
    if torch.Tag.inplace_view in func.tags or name in _NO_VALUES or name.endswith("_like") or name.startswith("new_"):
        return
    for place, given in enumerate(func._schema.arguments):
        if "Tensor" in str(given.type):
            alias = given.alias_info
            written = alias is not None and alias.is_write
            only = given.kwarg_only or (place == 0 and name in _OVERWRITE)
            viewed = alias is not None and not written
            yield Operand(place, given.name, written, viewed, not (written and only))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or those of a list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        yield from (each for each in value if isinstance(each, torch.Tensor))


def shares(tensor: torch.Tensor, result: Any) -> bool:
    """Whether a view came out, and not a copy (`reshape` gives either)."""
    mine = tensor.untyped_storage().data_ptr()
    return all(each.untyped_storage().data_ptr() == mine for each in tensors_in(result) if type(each) is torch.Tensor)
