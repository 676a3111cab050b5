"""What one process of a scenario does and sees: every call is written down with its outcome and how long it took.

A process that has come to its end stays until all have, so that what the others see is not confused with its end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from tests.parity_mooncake.scenario import Process, Scenario

BACKEND = "mooncake-cpu"
LOOK_S = 0.02
FLAG_LIMIT_S = 50.0
SETTLE_S = 0.5
Group = Any
Value = Any
"""Plain data for JSON."""


class Channel(Protocol):
    """Where a process writes what it sees, and the flags by which the processes of a scenario wait for each other."""

    def write(self, record: dict[str, Value]) -> None: ...
    def flag(self, name: str, text: str = "") -> None: ...
    def text(self, name: str) -> str: ...
    def is_up(self, name: str) -> bool: ...


class Observer:
    """One process.

    Args:
        pg: `mooncake.pg`.
    """

    def __init__(self, scenario: Scenario, process: Process, channel: Channel, pg: ModuleType) -> None:
        self.scenario = scenario
        self.process = process
        self.rank = process.rank
        self.pg = pg
        self._channel = channel
        self._began_s = time.monotonic()

    # What is written down.

    def note(self, name: str, value: Value) -> None:
        """Something that is seen at once."""
        self._channel.write({"name": name, "value": value, "took_s": 0.0, "at_s": self._now_s()})

    def call(
        self, name: str, fn: Callable[..., Any], *args: Any, show: Callable[[], Value] | None = None, **kw: Any
    ) -> Any:
        """Call, and write down what came of it: `show()` afterwards, else what was returned. None after an error."""
        began_s = self._now_s()
        self._channel.write({"name": name, "begins": True, "at_s": began_s})
        try:
            result = fn(*args, **kw)
            value = shown(result) if show is None else show()
        except Exception as error:
            result, value = None, raised(error)
        self._channel.write({"name": name, "value": value, "took_s": self._now_s() - began_s, "at_s": began_s})
        return result

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    # How processes wait for each other, beside the store under test.

    def flag(self, name: str, text: str = "") -> None:
        """Let those go on who wait for it."""
        self._channel.flag(name, text)

    def text(self, name: str) -> str:
        """What came with a flag."""
        self.wait_for(name)
        return self._channel.text(name)

    def wait_for(self, *names: str, within_s: float = FLAG_LIMIT_S) -> bool:
        """Wait until all flags are up."""
        return self.wait_until(lambda: all(self._channel.is_up(name) for name in names), within_s)

    @staticmethod
    def wait_until(condition: Callable[[], bool], within_s: float = FLAG_LIMIT_S, every_s: float = LOOK_S) -> bool:
        """Look again and again, without a record."""
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            time.sleep(every_s)
        return True

    def meet(self, name: str, *ranks: int) -> None:
        """Wait for these ranks at this point, outside of the backend."""
        self.flag(f"{name}.{self.rank}")
        self.wait_for(*(f"{name}.{rank}" for rank in ranks))

    def run(self) -> None:
        """The whole life of the process."""
        try:
            self.scenario.program(self)
            self._over("done")
        except Exception as error:
            self._over(str(raised(error)))
        self.wait_for(*(f"over {p.label}" for p in self.scenario.processes), within_s=self.scenario.limit_s + 5)

    def die(self, status: int = 7) -> None:
        """End at once, without a word to the peers."""
        self._over(f"exit {status}")
        os._exit(status)

    def _over(self, how: str) -> None:
        self._channel.write({"name": "end", "value": how, "took_s": 0.0, "at_s": self._now_s()})
        self._channel.flag(f"over {self.process.label}")

    # What scenarios do again and again.

    def options(self, *args: Any) -> Any:
        """`MooncakeBackendOptions`: (max_group_size, is_extension, auto_deactivate, auto_sync)."""
        return self.pg.MooncakeBackendOptions(*args)

    def init(self, size: int, *options: Any, name: str = "init", **kw: Any) -> None:
        """`init_process_group` of a world of `size`."""
        given = {"pg_options": self.options(*options)} if options else {}
        self.call(name, dist.init_process_group, BACKEND, **{"rank": self.rank, "world_size": size, **given, **kw})

    def group(self, ranks: Sequence[int], *options: Any, name: str = "", **kw: Any) -> Group:
        """`new_group`."""
        given = {"pg_options": self.options(*options)} if options else {}
        return self.call(name or f"new_group({list(ranks)})", dist.new_group, list(ranks), **given, **kw)

    def state(self, name: str = "state", group: Group = None) -> None:
        """World size, mask, epoch and synchronised ranks, once what was decided has reached everybody."""
        time.sleep(SETTLE_S)
        group = dist.group.WORLD if group is None else group
        self.note(f"{name}: world_size", dist.get_world_size(group))
        self.note(f"{name}: active", self.pg.get_active_ranks(group).tolist())
        self.note(f"{name}: epoch", self.pg.get_current_epoch(group))
        self.note(f"{name}: synced", self.pg.get_num_synced_ranks(group))

    def all_reduce(
        self, value: float, group: Group = None, name: str = "all_reduce", n: int = 2, **kw: Any
    ) -> torch.Tensor:
        """A sum of [n]; `dtype=`, `op=`."""
        tensor = torch.full((n,), value, dtype=kw.pop("dtype", torch.float32))
        self.call(name, dist.all_reduce, tensor, group=group, show=tensor.tolist, **kw)
        return tensor

    def all_gather(self, value: float, size: int, group: Group = None, name: str = "all_gather", own: int = -1) -> None:
        """Lists of one element; with `own`, only that slot is written down, since others hold no promised value."""
        outputs = [torch.full((1,), -1.0) for _ in range(size)]
        show = (lambda: [t.item() for t in outputs]) if own < 0 else (lambda: outputs[own].item())
        self.call(name, dist.all_gather, outputs, torch.full((1,), float(value)), group=group, show=show)

    def broadcast(self, value: float, group: Group = None, name: str = "", n: int = 2, **kw: Any) -> None:
        """A broadcast of [n]."""
        tensor = torch.full((n,), float(value))
        label = name or "broadcast " + ", ".join(f"{key}={value}" for key, value in kw.items())
        self.call(label, dist.broadcast, tensor, group=group, show=tensor.tolist, **kw)

    def reported(
        self, name: str, fn: Callable[..., Any], *args: Any, of: torch.Tensor | None = None, **kw: Any
    ) -> None:
        """An asynchronous call, waited for; then what Mooncake tells of it, and the value of `of`."""
        begin = self.call(f"{name}: begin", fn, *args, show=lambda: "begun", **kw)
        if begin is None:
            return
        self.call(f"{name}: wait", begin.wait)
        self.note(f"{name}: local_success", self.pg.get_local_success(begin))
        hint = self.pg.get_failed_ranks_hint(begin)
        self.note(f"{name}: hint", None if hint is None else hint.tolist())
        if of is not None:
            self.note(f"{name}: value", of.tolist())

    def reported_all_reduce(self, value: float, name: str = "all_reduce", group: Group = None, n: int = 2) -> None:
        """`all_reduce` with local success and hint."""
        tensor = torch.full((n,), float(value))
        self.reported(name, dist.all_reduce, tensor, of=tensor, async_op=True, group=group)

    def peers(self, ranks: Sequence[int], group: Group = None, name: str = "") -> Any:
        """`get_peer_state`."""
        group = dist.group.WORLD if group is None else group
        return self.call(name or f"peer_state({list(ranks)})", self.pg.get_peer_state, group, list(ranks))

    def wait_for_peers(self, ranks: Sequence[int], group: Group = None, within_s: float = 30.0) -> bool:
        """Until all have called `join_group`."""
        group = dist.group.WORLD if group is None else group
        return self.wait_until(lambda: all(self.pg.get_peer_state(group, list(ranks))), within_s, every_s=0.05)

    def recover(self, ranks: Sequence[int], group: Group = None, name: str = "", status_only: bool = False) -> Any:
        """`recover_ranks`."""
        group = dist.group.WORLD if group is None else group
        fn = (lambda *given: self.pg.recover_ranks(*given).status.name) if status_only else self.pg.recover_ranks
        return self.call(name or f"recover({list(ranks)})", fn, group, list(ranks))

    def deactivate(self, ranks: Sequence[int], group: Group = None, name: str = "") -> Any:
        """`deactivate_ranks`."""
        group = dist.group.WORLD if group is None else group
        return self.call(name or f"deactivate({list(ranks)})", self.pg.deactivate_ranks, group, list(ranks))

    def join(self, group: Group = None, name: str = "join_group") -> None:
        """`join_group`."""
        self.call(name, self.pg.join_group, dist.group.WORLD if group is None else group)


def shown(result: Any) -> Value:
    """A returned value as plain data."""
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if result is None or isinstance(result, bool | int | float | str | list | tuple):
        return list(result) if isinstance(result, tuple) else result
    if hasattr(result, "dropped_ranks"):
        dropped = f", dropped {list(result.dropped_ranks)}" if result.dropped_ranks else ""
        reason = f", {result.reject_reason}" if result.reject_reason else ""
        return f"{result.status.name}, epoch {result.new_epoch}{dropped}{reason}"
    if hasattr(result, "reject_reason"):
        return f"{result.status.name}{', ' if result.reject_reason else ''}{result.reject_reason}"
    return "a group" if isinstance(result, dist.ProcessGroup) else "work" if isinstance(result, dist.Work) else "?"


def raised(error: BaseException) -> str:
    """Type and first line of an error, without places in C++ files, objects and ports."""
    line = str(error).strip().split("\n", 1)[0]
    line = re.sub(r"\[[^\]]*\.(cc|cpp|h|hpp):\d+\] ?", "", line)
    line = re.sub(r"<.*>", "<...>", line)
    line = re.sub(r"\b(port|:) ?\d{4,5}\b", r"\1", line)
    return f"{type(error).__name__}: {line[:300]}"
