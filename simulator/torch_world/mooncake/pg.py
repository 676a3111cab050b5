"""Stand-in for `mooncake.pg`, the module that brings Mooncake's process-group backends to torch.

    pg = build_module(host)
    sys.modules.update(build_package(pg))
    for name, creator, devices in BACKENDS:  # what importing the real module does, in this order
        Backend.register_backend(name, getattr(pg, creator), extended_api=True, devices=devices)

Not modelled: external transfer engines (NotImplementedError); host addresses and device filters (the host hears of
them, nothing follows); the rest of package `mooncake` (`ep`, `store`, `engine`: no such module). A name that only
other versions have is missing, as in the real module (`get_preferred_hca` went with 0.3.13). Looser than the real
module: enums can be iterated, responses constructed. Waiting, membership and errors that depend on them are the host's.

Source: mooncake-transfer-engine 0.3.13.post1, loaded and called; 0.3.14 binds the same names (read in its adapter).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, Final, NoReturn, Protocol, TypeVar

import torch
from torch._C import _distributed_c10d as _c
from torch.distributed import ProcessGroup, Work

_T = TypeVar("_T")
CreationRequest = _c._DistributedBackendOptions
RANKS_MAX: Final = 64
BACKENDS: Final[tuple[tuple[str, str, Any], ...]] = (  # name, creator, devices (a tuple, though torch asks for a list)
    ("mooncake-cpu", "createMooncakeCpuBackend", ("cpu",)),
    ("mooncake", "createMooncakeBackend", ("cuda",)),
)


class _PybindEnum(Enum):
    """As an unscoped enum of pybind11: equal to its number, so across enums too, and true even when that is 0."""

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, _PybindEnum) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __index__(self) -> int:
        return int(self.value)


class ProposalStatus(_PybindEnum):
    Rejected = 0
    Applied = 1
    AppliedWithDroppedRanks = 2


class SyncAfterFailureStatus(_PybindEnum):
    Reconciled = 0
    NoPending = 1
    Rejected = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProposeViewUpdateResponse:
    """Answer to a proposal: status, epoch in force afterwards, group ranks left out, why it was rejected."""

    status: ProposalStatus
    new_epoch: int
    dropped_ranks: list[int]
    reject_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SyncAfterFailureResponse:
    status: SyncAfterFailureStatus
    reject_reason: str = ""


class Membership(Protocol):
    """What a simulated Mooncake group answers to the calling rank. Ranks are group ranks."""

    def active_ranks(self) -> torch.Tensor:
        """[max_group_size or more], int32: the same object at each call, the user's own tensor if there is one."""

    def num_synced_ranks(self) -> int: ...
    def epoch(self) -> int: ...
    def peer_state(self, ranks: list[int]) -> list[bool]: ...
    def activate(self, ranks: list[int]) -> ProposeViewUpdateResponse: ...
    def deactivate(self, ranks: list[int]) -> ProposeViewUpdateResponse: ...
    def join(self) -> None: ...
    def sync_after_failure(self) -> SyncAfterFailureResponse: ...


class Host(Protocol):
    """What the simulator provides; every method runs on the calling rank.

    Attributes:
        ranks_max: ranks that a deployment can have; 64 in the real module.
    """

    @property
    def ranks_max(self) -> int: ...

    def create(self, request: CreationRequest, settings: Settings, device: str) -> ProcessGroup:
        """Make the group that torch asks for. `settings` are checked and complete, `device` is `cpu` or `cuda`."""

    def membership(self, group: ProcessGroup) -> Membership | None:
        """None for a group of another backend."""

    def local_success(self, work: Work) -> bool:
        """False for work of another backend. The real one first waits for a collective on a device."""

    def failed_ranks_hint(self, work: Work) -> torch.Tensor | None:
        """[max_group_size], int32, 1 for each failed rank; None for work of another backend."""

    def configure(self, knob: str, value: int | str | list[str] | None) -> None:
        """A process-wide `set_...` call by its name; only the type of the value is checked."""

    def crash(self, function: str, why: str) -> NoReturn:
        """End the rank as a native crash would: `function` was called on what `why` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one options object holds.

    Attributes:
        active_ranks: the user's tensor, never a copy; its first `max_group_size` slots become the mask, the others
            stay as they are. None: the backend makes one of `max_group_size` int32 on its own device.
        is_extension: attach to or extend a group that others have; if False, create it or attach to an exact match.
        max_group_size: ranks that the group can grow to; 0 or less for the size that it is created with.
        auto_deactivate_on_failure: failed ranks leave the mask without anyone asking.
        auto_sync_on_failure: a failed collective ends only after the coordinator's new mask is there.
    """

    active_ranks: torch.Tensor | None = None
    is_extension: bool = False
    max_group_size: int = -1
    auto_deactivate_on_failure: bool = True
    auto_sync_on_failure: bool = True


