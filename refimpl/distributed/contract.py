"""With which parameters each process group is created: one pure function per question, over plain data.

    plan = creation_plan(layout, Role.SCALE_JOINER, rank_offset=4, max_world_size=8)
    plan["tp"]                                  # GroupOptions(rank_offset=4, recovered_rank=False, ...)
    plan = forget(plan, "dcp", "rank_offset")   # what would happen if dcp dropped it?
    bring_up(args, plan)

The contract of an elastic deployment:

    role                 groups            rank_offset  recovered_rank  max_world_size   rank lists name
    launch               all               0            no              capacity or none the cohort
    recovering joiner    all               0            yes             capacity or none the slots that it refills
    scale joiner         default, world    0            yes             capacity         ranks 0 .. offset + cohort
    scale joiner         model parallel    offset       no              none             its own cohort only

WORLD alone grows.  The model parallel groups of a scale joiner are fixed, and local to its cohort: serving ranks are
not in that code, so the cohort must not wait for them (`use_local_synchronization`).

Source: SGLang pull request 38503, "Fix mooncake scale joiner groups".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Literal, NamedTuple

from refimpl.distributed.layout import ParallelLayout


class Role(StrEnum):
    """How this rank comes into the deployment."""

    LAUNCH = "launch"
    """With the first cohort."""
    RECOVERING_JOINER = "recovering-joiner"
    """In the place of a rank that was lost: its slot, no offset."""
    SCALE_JOINER = "scale-joiner"
    """With a later cohort, in new slots that start at `rank_offset`."""


class ContractRules(StrEnum):
    """Which edition of the contract is in force."""

    REPAIRED = "repaired"
    """As in the table above."""
    BEFORE_REPAIR = "before-repair"
    """As it was before the repair, kept to show what goes wrong: see `group_contract` and `FORGOTTEN_BEFORE_REPAIR`."""


RulesName = ContractRules | Literal["repaired", "before-repair"]
RoleName = Role | Literal["launch", "recovering-joiner", "scale-joiner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How the process groups of one sub-group are created.  Raises: ValueError for values that no group can have."""

    backend: str = "gloo"
    """Torch backend of the device groups; one whose name holds "mooncake" selects Mooncake for the CPU groups too."""
    rank_offset: int = 0
    """First global rank of this launch cohort, in ranks: shifts the rank lists."""
    recovered_rank: bool = False
    """This rank attaches to groups that live ranks already have (Mooncake: is_extension)."""
    max_world_size: int | None = None
    """Ranks that a growing group may reach; None for a fixed group."""
    local_synchronization: bool | None = None
    """Synchronise creation among members only; None for the rule, see `use_local_synchronization`."""
    timeout_s: float | None = None
    """Time-out of collectives in seconds; None for the default of the backend."""
    device: str = "cpu"
    """Torch device of this rank's tensors, such as "cuda:3"."""
    solo_groups: bool = True
    """Create process groups for lists of one rank too, as the frameworks do; False skips them on all ranks."""

    def __post_init__(self) -> None:
        if self.rank_offset < 0:
            raise ValueError(
                f"rank_offset is {self.rank_offset}; give the first global rank of this cohort, at least 0"
            )
        if self.max_world_size is not None and self.max_world_size < 1:
            raise ValueError(f"max_world_size is {self.max_world_size}; give at least 1, or None for a fixed group")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; give seconds above 0, or None for the backend's default")

    @property
    def use_local_synchronization(self) -> bool:
        """Only a cohort that creates groups of its own beside live ranks keeps creation to the members."""
        if self.local_synchronization is not None:
            return self.local_synchronization
        return self.rank_offset > 0 and not self.recovered_rank


class GroupContract(NamedTuple):
    """Options of the three kinds of groups that a rank creates."""

    default: GroupOptions
    """The default process group, through init_process_group."""
    world: GroupOptions
    """The WORLD coordinator: all ranks, in groups of its own."""
    model_parallel: GroupOptions
    """Each sub-group of the layout."""


CreationPlan = dict[str, GroupOptions]
"""From "default", "world" and the name of each created sub-group, in creation order, to its options."""

