"""From arguments to a running rank.

    launch = BootstrapArgs(
        layout=ParallelLayout(tp=4, moe_ep=4), cohort_rank=rank, backend="mooncake", max_world_size=8,
    )
    bring_up(launch)

    joiner = BootstrapArgs(
        layout=ParallelLayout(tp=2, moe_ep=2), cohort_rank=rank, backend="mooncake", max_world_size=8,
        role=Role.SCALE_JOINER, rank_offset=4,
    )
    bring_up(joiner)                                                  # global ranks 4 and 5 of 6
    bring_up(joiner, forget(joiner.plan(), "dcp", "rank_offset"))     # a mutant: edit the plan, then run it

`BootstrapArgs.plan` decides with what parameters each group is created, `bring_up` executes the plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from refimpl.distributed.contract import (
    ContractRules,
    CreationPlan,
    GroupOptions,
    Role,
    RoleName,
    RulesName,
    check_offset,
    creation_plan,
)
from refimpl.distributed.layout import ParallelLayout, Rank
from refimpl.distributed.parallel_state import (
    ParallelState,
    init_distributed_environment,
    initialize_model_parallel,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapArgs:
    """What a launcher tells one rank.  Raises: ValueError, in one line, for arguments that contradict each other."""

    layout: ParallelLayout
    """Widths of this launch cohort."""
    cohort_rank: int
    """Number of this rank in its launch cohort, from 0."""
    role: RoleName = Role.LAUNCH
    """How this rank comes into the deployment."""
    rank_offset: int = 0
    """First global rank of the cohort, in ranks; above 0 for a scale joiner and only then."""
    max_world_size: int | None = None
    """Ranks that the deployment may grow to; None for one that never grows."""
    deployed: int | None = None
    """For a recovering joiner: ranks of the deployment now, if it has grown since the launch."""
    rules: RulesName = ContractRules.REPAIRED
    """Edition of the contract."""
    backend: str = "gloo"
    """Torch backend of the device groups."""
    device: str = "cpu"
    """Torch device of this rank's tensors."""
    init_method: str = "env://"
    """Where the ranks meet: "tcp://host:port", or "env://" for MASTER_ADDR and MASTER_PORT."""
    timeout_s: float | None = None
    """Time-out of collectives in seconds; None for the default of the backend."""
    solo_groups: bool = True
    """Create process groups for one-rank lists too, as the frameworks do; False saves most of a large bring-up."""

    def __post_init__(self) -> None:
        check_offset(Role(self.role), self.rank_offset)
        if self.deployed is not None and (
            self.role != Role.RECOVERING_JOINER or self.deployed < self.layout.world_size
        ):
            raise ValueError(
                f"deployed is {self.deployed} for role {Role(self.role).value}; give it to a "
                f"{Role.RECOVERING_JOINER.value} only, and at least {self.layout.world_size}"
            )
        if not 0 <= self.cohort_rank < self.layout.world_size:
            raise ValueError(
                f"cohort_rank is {self.cohort_rank}; give 0 to {self.layout.world_size - 1}, "
                f"the ranks of tp={self.layout.tp} x pp={self.layout.pp} x replicas={self.layout.replicas}"
            )

    @property
    def rank(self) -> Rank:
        """Global rank."""
        return Rank(self.rank_offset + self.cohort_rank)

    @property
    def world_size(self) -> int:
        """Ranks of the deployment once this cohort is in it; ranks that joined before it count, later ones do not."""
        return self.rank_offset + self.layout.world_size if self.deployed is None else self.deployed

    def plan(self) -> CreationPlan:
        """Options of each group that `bring_up` creates, by name, as data to read or edit."""
        base = GroupOptions(
            backend=self.backend,
            device=self.device,
            timeout_s=self.timeout_s,
            solo_groups=self.solo_groups,
        )
        return creation_plan(
            self.layout,
            self.role,
            rank_offset=self.rank_offset,
            max_world_size=self.max_world_size,
            rules=self.rules,
            base=base,
        )


def bring_up(args: BootstrapArgs, plan: CreationPlan | None = None) -> ParallelState:
    """Create the default group, WORLD and all sub-groups of this rank, as `plan` (by default `args.plan()`) says.

    Collective over the ranks that start together; see `initialize_model_parallel`.
    Raises: ValueError, RuntimeError as the functions that it calls.
    """
    plan = args.plan() if plan is None else plan
    init_distributed_environment(rank=args.rank, world_size=args.world_size, plan=plan, init_method=args.init_method)
    return initialize_model_parallel(args.layout, plan)
