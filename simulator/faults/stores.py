"""What can happen between a TCPStore and its clients.

A request that is lost is sent again by the kernel, not by the client: Linux retransmits after 0.2 s, then after twice
the time, up to 120 s, and gives the connection up after 15 tries (`net.ipv4.tcp_retries2`), 924.6 s in all. The client
then gets `DistNetworkError: Connection timed out`. The tries were measured (see `requests`), the end was not.
"""

from __future__ import annotations

from functools import partial

from simulator.faults.injection import INFINITY, Injection, Request, Window
from simulator.faults.values import Chance, Count, Moment, Ranks, Seconds, StoreOperation

FIRST_RETRY_S = 0.2
RETRY_MAX_S = 120.0
RETRIES_MAX = 15


def retry_s(lost: int) -> float:
    """Virtual seconds until a request that is lost `lost` times gets through; infinity: the kernel gives up before."""
    if lost > RETRIES_MAX:
        return INFINITY
    return sum(min(FIRST_RETRY_S * 2.0**number, RETRY_MAX_S) for number in range(lost))


def through_s(heals_s: float, first_s: float = FIRST_RETRY_S) -> float:
    """Virtual seconds until the first try after `heals_s`; infinity: the kernel gives up before."""
    tries = (retry_s(lost) * first_s / FIRST_RETRY_S for lost in range(RETRIES_MAX + 1))
    return next((try_s for try_s in tries if try_s >= heals_s), INFINITY)


def give_up_s() -> float:
    """Virtual seconds after which the kernel gives up a connection on which nothing is acknowledged."""
    return retry_s(RETRIES_MAX) + RETRY_MAX_S


class _Held:
    """Which requests are held up, and for how long."""

    def __init__(
        self,
        injection: Injection,
        seconds: float,
        ranks: Ranks | None,
        op: StoreOperation | None,
        calls: int | None,
        chance: float | None,
        window: Window,
    ) -> None:
        self._injection, self._seconds, self._op = injection, seconds, op
        self._ranks = None if ranks is None else injection.pick(ranks)
        self._left = INFINITY if calls is None else calls
        self._chance, self._window = chance, window
        injection.unless_struck(lambda: "no request to a TCPStore was sent that it applies to")

    def __call__(self, verb: str, request: Request) -> float:
        fits = self._op in (None, request.operation) and (self._ranks is None or request.rank in self._ranks)
        if not (fits and self._left and self._window.holds(self._injection.now_s)):
            return 0.0
        if self._chance is not None and self._injection.rng.random() >= self._chance:
            return 0.0
        self._left -= 1
        self._injection.held_up(request, verb, spent_s=min(self._seconds, give_up_s()))
        return self._seconds


def store_delay(
    injection: Injection,
    *,
    by: Seconds,
    rank: Ranks | None = None,
    op: StoreOperation | None = None,
    calls: Count | None = None,
    chance: Chance | None = None,
    since: Seconds | None = None,
    until: Seconds | None = None,
) -> None:
    """Requests to a TCPStore take that much longer; with calls, the first so many of them. A set is not answered, so
    its client goes on, and the key is there that much later."""
    held = _Held(injection, by, rank, op, calls, chance, injection.window(since, until))
    injection.at_requests(partial(held, "delayed"))


def store_loss(
    injection: Injection,
    *,
    times: Count,
    rank: Ranks | None = None,
    op: StoreOperation | None = None,
    calls: Count | None = None,
    chance: Chance | None = None,
    since: Seconds | None = None,
    until: Seconds | None = None,
) -> None:
    """Requests to a TCPStore are lost so many times, and sent again by the kernel: after 0.2 s, 0.6 s, 1.4 s, ...; from
    16 times on the connection is given up after 924.6 s, and the client raises."""
    held = _Held(injection, retry_s(times), rank, op, calls, chance, injection.window(since, until))
    injection.at_requests(partial(held, "lost"))


def store_end(injection: Injection, *, at: Seconds) -> None:
    """The TCPStore servers are gone at that time, those of ranks and that of the launcher."""

    def end() -> None:
        count = injection.end_stores()
        if count:
            injection.struck(-1, f"ended {count} server" + ("s" if count > 1 else ""))

    injection.unless_struck(lambda: f"no TCPStore was there at {Moment(at)}")
    injection.at_time(at, end)
