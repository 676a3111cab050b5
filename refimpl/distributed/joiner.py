"""Coming into a deployment that serves already.

    member = join_deployment(joiner_args, launch_id="2026-05-01/3", data_plane=connect)
    while member.poll() is None:
        serve_a_step()

Every rank of the cohort calls it.  Nothing is created, and nothing blocks without a limit, before the deployment has
said yes: a cohort that does not fit is told so at once, where it would otherwise hang in the creation of its groups or
run alone in them.  `join_group`, which blocks with the interpreter's lock held, is called only when all of the cohort
are ready and the deployment waits for them.

Not here: a time-out for `join_group` itself (Mooncake's own, 300 s), needed when the deployment dies at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from refimpl.distributed import membership
from refimpl.distributed.admission import Admission, DataPlane
from refimpl.distributed.bootstrap import BootstrapArgs, bring_up
from refimpl.distributed.cohort import Attention, Cohort
from refimpl.distributed.contract import CreationPlan, Role
from refimpl.distributed.elastic import ElasticMember
from refimpl.distributed.life import Life, State
from refimpl.distributed.parallel_state import ParallelState
from refimpl.distributed.registry import Decision, ElasticError, Patience, Registry, open_store

_T = TypeVar("_T")
MakePlan = Callable[[BootstrapArgs], CreationPlan]


def join_deployment(
    args: BootstrapArgs,
    *,
    launch_id: str,
    recovered: tuple[int, ...] | None = None,
    plan: MakePlan = BootstrapArgs.plan,
    load: Callable[[ParallelState], None] = lambda groups: None,
    data_plane: DataPlane = lambda ranks: None,
    patience: Patience | None = None,
    life: Life | None = None,
) -> ElasticMember:
    """Register, create the groups of this cohort, enter WORLD (or all groups of a lost rank), and serve.

    launch_id: names this launch of the cohort, alike on its ranks; another attempt needs another one.
    recovered: the global ranks that come back together, for a recovering joiner; by default this rank alone.
    plan: makes the creation plan from the arguments as they are once the size of the deployment is known.
    load: whatever takes long and needs no other cohort, such as loading weights; the deployment serves meanwhile.
    life: is filled in; pass one to read it after a failure.
    Raises: ElasticError when the deployment says no, or does not answer; the text says why and what would do.
    """
    joiner = _Joiner(args, launch_id, recovered, patience or Patience(), life or Life(State.REGISTERING))
    return joiner.turned_away_if_it_fails(lambda: joiner.join(plan, load, data_plane))


class _Joiner:
    """One joining rank, from its registration until it serves."""

    def __init__(
        self, args: BootstrapArgs, launch_id: str, recovered: tuple[int, ...] | None, patience: Patience, life: Life
    ) -> None:
        self.args, self.patience, self.life = args, patience, life
        self.registry = Registry(open_store(args.init_method), patience)
        self.cohort = cohort_of(args, launch_id, recovered)

    def turned_away_if_it_fails(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except ElasticError as error:
            self.life.enter(State.TURNED_AWAY, str(error))
            raise

    def join(self, plan: MakePlan, load: Callable[[ParallelState], None], data_plane: DataPlane) -> ElasticMember:
        self._register()
        groups = self._create_groups(plan)
        load(groups)
        self._wait_for_offer()
        try:
            self._enter(groups)
            return self._become_member(groups, data_plane)
        except ElasticError:
            self._wait_until_dismissed()
            raise

    def _become_member(self, groups: ParallelState, data_plane: DataPlane) -> ElasticMember:
        deployment = self.registry.deployment()
        admission = Admission(self.cohort, deployment, groups, self.registry, data_plane)
        member = ElasticMember(
            groups,
            self.args,
            data_plane=data_plane,
            registry=self.registry,
            deployment=deployment,
            life=self.life,
        )
        self._must(member.configure_and_sync(admission))
        member.commit(self.cohort)
        return member

    def _wait_until_dismissed(self) -> None:
        """Stay until the others have made this rank inactive.

        Mooncake asks every rank of a group for its consent to a new view, and waits long for one that has just left.
        """
        with suppress(ElasticError):
            self.registry.wait_decision(self.cohort, "dismissed", 2 * self.patience.step_s, "")

    def _must(self, decision: Decision) -> None:
        if not decision.ok:
            raise ElasticError(f"{self.cohort} cannot come in: {decision.why}")

    def _register(self) -> None:
        self.registry.deployment()
        self.registry.arrive(self.cohort, self.args.rank)
        if self.args.rank == self.cohort.first:
            self.registry.ask(self.cohort)
        remedy = "the serving ranks did not answer; they must call poll between their steps"
        self._must(self.registry.wait_decision(self.cohort, "answer", self.patience.answer_s, remedy))

    def _create_groups(self, plan: MakePlan) -> ParallelState:
        self.life.enter(State.CREATING_GROUPS, "the deployment accepts")
        if self.cohort.recovers:
            self.args = replace(self.args, deployed=self.registry.deployment().world_size)
        return bring_up(self.args, plan(self.args))

    def _wait_for_offer(self) -> None:
        self.life.enter(State.WAITING_TO_JOIN, "groups created")
        self.registry.say_ready(self.cohort, self.args.rank)
        remedy = "other ranks of the cohort are missing, or the serving ranks no longer call poll"
        self._must(self.registry.wait_decision(self.cohort, "offer", 2 * self.patience.peers_s, remedy))

    def _enter(self, groups: ParallelState) -> None:
        self.life.enter(State.JOINING, "the deployment waits for it")
        recovers = self.cohort.recovers
        for target in membership.launch_targets(groups) if recovers else membership.world_targets(groups):
            membership.join(target)
            self._must(self.registry.turned_away(self.cohort, "admitted") or Decision(True))
        remedy = "rank 0 did not say whether all were admitted"
        self._must(self.registry.wait_decision(self.cohort, "admitted", 2 * self.patience.step_s, remedy))


def cohort_of(args: BootstrapArgs, launch_id: str, recovered: tuple[int, ...] | None = None) -> Cohort:
    """What the rank with these arguments asks for.  Raises: ValueError for a rank that was launched, not joined."""
    if args.role == Role.LAUNCH:
        raise ValueError(f"role {args.role} does not join; give {Role.SCALE_JOINER} or {Role.RECOVERING_JOINER}")
    recovers = args.role == Role.RECOVERING_JOINER
    if recovers:
        ranks = (args.rank,) if recovered is None else tuple(sorted(recovered))
    else:
        ranks = tuple(range(args.rank_offset, args.rank_offset + args.layout.world_size))
    return Cohort(
        ranks=ranks,
        capacity=args.max_world_size,
        attention=Attention.of(args.layout),
        launch_id=launch_id,
        recovers=recovers,
    )