FORGOTTEN_BEFORE_REPAIR: Mapping[str, tuple[str, ...]] = {
    "world": ("max_world_size",),
    "dcp": ("rank_offset", "max_world_size"),
    "self_pp": ("rank_offset", "recovered_rank", "max_world_size"),
}
"""Parameters that were not passed on to a sub-group before the repair."""


def group_contract(
    role: RoleName,
    rank_offset: int = 0,
    max_world_size: int | None = None,
    *,
    rules: RulesName = ContractRules.REPAIRED,
    base: GroupOptions | None = None,
) -> GroupContract:
    """The table of this module's docstring for one rank; backend, device and the like are taken from `base`.

    Before the repair all joiners were alike: model parallel groups of a scale joiner were created as recovered ones,
    and a recovered group dropped its `max_world_size` where the options of the backend were made.

    Raises: ValueError when `rank_offset` and `role` contradict each other.
    """
    role, rules, base = Role(role), ContractRules(rules), base or GroupOptions()
    check_offset(role, rank_offset)
    joins, scales = role is not Role.LAUNCH, role is Role.SCALE_JOINER
    default = replace(base, recovered_rank=joins, max_world_size=max_world_size)
    if rules is ContractRules.BEFORE_REPAIR:
        capacity = None if joins else max_world_size
        recovered = replace(base, recovered_rank=joins, max_world_size=capacity)
        return GroupContract(default, recovered, replace(recovered, rank_offset=rank_offset))
    fixed = replace(
        base,
        rank_offset=rank_offset,
        recovered_rank=joins and not scales,
        max_world_size=None if scales else max_world_size,
    )
    return GroupContract(default, default, fixed)


def check_offset(role: Role, rank_offset: int) -> None:
    """Raises: ValueError unless exactly a scale joiner has an offset.

    An offset on any other role would quietly turn "all ranks create together" into "members only", and a hang into
    groups that do not match.  Whether the slots from the offset on are free is not known here.
    """
    if role is Role.SCALE_JOINER and rank_offset < 1:
        raise ValueError(
            f"role {role.value} has rank_offset={rank_offset}; give the number of ranks already deployed, at least 1"
        )
    if role is not Role.SCALE_JOINER and rank_offset != 0:
        raise ValueError(
            f"role {role.value} has rank_offset={rank_offset}; give 0, or the role {Role.SCALE_JOINER.value}"
        )


def creation_plan(
    layout: ParallelLayout,
    role: RoleName,
    *,
    rank_offset: int = 0,
    max_world_size: int | None = None,
    rules: RulesName = ContractRules.REPAIRED,
    base: GroupOptions | None = None,
) -> CreationPlan:
    """Options of each group that `bring_up` creates, as data that a caller may edit first.

    Raises: ValueError when role, offset and capacity contradict each other.
    """
    contract = group_contract(role, rank_offset, max_world_size, rules=rules, base=base)
    needed = rank_offset + layout.world_size
    if max_world_size is not None and max_world_size < needed:
        raise ValueError(
            f"max_world_size is {max_world_size} but this cohort ends at rank {needed - 1}; give at least {needed}"
        )
    plan = {"default": contract.default, "world": contract.world}
    plan |= dict.fromkeys(layout.created(), contract.model_parallel)
    if ContractRules(rules) is ContractRules.BEFORE_REPAIR:
        for name, parameters in FORGOTTEN_BEFORE_REPAIR.items():
            plan = forget(plan, name, *parameters) if name in plan else plan
    return plan


def edit_plan(plan: CreationPlan, name: str, **changes: object) -> CreationPlan:
    """A copy of `plan` with other options for the group `name`.  Raises: KeyError, TypeError for unknown names."""
    if name not in plan:
        raise KeyError(f"the plan has no group {name!r}; it has {', '.join(plan)}")
    return {**plan, name: replace(plan[name], **changes)}  # type: ignore[arg-type]


def forget(plan: CreationPlan, name: str, *parameters: str) -> CreationPlan:
    """A copy of `plan` in which the group `name` is created as if `parameters` had not been passed on to it."""
    defaults = {field.name: field.default for field in fields(GroupOptions)}
    unknown = [parameter for parameter in parameters if parameter not in defaults]
    if unknown:
        raise KeyError(f"no option {unknown[0]!r}; there are {', '.join(defaults)}")
    return edit_plan(plan, name, **{parameter: defaults[parameter] for parameter in parameters})
