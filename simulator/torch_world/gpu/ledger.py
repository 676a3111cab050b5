"""What the tensors of one rank have on one GPU, with the statistics that torch's allocator would give of it.

Not modelled: how the allocator cuts segments into blocks. Each tensor is a segment of its own, so what is reserved is
what is allocated, nothing is split, and all counts as the large pool.
"""

from __future__ import annotations

_POOLS = ("all", "large_pool", "small_pool")
_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_BLOCKS = ("allocation", "segment", "active")
_SPLIT = ("inactive_split", "inactive_split_bytes")
_OVERSIZE = ("oversize_allocations", "oversize_segments")
_NEVER = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_oom_rejections")


class Ledger:
    """Bytes and blocks that the tensors of one rank have on one GPU."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.total = 0
        self._blocks = self._blocks_peak = self._taken = 0

    def take(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.total += nbytes
        self.peak = max(self.peak, self.allocated)
        self._taken += 1
        self._blocks += 1
        self._blocks_peak = max(self._blocks_peak, self._blocks)

    def give_back(self, nbytes: int) -> None:
        self.allocated -= nbytes
        self._blocks -= 1

    def reset_peak(self) -> None:
        """What is there now becomes the peak."""
        self.peak, self._blocks_peak = self.allocated, self._blocks

    def stats(self) -> dict[str, int]:
        """All statistics by the names of `torch.cuda.memory_stats`; bytes or numbers."""
        sizes = (self.allocated, self.peak, self.total)
        counts = (self._blocks, self._blocks_peak, self._taken)
        stats = dict.fromkeys(_NEVER, 0)
        for pool in _POOLS:
            share = int(pool != "small_pool")
            for kinds, held in ((_BYTES, sizes), (_BLOCKS, counts), (_SPLIT, (0, 0, 0))):
                for kind in kinds:
                    stats |= _metric(f"{kind}.{pool}", *(share * number for number in held))
        for kind in _OVERSIZE:
            stats |= _metric(kind, 0, 0, 0)
        stats |= {"num_device_alloc": self._taken, "num_device_free": self._taken - self._blocks}
        return {**stats, "max_split_size": -1}


def _metric(name: str, current: int, peak: int, allocated: int) -> dict[str, int]:
    return {
        f"{name}.current": current,
        f"{name}.peak": peak,
        f"{name}.allocated": allocated,
        f"{name}.freed": allocated - current,
    }
