"""The stand-in has the names, signatures and refusals of the real `mooncake.pg`.

Every table was measured on mooncake-transfer-engine 0.3.13.post1, loaded on the CPU build of torch 2.13.0; names,
overloads and creation checks are the same in the adapter source of mooncake-transfer-engine-cuda13 0.3.14.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as NativeBackend
from torch._C._distributed_c10d import HashStore

from simulator.torch_world.mooncake.pg import (
    BACKENDS,
    CreationRequest,
    Membership,
    ProposalStatus,
    ProposeViewUpdateResponse,
    Settings,
    SyncAfterFailureResponse,
    SyncAfterFailureStatus,
    build_module,
    build_package,
    creation_settings,
)

# Parameters by the real docstrings. pybind11 calls a parameter argN where the binding gives no name: no keywords then.
FUNCTIONS = {
    "createMooncakeBackend": ("arg0", "arg1"),
    "createMooncakeCpuBackend": ("arg0", "arg1"),
    "get_active_ranks": ("arg0",),
    "get_num_synced_ranks": ("arg0",),
    "get_current_epoch": ("backend",),
    "get_peer_state": ("arg0", "arg1"),
    "recover_ranks": ("arg0", "arg1"),
    "activate_ranks": ("arg0", "arg1"),
    "deactivate_ranks": ("backend", "ranks"),
    "join_group": ("arg0",),
    "extend_group_size_to": ("arg0", "arg1"),
    "sync_after_failure": ("backend",),
    "get_local_success": ("work",),
    "get_failed_ranks_hint": ("work",),
    "set_collective_timeout_us": ("us",),
    "set_p2p_timeout_us": ("us",),
    "set_fault_reconciliation_window_us": ("us",),
    "set_host_ip": ("arg0",),
    "set_device_filter": ("arg0",),
    "set_transfer_engine": ("engine",),
}
OF_NO_GROUP = ("create", "set_", "get_local_success", "get_failed_ranks_hint")
CLASSES = {
    "MooncakeBackendOptions",
    "ProposalStatus",
    "ProposeViewUpdateResponse",
    "SyncAfterFailureResponse",
    "SyncAfterFailureStatus",
    "ViewUpdateStatus",
}
MASK = torch.zeros(4, dtype=torch.int32)
ACCEPTED: list[tuple[tuple[Any, ...], dict[str, Any], Settings]] = [
    ((4,), {}, Settings(max_group_size=4)),
    ((-3,), {}, Settings(max_group_size=-3)),
    ((4, True), {}, Settings(max_group_size=4, is_extension=True)),
    ((4, 0), {}, Settings(max_group_size=4)),
    ((4, None), {}, Settings(max_group_size=4)),
    ((), {"is_extension": True, "max_group_size": 4}, Settings(max_group_size=4, is_extension=True)),
    ((4, True, False, True), {}, Settings(max_group_size=4, is_extension=True, auto_deactivate_on_failure=False)),
    ((4, False, True), {"auto_sync_on_failure": False}, Settings(max_group_size=4, auto_sync_on_failure=False)),
    ((MASK,), {}, Settings(active_ranks=MASK)),
    ((MASK, True), {}, Settings(active_ranks=MASK, is_extension=True)),
    ((MASK, True, 4), {}, Settings(active_ranks=MASK, is_extension=True, max_group_size=4)),
    ((), {"max_group_size": torch.tensor(4)}, Settings(max_group_size=4)),
]
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((4.0,), {}),
    (("4",), {}),
    ((None,), {}),
    (([1, 1],), {}),
    ((2**40,), {}),
    ((4, "x"), {}),
    ((4, True, True), {}),
    ((MASK, True, 4, True), {}),
    ((), {"is_extension": True}),
    ((), {"active_ranks": MASK, "max_group_size": 4}),
    ((), {"max_group_size": 4, "auto_deactivate_on_failure": True}),
    ((4,), {"max_group_size": 4}),
    ((), {"size": 4}),
]


class CrashError(Exception):
    """Stands for the end of the process."""


class Group(dist.ProcessGroup):
    """A process group that keeps what it was made from."""

    def __init__(self, request: CreationRequest, settings: Settings, device: str) -> None:
        super().__init__(request.group_rank, request.group_size)  # type: ignore[call-arg]
        self.settings, self.device = settings, device


class RecordingHost:
    """A host that notes calls; only `Group` is a Mooncake group to it."""

    ranks_max = 64

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def create(self, request: CreationRequest, settings: Settings, device: str) -> dist.ProcessGroup:
        return Group(request, settings, device)

    def membership(self, group: dist.ProcessGroup) -> Membership | None:
        return RecordingMembership(self.calls) if isinstance(group, Group) else None

    def local_success(self, work: dist.Work) -> bool:
        return True

    def failed_ranks_hint(self, work: dist.Work) -> torch.Tensor | None:
        return MASK

    def configure(self, knob: str, value: int | str | list[str] | None) -> None:
        self.calls.append((knob, value))

    def crash(self, function: str, why: str) -> NoReturn:
        raise CrashError(f"{function} on {why}")


class RecordingMembership:
    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    def _note(self, *call: Any) -> None:
        self._calls.append(call)

    def active_ranks(self) -> torch.Tensor:
        return MASK

    def num_synced_ranks(self) -> int:
        return 3

    def epoch(self) -> int:
        return 2

    def peer_state(self, ranks: list[int]) -> list[bool]:
        return [rank < 2 for rank in ranks]

    def activate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        self._note("activate", ranks)
        return ProposeViewUpdateResponse(status=ProposalStatus.Applied, new_epoch=3, dropped_ranks=[])

    def deactivate(self, ranks: list[int]) -> ProposeViewUpdateResponse:
        self._note("deactivate", ranks)
        return ProposeViewUpdateResponse(status=ProposalStatus.Rejected, new_epoch=3, dropped_ranks=[])

    def join(self) -> None:
        self._note("join")

    def sync_after_failure(self) -> SyncAfterFailureResponse:
        return SyncAfterFailureResponse(status=SyncAfterFailureStatus.NoPending)


def request(size: int = 2, ranks: list[int] | None = None) -> CreationRequest:
    made = CreationRequest()
    made.group_rank, made.group_size, made.group_id = 0, size, "0"
    made.global_ranks_in_group = list(range(size)) if ranks is None else ranks
    return made


@pytest.fixture
def host() -> RecordingHost:
    return RecordingHost()


@pytest.fixture
def pg(host: RecordingHost) -> ModuleType:
    return build_module(host)


@pytest.fixture
def group(pg: ModuleType) -> Any:
    return pg.createMooncakeCpuBackend(request(), None)


@pytest.fixture
def registered(pg: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Registers the backends as the real module does when it is imported, and forgets them afterwards."""
    tables = ("_plugins", "backend_list", "backend_type_map", "backend_capability", "default_device_backend_map")
    for table in tables:
        monkeypatch.setattr(dist.Backend, table, copy.copy(getattr(dist.Backend, table)))
    for name, creator, devices in BACKENDS:
        dist.Backend.register_backend(name, getattr(pg, creator), extended_api=True, devices=devices)
    yield pg
    if dist.is_initialized():
        dist.destroy_process_group()
    for name, _, _ in BACKENDS:
        delattr(dist.Backend, name.upper())