def _a(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"incompatible function arguments: expected {kind.__name__}, got {value!r}")
    return value


def _flag(value: object) -> bool:
    return bool(value) if value is None or hasattr(type(value), "__bool__") else _a(bool, value)


def _int(value: Any, low: int = -(2**31), high: int = 2**31 - 1) -> int:
    number = operator.index(value)
    if not low <= number <= high:
        raise TypeError(f"incompatible function arguments: expected {low} to {high}, got {number}")
    return number


def _list(value: Any, of: Callable[[Any], _T]) -> list[_T]:
    if isinstance(value, str | bytes | dict | torch.Tensor):
        _a(list, value)
    return [of(entry) for entry in value]


_OVERLOADS: Final = (  # the first that fits is taken: a one-element tensor is a mask, not a size
    ("active_ranks",),
    ("active_ranks", "is_extension"),
    ("active_ranks", "is_extension", "max_group_size"),
    ("max_group_size",),
    ("max_group_size", "is_extension"),
    ("max_group_size", "is_extension", "auto_deactivate_on_failure", "auto_sync_on_failure"),
)


def _convert(name: str, value: object) -> Any:
    if name == "active_ranks":
        return _a(torch.Tensor, value)
    return _int(value) if name == "max_group_size" else _flag(value)


class MooncakeBackendOptions:
    """Value for `pg_options=`, from one of `_OVERLOADS`. As the real class: opaque, no copies, no `Backend.Options`."""

    __slots__ = ("_settings",)

    def __init__(self, *args: object, **kwargs: object) -> None:
        for names in _OVERLOADS:
            if len(names) == len(args) + len(kwargs) and set(names[len(args) :]) == set(kwargs):
                given = dict(zip(names, args, strict=False)) | kwargs
                try:
                    self._settings = Settings(**{name: _convert(name, value) for name, value in given.items()})
                    return
                except TypeError:
                    continue
        known = "".join(f"\n    {number}. ({', '.join(names)})" for number, names in enumerate(_OVERLOADS, 1))
        shown = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        raise TypeError(f"__init__(): incompatible constructor arguments; supported:{known}\nInvoked with: {shown}")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("cannot pickle 'mooncake.pg.MooncakeBackendOptions' object")


def creation_settings(
    options: MooncakeBackendOptions | None, request: CreationRequest, ranks_max: int = RANKS_MAX
) -> Settings:
    """Complete settings of a group, checked as the real backend does at creation, in its order and words.

    Raises: RuntimeError.
    """
    given = options._settings if options is not None else _settings_of_environment()
    limit = given.max_group_size if given.max_group_size > 0 else request.group_size
    _require(request.group_size <= limit <= ranks_max, f"max_group_size must be in [group_size, {ranks_max}]")
    if (mask := given.active_ranks) is not None:
        _require(mask.dtype == torch.int32, "active_ranks must have dtype int32")
        _require(mask.is_contiguous(), "active_ranks must be contiguous")
        _require(mask.numel() >= limit, "active_ranks is smaller than max_group_size")
        _require(mask.device.type in ("cpu", "cuda"), "active_ranks must be on a CPU or supported GPU device")
    known = all(0 <= rank < ranks_max for rank in request.global_ranks_in_group)
    _require(known, "global rank is outside the supported range")
    consistent = given.auto_deactivate_on_failure or not given.auto_sync_on_failure
    _require(consistent, "auto_sync_on_failure requires auto_deactivate_on_failure=true")
    return replace(given, max_group_size=limit)


