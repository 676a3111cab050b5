"""A serving rank of an elastic deployment: grow, recover, roll back, as a state machine that all ranks go through.

    member = ElasticMember(bring_up(args), args, data_plane=connect)     # a rank of the first launch
    while member.poll() is None:                                         # between two steps, on every rank
        serve_a_step()

    member = join_deployment(joiner_args, launch_id="3", data_plane=connect)   # a joiner, see `joiner`

    SERVING -> WAITING_FOR_PEERS    rank 0 has accepted a cohort; serving goes on
            -> ADMITTING            all serving ranks stand still; WORLD (or all groups of a lost rank) takes it in
            -> CONFIGURING          old and new ranks: the data plane, by the hook
            -> SYNCING              they meet in every group and count each other
            -> COMMITTING           rank 0 publishes the new deployment
            -> SERVING
    any step -> ROLLING_BACK -> SERVING: what was admitted is made inactive, the cohort is told why.

Ranks decide together.  Rank 0 alone looks at the store and at the peers; what it sees reaches the others as the sum of
one all_reduce that every rank calls at the same step (`poll`).  A rank that acted on what it sees itself would enter
the change a step before or after its peers, and hang.  From then on each step ends in one decision (`Registry.agree`).

Not here: the loss of rank 0, which takes the store and Mooncake's coordinator along; nobody survives it.  A lost rank
of a cohort that joined later is not recovered: its slot stays empty.  Ranks that are lost while a change is under
way are noticed by its time-outs.

Source: facts measured on mooncake-transfer-engine 0.3.13; SGLang pull request 38503 for which groups grow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from refimpl.distributed import membership
from refimpl.distributed.admission import Admission, DataPlane
from refimpl.distributed.bootstrap import BootstrapArgs
from refimpl.distributed.cohort import Attention, Cohort, Deployment, Line, named
from refimpl.distributed.layout import Rank
from refimpl.distributed.life import Life, State
from refimpl.distributed.parallel_state import ParallelState
from refimpl.distributed.registry import Decision, ElasticError, Patience, Registry, open_store

NOTHING, ACCEPT, ADMIT, WITHDRAW, STOP = range(5)


class Order(NamedTuple):
    """What rank 0 tells all ranks to do at this step."""

    kind: int = NOTHING
    ticket: int = 0
    """Of ACCEPT: the cohort that it is about, by its place in the line."""


@dataclass(frozen=True, slots=True)
class Change:
    """What `poll` reports: the membership is another one, or a change of it failed, or serving ends."""

    kind: str
    """`grown`, `recovered`, `rolled back`, `lost` or `stop`."""
    ranks: tuple[int, ...]
    """Global ranks that it is about."""
    why: str = ""
    """Of a failure: what happened."""


class ElasticMember:
    """One serving rank."""

    def __init__(
        self,
        groups: ParallelState,
        args: BootstrapArgs,
        *,
        data_plane: DataPlane = lambda ranks: None,
        patience: Patience | None = None,
        registry: Registry | None = None,
        deployment: Deployment | None = None,
        life: Life | None = None,
    ) -> None:
        """Give `registry`, `deployment` and `life` of a rank that has just joined; rank 0 publishes what was launched.

        Raises: ElasticError for a backend whose groups cannot change.
        """
        self.groups = groups
        self.rank = args.rank
        self.registry = registry or Registry(open_store(args.init_method), patience or Patience())
        self.life = life or Life(State.SERVING, f"{args.world_size} ranks")
        self.deployment = deployment or _launched(args)
        self._patience = self.registry.patience
        self._data_plane = data_plane
        self._world = membership.world_targets(groups)
        self._line = Line(self._patience.early_s)
        self._admission: Admission | None = None
        self._deadline_s = 0.0
        self._offered = self._stops = False
        if deployment is None and self.rank == 0:
            self.registry.publish(self.deployment)

    # Between two steps of serving

    def poll(self) -> Change | None:
        """Take the next step of whatever change is under way.  Call it on every serving rank, between two steps.

        Collective over the serving ranks; costs one all_reduce of three numbers on the CPU group of WORLD.
        Returns: what has changed for this rank, or None.
        Raises: ElasticError when not all ranks took part, or a change could not be undone.
        """
        order, present = self._hear(self._order() if self.rank == 0 else Order())
        lost = self._newly_lost()
        if lost:
            return self._lose(lost)
        if present != len(self.deployment.active):
            raise ElasticError(
                f"{present} of {len(self.deployment.active)} ranks took part in poll, yet all are active; call it on "
                "every serving rank at the same step"
            )
        return self._obey(order)

    def stop(self) -> None:
        """Rank 0: let all ranks end at the next `poll` at which no cohort is on its way; it reports `stop`."""
        self._stops = True

    def _hear(self, order: Order) -> tuple[Order, int]:
        """Rank 0's order and how many ranks took part.  The sum is the order, since all others bring zeros."""
        kind, ticket, present = membership.add_up(self._world[-1], [*order, 1]).numbers
        return Order(kind, ticket), present

    # Rank 0 alone: look at the store and the peers, decide

    def _order(self) -> Order:
        if self._admission is not None:
            if self._may_admit(self._admission.cohort):
                return Order(ADMIT)
            return Order(WITHDRAW) if time.monotonic() > self._deadline_s else Order()
        return Order(STOP) if self._stops else self._look_for_cohort()

    def _look_for_cohort(self) -> Order:
        """Answer the cohorts in the line until one can come in."""
        now_s = time.monotonic()
        while (newcomer := self.registry.cohort(self._line.next_ticket)) is not None:
            self._line.add(newcomer, now_s)
        while (heard := self._line.hear(self.deployment, now_s)) is not None:
            ticket, cohort, why = heard
            self.registry.decide(cohort, "answer", Decision(not why, why))
            if not why:
                return Order(ACCEPT, ticket)
        return Order()

    def _may_admit(self, cohort: Cohort) -> bool:
        """All are ready, have been told to join, and have called `join_group` on the first group."""
        if not self.registry.all_ready(cohort):
            return False
        if not self._offered:
            self._offered = True
            self.registry.decide(cohort, "offer", Decision(True))
        return membership.have_joined(self._world[0], cohort.ranks)

    # What follows from an order, on all ranks

    def _obey(self, order: Order) -> Change | None:
        if order.kind == ACCEPT:
            self._accept(order.ticket)
        elif order.kind == ADMIT:
            return self._change_membership(self._admitting)
        elif order.kind == WITHDRAW:
            late = self.registry.not_ready(self._admitting.cohort) or self._admitting.cohort.ranks
            return self._roll_back(self._admitting, f"{named(late)} did not come in {self._patience.peers_s:g} s")
        elif order.kind == STOP:
            return Change("stop", ())
        return None

    @property
    def _admitting(self) -> Admission:
        assert self._admission is not None, "rank 0 orders it only after all have accepted a cohort"
        return self._admission

    def _accept(self, ticket: int) -> None:
        cohort = self.registry.cohort(ticket)
        assert cohort is not None, "rank 0 has read it"
        self._admission = Admission(cohort, self.deployment, self.groups, self.registry, self._data_plane)
        self._offered, self._deadline_s = False, time.monotonic() + self._patience.peers_s
        self.life.enter(State.WAITING_FOR_PEERS, f"{cohort} to {'recover' if cohort.recovers else 'join'}")

    def _change_membership(self, admission: Admission) -> Change:
        """All serving ranks at once: stand still, admit, configure, sync, commit; or roll back."""
        cohort = admission.cohort
        self.life.enter(State.ADMITTING, f"{cohort} called join_group")
        decision = admission.let_in()
        if decision.ok:
            decision = self.configure_and_sync(admission)
        if not decision.ok:
            return self._roll_back(admission, decision.why)
        self.commit(cohort)
        return Change("recovered" if cohort.recovers else "grown", cohort.ranks)

    def configure_and_sync(self, admission: Admission) -> Decision:
        """Old and new ranks, once the new ones are active."""
        self.life.enter(State.CONFIGURING, f"{admission.cohort} active")
        decision = admission.configure()
        if decision.ok:
            self.life.enter(State.SYNCING, "data plane connected")
            decision = admission.synchronise()
        return decision

    def commit(self, cohort: Cohort) -> None:
        """The cohort serves from now on."""
        self.life.enter(State.COMMITTING, "all have met")
        old = self.deployment
        self.deployment = replace(
            old,
            world_size=max(old.world_size, cohort.ranks[-1] + 1),
            lost=tuple(rank for rank in old.lost if rank not in cohort.ranks),
            generation=old.generation + 1,
        )
        if self.rank == 0:
            self.registry.publish(self.deployment)
        self.groups.world.ranks = tuple(map(Rank, range(self.deployment.world_size)))
        self._serve(f"{len(self.deployment.active)} ranks")

    def _serve(self, why: str) -> None:
        self._admission = None
        self.life.enter(State.SERVING, why)

    def _roll_back(self, admission: Admission, why: str) -> Change:
        """All serving ranks: undo the admission, tell the cohort, go on serving as before."""
        cohort = admission.cohort
        self.life.enter(State.ROLLING_BACK, why)
        if self.rank == 0:
            for step in ("offer", "admitted"):
                self.registry.decide_if_open(cohort, step, Decision(False, why))
        decision = admission.dismiss()
        if not decision.ok:
            raise ElasticError(f"rolling back failed, so the ranks no longer agree who serves: {decision.why}")
        self._serve(f"{len(self.deployment.active)} ranks, without {cohort}")
        return Change("rolled back", cohort.ranks, why)

    # Ranks that are lost

    def _newly_lost(self) -> tuple[int, ...]:
        active = self.deployment.active
        there = membership.is_active(self._world[-1], active)
        return tuple(rank for rank, here in zip(active, there, strict=True) if not here)

    def _lose(self, lost: tuple[int, ...]) -> Change:
        """Ranks are gone.  A cohort that waits is sent away: it asked to join another deployment."""
        self.deployment = replace(
            self.deployment,
            lost=tuple(sorted({*self.deployment.lost, *lost})),
            generation=self.deployment.generation + 1,
        )
        if self.rank == 0:
            self.registry.publish(self.deployment)
        why = f"{named(lost)} lost"
        if self._admission is not None:
            cohort = self._admission.cohort
            self._admission = Admission(cohort, self.deployment, self.groups, self.registry, self._data_plane)
            why = f"{named(lost)} lost while {cohort} waited; recover first, then grow"
            self._roll_back(self._admission, why)
        else:
            self._serve(f"{len(self.deployment.active)} ranks, {why}")
        return Change("lost", lost, why)


def _launched(args: BootstrapArgs) -> Deployment:
    return Deployment(
        world_size=args.world_size,
        capacity=args.max_world_size,
        attention=Attention.of(args.layout),
        launched=args.world_size,
    )