def test_public_names_are_those_of_the_real_module(pg: ModuleType) -> None:
    """Without what its loader leaves behind: importlib, re, torch, backend_module, torch_version, version_suffix."""
    assert {name for name in vars(pg) if not name.startswith("_")} == FUNCTIONS.keys() | CLASSES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature_is_that_of_the_real_function(pg: ModuleType, name: str) -> None:
    """`argN` means positional only; any other name can be a keyword."""
    parameters = inspect.signature(getattr(pg, name)).parameters.values()
    by_position = {parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters}
    real = FUNCTIONS[name]
    assert len(parameters) == len(real)
    assert by_position == {"arg0" in real}
    assert "arg0" in real or tuple(parameter.name for parameter in parameters) == real


@pytest.mark.parametrize(("args", "kwargs", "settings"), ACCEPTED)
def test_options_take_what_the_real_overloads_take(
    pg: ModuleType, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
) -> None:
    """Integers pass for flags, any integer for a size; the tensor is kept, not copied."""
    kept = pg.MooncakeBackendOptions(*args, **kwargs)._settings
    assert kept.active_ranks is settings.active_ranks
    assert [getattr(kept, name) for name in Settings.__slots__[1:]] == [
        getattr(settings, name) for name in Settings.__slots__[1:]
    ]