def _settings_of_environment() -> Settings:
    return Settings(
        auto_deactivate_on_failure=os.environ.get("MOONCAKE_PG_AUTO_DEACTIVATE_ON_FAILURE") != "0",
        auto_sync_on_failure=os.environ.get("MOONCAKE_PG_AUTO_SYNC_ON_FAILURE") != "0",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def _functions(host: Host) -> dict[str, Callable[..., Any]]:
    """The functions by their real names. Those with a `/` take no keywords in the real module either."""

    def create(request: object, options: object, device: str) -> ProcessGroup:
        wanted = _a(CreationRequest, request)
        given = None if options is None else _a(MooncakeBackendOptions, options)
        return host.create(wanted, creation_settings(given, wanted, host.ranks_max), device)

    def of(function: str, group: object) -> Membership:
        member = None if group is None else host.membership(_a(ProcessGroup, group))
        if member is None:  # the real functions cast without looking
            host.crash(function, "None" if group is None else "a group of another backend")
        return member

    def extend_group_size_to(backend: object, size: object, /) -> None:
        """The real one logs that it is deprecated, and changes nothing."""
        of("extend_group_size_to", backend)
        _int(size)

    def set_transfer_engine(engine: Any) -> None:
        if engine is not None:
            raise NotImplementedError("mooncake.pg.set_transfer_engine: external transfer engines are not modelled")
        host.configure("set_transfer_engine", None)

    def time_knob(name: str, low: int = -(2**63)) -> Callable[..., None]:
        return lambda us: host.configure(name, _int(us, low, 2**63 - 1))

    return {
        "createMooncakeBackend": lambda request, options, /: create(request, options, "cuda"),
        "createMooncakeCpuBackend": lambda request, options, /: create(request, options, "cpu"),
        "get_active_ranks": lambda backend, /: of("get_active_ranks", backend).active_ranks(),
        "get_num_synced_ranks": lambda backend, /: of("get_num_synced_ranks", backend).num_synced_ranks(),
        "get_current_epoch": lambda backend: of("get_current_epoch", backend).epoch(),
        "get_peer_state": lambda backend, ranks, /: of("get_peer_state", backend).peer_state(_list(ranks, _int)),
        "recover_ranks": lambda backend, ranks, /: of("recover_ranks", backend).activate(_list(ranks, _int)),
        "activate_ranks": lambda backend, ranks, /: of("activate_ranks", backend).activate(_list(ranks, _int)),
        "deactivate_ranks": lambda backend, ranks: of("deactivate_ranks", backend).deactivate(_list(ranks, _int)),
        "join_group": lambda backend, /: of("join_group", backend).join(),
        "extend_group_size_to": extend_group_size_to,
        "sync_after_failure": lambda backend: of("sync_after_failure", backend).sync_after_failure(),
        "get_local_success": lambda work: work is not None and host.local_success(_a(Work, work)),
        "get_failed_ranks_hint": lambda work: None if work is None else host.failed_ranks_hint(_a(Work, work)),
        "set_collective_timeout_us": time_knob("set_collective_timeout_us", low=0),
        "set_p2p_timeout_us": time_knob("set_p2p_timeout_us"),
        "set_fault_reconciliation_window_us": time_knob("set_fault_reconciliation_window_us"),
        "set_host_ip": lambda host_ip, /: host.configure("set_host_ip", _a(str, host_ip)),
        "set_device_filter": lambda names, /: host.configure("set_device_filter", _list(names, partial(_a, str))),
        "set_transfer_engine": set_transfer_engine,
    }


def build_module(host: Host) -> ModuleType:
    """A fresh `mooncake.pg` that asks `host`. Nothing is installed or registered."""
    module = module_from_spec(ModuleSpec("mooncake.pg", None))
    for name, function in _functions(host).items():
        function.__name__ = function.__qualname__ = name
        function.__module__ = module.__name__
        module.__dict__[name] = function
    responses = (ProposeViewUpdateResponse, SyncAfterFailureResponse)
    for kind in (MooncakeBackendOptions, ProposalStatus, SyncAfterFailureStatus, *responses):
        module.__dict__[kind.__name__] = kind
    module.__dict__["ViewUpdateStatus"] = ProposalStatus  # the older name
    return module


def build_package(module: ModuleType) -> dict[str, ModuleType]:
    """Entries for `sys.modules`: `module` under its name, in a package `mooncake` that has nothing else."""
    package = module_from_spec(ModuleSpec("mooncake", None, is_package=True))
    package.__dict__["pg"] = module
    return {package.__name__: package, module.__name__: module}
