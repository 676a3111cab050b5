"""gloo's monitored_barrier: rank 0 hears from each rank in turn, then tells all; it names those that are late.

Source: ProcessGroupGloo::monitoredBarrier. Only rank 0 keeps the time-out given; the others keep that of the group.
torch always gives one; its default of 30 minutes counts as none that the user named.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import default_pg_timeout

if TYPE_CHECKING:
    from simulator.fake_pg import SimProcessGroup
    from simulator.message_work import MessageWork

_ARRIVED, _PASS = -2, -3
"""Tags of the two rounds; user tags are not negative."""


def monitored_barrier(group: SimProcessGroup, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """Wait until all ranks of the group have come.

    Raises:
        RuntimeError: some did not come in time, with torch's texts.
    """
    if group.rank() == 0:
        limit = timeout or timedelta(seconds=group.timeout_s)
        first = _Round(group, limit, wait_all_ranks, named=limit != default_pg_timeout)
        stack = group.sim.sites.capture(2)
        first.hear(lambda peer: group.post_receive(_token(), peer, _ARRIVED, stack))
        first.hear(lambda peer: group.post_send(_token(), peer, _PASS, stack))
    else:
        _report_to_rank_0(group)


def _report_to_rank_0(group: SimProcessGroup) -> None:
    stack = group.sim.sites.capture(3)
    works = [group.post_send(_token(), 0, _ARRIVED, stack), group.post_receive(_token(), 0, _PASS, stack)]
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors while waiting for "
            f"send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n{error}"
        ) from None


class _Round:
    """Rank 0's wait for one message with every other rank."""

    def __init__(self, group: SimProcessGroup, limit: timedelta, wait_all_ranks: bool, *, named: bool) -> None:
        self._group = group
        self._named = named
        self._limit = limit
        self._wait_all_ranks = wait_all_ranks
        self._end_s = self._now_s() + limit.total_seconds()

    def _now_s(self) -> float:
        return float(self._group.sim.scheduler.env.now)

    @property
    def _millis(self) -> int:
        return int(self._limit.total_seconds() * 1000)

    def hear(self, post: Callable[[int], MessageWork]) -> None:
        works = {peer: post(peer) for peer in range(1, self._group.size())}
        passed: list[int] = []
        for peer, work in works.items():
            error = self._await(work, passed)
            if error is None:
                passed.append(peer)
            elif not self._wait_all_ranks:
                text = f"[Rank 0]: Rank {peer} failed to pass monitoredBarrier in {self._millis} ms"
                raise RuntimeError(f"{text}\n Original exception: \n{error}")
        failed = [str(peer) for peer in works if peer not in passed]
        if failed:
            who = f"[Rank 0]: Ranks {', '.join(failed)}"
            raise RuntimeError(f"{who} failed to pass monitoredBarrier in {self._millis} ms")

    def _await(self, work: MessageWork, passed: list[int]) -> RuntimeError | None:
        left_s = self._limit.total_seconds()
        if not self._wait_all_ranks:
            left_s = self._end_s - self._now_s()
            if left_s < 0:
                heard = f"Successfully processed ranks: {', '.join(map(str, passed))}"
                raise RuntimeError(
                    f"Rank 0 timed out in monitoredBarrier after {self._millis} ms.\n"
                    f"{heard if passed else 'No ranks successfully processed in monitoredBarrier.'}"
                )
        try:
            work.wait_up_to(left_s, named=self._named)
        except RuntimeError as error:
            return error
        return None


def _token() -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device="cpu")
