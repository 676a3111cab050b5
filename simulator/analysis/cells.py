"""Bytes that all accesses treat alike, as one cell: what holds for one byte of a cell holds for all of them.

A run touches megabytes, but in few pieces: a block of a kernel is one cell, whatever its strides, if everybody reads
and writes it as a whole.  So the number of cells follows the number of accesses, not that of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.memory_records import Access, MemoryEvent, Region, Span

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a log.

    Attributes:
        of_event: number of an event to the cells that it touches; () for what is no access.
        places: number of a cell to its first piece.
    """

    of_event: tuple[tuple[int, ...], ...]
    places: tuple[Span, ...]


def cells_of(events: Sequence[MemoryEvent], regions: Sequence[Region]) -> Cells:
    """Divide the memory that `events` touch into cells."""
    shapes: dict[tuple[Span, ...], int] = {(): 0}
    shape_of = [shapes.setdefault(event.spans, len(shapes)) if isinstance(event, Access) else 0 for event in events]
    touched, places = _divided(list(shapes), _bases(regions))
    return Cells(tuple(touched[shape] for shape in shape_of), places)


def _bases(regions: Sequence[Region]) -> Numbers:
    """Where each region begins when all lie one after the other; one number more than there are regions."""
    sizes = np.array([region.nbytes for region in regions], np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _divided(shapes: Sequence[tuple[Span, ...]], bases: Numbers) -> tuple[list[tuple[int, ...]], tuple[Span, ...]]:
    """For each shape its cells, and for each cell its first piece."""
    rows = [(shape, *span) for shape, spans in enumerate(shapes) for span in spans]
    if not rows:
        return [() for _ in shapes], ()
    owner, region, start, stop = np.array(rows, np.int64).T
    bounds = np.unique(np.concatenate([bases[region] + start, bases[region] + stop]))
    first = np.searchsorted(bounds, bases[region] + start)
    last = np.searchsorted(bounds, bases[region] + stop)
    pieces = _expanded(first, last)
    owners = np.repeat(owner, last - first)
    cell_of = _alike(owner, first, last, len(bounds))
    pairs = _pairs(owners, pieces, cell_of)
    if pairs is None:
        cell_of = np.arange(len(bounds), dtype=np.int64)
        pairs = np.unique(owners * len(bounds) + pieces)
    return _by_shape(pairs, len(bounds), len(shapes)), _places(cell_of, bounds, bases)


def _expanded(first: Numbers, last: Numbers) -> Numbers:
    """All numbers from `first` up to `last`, of each pair."""
    lengths = last - first
    before = np.cumsum(lengths) - lengths
    shift: Numbers = np.repeat(first - before, lengths)
    return shift + np.arange(int(lengths.sum()), dtype=np.int64)


def _alike(owner: Numbers, first: Numbers, last: Numbers, count: int) -> Numbers:
    """Pieces that the same shapes touch get the same number: told by the sum of a hash of each shape."""
    change = np.zeros(count + 1, np.uint64)
    np.add.at(change, first, _hashed(owner))
    np.subtract.at(change, last, _hashed(owner))
    number: Numbers = np.unique(np.cumsum(change)[:count], return_inverse=True)[1].astype(np.int64).reshape(-1)
    return number


def _hashed(numbers: Numbers) -> Hashes:
    """SplitMix64 of each number."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _pairs(owners: Numbers, pieces: Numbers, cell_of: Numbers) -> Numbers | None:
    """All (shape, cell), as one number each; None if a shape touches a part of a cell: two hashes have collided."""
    size = len(cell_of)
    pairs, counts = np.unique(owners * size + cell_of[pieces], return_counts=True)
    whole = np.bincount(cell_of, minlength=size)
    return pairs if bool((counts == whole[pairs % size]).all()) else None


def _by_shape(pairs: Numbers, size: int, shapes: int) -> list[tuple[int, ...]]:
    ends = np.searchsorted(pairs, np.arange(1, shapes) * size)
    return [tuple(part.tolist()) for part in np.split(pairs % size, ends)]


def _places(cell_of: Numbers, bounds: Numbers, bases: Numbers) -> tuple[Span, ...]:
    """The first piece of each cell. The last bound begins no piece."""
    first = np.full(int(cell_of.max()) + 1, len(bounds) - 1, np.int64)
    np.minimum.at(first, cell_of, np.arange(len(bounds), dtype=np.int64))
    begin, end = bounds[first], bounds[np.minimum(first + 1, len(bounds) - 1)]
    region = np.searchsorted(bases, begin, side="right") - 1
    return tuple(zip(region.tolist(), (begin - bases[region]).tolist(), (end - bases[region]).tolist(), strict=True))