@pytest.mark.parametrize(("args", "kwargs"), REFUSED)
def test_options_refuse_what_the_real_overloads_refuse(
    pg: ModuleType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Three flags, a float, or a mask and a size by keyword fit no overload."""
    with pytest.raises(TypeError, match=r"^__init__\(\): incompatible constructor arguments"):
        pg.MooncakeBackendOptions(*args, **kwargs)


def test_refused_options_are_told_what_is_supported(pg: ModuleType) -> None:
    """The message lists the overloads and what was given, as pybind11's does."""
    with pytest.raises(TypeError) as refused:
        pg.MooncakeBackendOptions(4, auto_sync_on_failure=True)
    assert str(refused.value) == (
        "__init__(): incompatible constructor arguments; supported:\n"
        "    1. (active_ranks)\n"
        "    2. (active_ranks, is_extension)\n"
        "    3. (active_ranks, is_extension, max_group_size)\n"
        "    4. (max_group_size)\n"
        "    5. (max_group_size, is_extension)\n"
        "    6. (max_group_size, is_extension, auto_deactivate_on_failure, auto_sync_on_failure)\n"
        "Invoked with: 4, auto_sync_on_failure=True"
    )


def test_a_one_element_tensor_is_a_mask_and_not_a_size(pg: ModuleType) -> None:
    """The tensor overloads come first, also where the tensor could be read as a number."""
    one = torch.ones(1, dtype=torch.int32)
    kept = pg.MooncakeBackendOptions(one, True)._settings
    assert (kept.active_ranks is one, kept.max_group_size) == (True, -1)


def test_options_are_opaque(pg: ModuleType) -> None:
    """The real class has no attributes, cannot be copied, and is no kind of Backend.Options."""
    options = pg.MooncakeBackendOptions(4)
    assert not isinstance(options, NativeBackend.Options)
    assert not hasattr(options, "max_group_size")
    with pytest.raises(AttributeError):
        options.max_group_size = 8
    with pytest.raises(TypeError, match=r"^cannot pickle 'mooncake.pg.MooncakeBackendOptions' object$"):
        copy.deepcopy(options)


def test_the_backends_are_registered_as_by_the_real_module(registered: ModuleType) -> None:
    """Names, order, devices and the extended interface; the defaults of cpu and cuda stay as they were."""
    assert dist.Backend.backend_list[-2:] == ["mooncake-cpu", "mooncake"]
    capability: Any = dist.Backend.backend_capability
    assert (capability["mooncake-cpu"], capability["mooncake"]) == (("cpu",), ("cuda",))
    assert dist.Backend._plugins["MOONCAKE-CPU"].extended_api and dist.Backend._plugins["MOONCAKE"].extended_api
    assert dist.Backend.default_device_backend_map["cpu"] == "gloo"


def test_torch_hands_the_options_to_the_backend_unchanged(registered: ModuleType) -> None:
    """init_process_group passes the user's tensor on; new_group without options does not inherit them."""
    options = registered.MooncakeBackendOptions(MASK, True, 4)
    dist.init_process_group("mooncake-cpu", store=HashStore(), rank=0, world_size=1, pg_options=options)
    world, sub = dist.group.WORLD, dist.new_group([0])
    assert isinstance(world, Group) and isinstance(sub, Group)
    assert world.settings.active_ranks is MASK
    assert (world.settings.max_group_size, world.settings.is_extension, world.device) == (4, True, "cpu")
    assert (sub.settings.max_group_size, sub.settings.is_extension) == (1, False)


def test_a_backend_takes_no_options_but_its_own(pg: ModuleType) -> None:
    """The real creator raises TypeError for a dict or for another backend's options."""
    with pytest.raises(TypeError, match=r"expected MooncakeBackendOptions, got \{\}$"):
        pg.createMooncakeBackend(request(), {})
    with pytest.raises(TypeError, match=r"got None$"):
        pg.createMooncakeBackend(None, None)


@pytest.mark.parametrize(
    ("args", "ranks", "message"),
    [
        ((65, False, False, True), [0, 1], "max_group_size must be in [group_size, 64]"),
        ((1,), [0, 1], "max_group_size must be in [group_size, 64]"),
        ((torch.ones(1, dtype=torch.int64), False, 3), [0, 1], "active_ranks must have dtype int32"),
        ((torch.ones(8, dtype=torch.int32)[::2],), [0, 1], "active_ranks must be contiguous"),
        ((MASK, False, 5), [0, 1], "active_ranks is smaller than max_group_size"),
        (
            (torch.ones(4, dtype=torch.int32, device="meta"),),
            [0, 1],
            "active_ranks must be on a CPU or supported GPU device",
        ),
        ((2,), [0, 64], "global rank is outside the supported range"),
        ((2, False, False, True), [0, 1], "auto_sync_on_failure requires auto_deactivate_on_failure=true"),
    ],
)
def test_creation_checks_the_options_in_the_real_order_and_words(
    pg: ModuleType, args: tuple[Any, ...], ranks: list[int], message: str
) -> None:
    """All of it happens when a group is created, none when the options are made."""
    options = pg.MooncakeBackendOptions(*args)
    with pytest.raises(RuntimeError) as refused:
        creation_settings(options, request(ranks=ranks))
    assert str(refused.value) == message


@pytest.mark.parametrize("args", [(0,), (-5,), (MASK,)])
def test_the_capacity_is_the_group_size_unless_given(pg: ModuleType, args: tuple[Any, ...]) -> None:
    """A mask alone reserves nothing, however long it is."""
    assert creation_settings(pg.MooncakeBackendOptions(*args), request(size=2)).max_group_size == 2


def test_the_environment_decides_only_without_options(pg: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value 0 switches off, and any options object, even one that names no flag, overrides it."""
    monkeypatch.setenv("MOONCAKE_PG_AUTO_DEACTIVATE_ON_FAILURE", "0")
    with pytest.raises(RuntimeError, match=r"^auto_sync_on_failure requires auto_deactivate_on_failure=true$"):
        creation_settings(None, request())
    assert creation_settings(pg.MooncakeBackendOptions(2), request()).auto_deactivate_on_failure
    monkeypatch.setenv("MOONCAKE_PG_AUTO_SYNC_ON_FAILURE", "0")
    assert not creation_settings(None, request()).auto_deactivate_on_failure


def test_statuses_behave_as_those_of_pybind11(pg: ModuleType) -> None:
    """Equal to numbers and across enums, always true, not integers; ViewUpdateStatus is the older name."""
    rejected, applied = pg.ProposalStatus.Rejected, pg.ProposalStatus.Applied
    assert pg.ViewUpdateStatus is pg.ProposalStatus
    assert [(s.name, s.value) for s in pg.ProposalStatus.__members__.values()] == [
        ("Rejected", 0),
        ("Applied", 1),
        ("AppliedWithDroppedRanks", 2),
    ]
    assert list(pg.SyncAfterFailureStatus.__members__) == ["Reconciled", "NoPending", "Rejected"]
    assert applied == 1 and applied == pg.SyncAfterFailureStatus.NoPending and applied not in (None, rejected)
    assert {1, 0} == {applied, rejected}
    assert bool(rejected) and int(applied) == 1 and hash(applied) == 1 and not isinstance(applied, int)
    assert (repr(applied), str(applied)) == ("<ProposalStatus.Applied: 1>", "ProposalStatus.Applied")


def test_responses_cannot_be_changed(pg: ModuleType, group: Any) -> None:
    """The real ones have read-only properties."""
    response = pg.recover_ranks(group, [2])
    with pytest.raises(AttributeError):
        response.status = pg.ProposalStatus.Rejected


def test_group_functions_ask_the_membership(pg: ModuleType, host: RecordingHost, group: Any) -> None:
    """recover_ranks is another name of activate_ranks."""
    assert pg.get_active_ranks(group) is MASK
    assert (pg.get_num_synced_ranks(group), pg.get_current_epoch(backend=group)) == (3, 2)
    assert pg.get_peer_state(group, range(4)) == [True, True, False, False]
    assert pg.recover_ranks(group, (2, 3)).status == pg.ProposalStatus.Applied
    assert pg.activate_ranks(group, {2}).new_epoch == 3
    assert pg.deactivate_ranks(backend=group, ranks=[1]).status == pg.ProposalStatus.Rejected
    assert pg.sync_after_failure(group).status == pg.SyncAfterFailureStatus.NoPending
    assert pg.join_group(group) is None and pg.extend_group_size_to(group, 8) is None
    expected = [("activate", [2, 3]), ("activate", [2]), ("deactivate", [1]), ("join",)]
    assert host.calls == expected


@pytest.mark.parametrize("ranks", [1, "ab", b"0", [1.0], [None], torch.tensor([1]), {0: 1}, [2**31]])
def test_ranks_are_a_collection_of_integers(pg: ModuleType, group: Any, ranks: Any) -> None:
    """Neither a number nor text, a tensor or a dict, as for the real functions."""
    with pytest.raises(TypeError):
        pg.recover_ranks(group, ranks)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith(OF_NO_GROUP)])
def test_a_group_of_another_kind_is_a_crash(pg: ModuleType, name: str) -> None:
    """The real functions cast without looking: None (what new_group gives a non-member) ends the process."""
    more: list[Any] = [] if len(FUNCTIONS[name]) == 1 else [2] if name == "extend_group_size_to" else [[0]]
    with pytest.raises(CrashError, match=rf"^{name} on None$"):
        getattr(pg, name)(None, *more)
    with pytest.raises(CrashError, match=rf"^{name} on a group of another backend$"):
        getattr(pg, name)(dist.ProcessGroup(HashStore(), 0, 1), *more)
    with pytest.raises(TypeError, match=r"expected ProcessGroup, got -100$"):
        getattr(pg, name)(-100, *more)


def test_work_of_nobody_has_not_succeeded(pg: ModuleType, host: RecordingHost) -> None:
    """None gives False and None; what is no Work is a TypeError."""
    assert pg.get_local_success(None) is False
    assert pg.get_failed_ranks_hint(None) is None
    assert pg.get_local_success(work=dist.Work()) is True
    assert pg.get_failed_ranks_hint(work=dist.Work()) is MASK
    with pytest.raises(TypeError, match=r"expected Work, got 3$"):
        pg.get_local_success(3)


def test_knobs_reach_the_host(pg: ModuleType, host: RecordingHost) -> None:
    """The set_ functions belong to the process, not to a group; whether the moment is right, the host knows."""
    pg.set_collective_timeout_us(us=1)
    pg.set_p2p_timeout_us(-1)
    pg.set_fault_reconciliation_window_us(4_000_000)
    pg.set_host_ip("10.0.0.1")
    pg.set_device_filter(("mlx5_0",))
    pg.set_transfer_engine(engine=None)
    assert host.calls == [
        ("set_collective_timeout_us", 1),
        ("set_p2p_timeout_us", -1),
        ("set_fault_reconciliation_window_us", 4_000_000),
        ("set_host_ip", "10.0.0.1"),
        ("set_device_filter", ["mlx5_0"]),
        ("set_transfer_engine", None),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("set_collective_timeout_us", -1),
        ("set_p2p_timeout_us", 1.5),
        ("set_p2p_timeout_us", 2**63),
        ("set_host_ip", 1),
        ("set_host_ip", None),
        ("set_device_filter", "mlx5_0"),
        ("set_device_filter", [1]),
        ("set_device_filter", None),
    ],
)
def test_knobs_refuse_values_of_the_wrong_type(pg: ModuleType, name: str, value: Any) -> None:
    """As the real ones do; a negative collective time-out is one of them, because it is unsigned."""
    with pytest.raises(TypeError):
        getattr(pg, name)(value)


def test_an_external_transfer_engine_is_not_modelled(pg: ModuleType) -> None:
    """The one function that the stand-in cannot answer says so."""
    with pytest.raises(NotImplementedError) as refused:
        pg.set_transfer_engine(object())
    assert str(refused.value) == "mooncake.pg.set_transfer_engine: external transfer engines are not modelled"


def test_installed_modules_import_as_the_real_ones(pg: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of older versions are missing and other parts of the package are not there, so probes get their answer."""
    for name, module in build_package(pg).items():
        monkeypatch.setitem(sys.modules, name, module)
    from mooncake import pg as imported  # type: ignore[import-not-found]
    from mooncake.pg import deactivate_ranks  # type: ignore[import-not-found]

    assert imported is pg and deactivate_ranks is pg.deactivate_ranks
    assert importlib.util.find_spec("mooncake.pg") is not None
    assert importlib.util.find_spec("mooncake.ep") is None
    with pytest.raises(ImportError):
        from mooncake.pg import get_preferred_hca  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import mooncake.ep  # type: ignore[import-not-found]  # noqa: F401


def test_modules_share_nothing(pg: ModuleType, host: RecordingHost) -> None:
    """Each module asks its own host."""
    other = RecordingHost()
    build_module(other).set_host_ip("10.0.0.2")
    assert (host.calls, other.calls) == ([], [("set_host_ip", "10.0.0.2")])
