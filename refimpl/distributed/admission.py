"""One cohort's way into the groups, as one rank takes it: let in, configure, synchronise, or dismiss.

    admission = Admission(cohort, deployment, groups, registry, data_plane)
    if admission.let_in().ok and admission.configure().ok and admission.synchronise().ok: ...
    else: admission.dismiss()

Each step is collective over the ranks that it names, and ends in one decision that all of them get.  What goes wrong on
a rank is its vote, not an exception.  Serving ranks take all four steps, joiners the two in the middle.

Not here: when to begin, and what follows from a decision (`elastic`, `joiner`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from refimpl.distributed import membership
from refimpl.distributed.cohort import Cohort, Deployment
from refimpl.distributed.membership import Target
from refimpl.distributed.parallel_state import ParallelState
from refimpl.distributed.registry import Decision, Registry

DataPlane = Callable[[tuple[int, ...]], None]
"""Connects this rank to all ranks that serve from now on; called on each of them.  May raise, which rolls back."""


class Admission:
    """The steps of one change of the membership."""

    def __init__(
        self, cohort: Cohort, deployment: Deployment, groups: ParallelState, registry: Registry, data_plane: DataPlane
    ) -> None:
        """deployment: as it is before the change."""
        self.cohort = cohort
        self.before = deployment.active
        self.after = tuple(sorted({*deployment.active, *cohort.ranks}))
        self._groups = groups
        self._rank = groups.world.rank
        self._registry = registry
        self._patience = registry.patience
        self._data_plane = data_plane

    def let_in(self) -> Decision:
        """Serving ranks: stand still, then the leader of each group makes the cohort active in it."""
        _settle(self._groups.world.device)
        decision = self._agree("quiet", self.before)
        return self._agree("admitted", self.before, self._admit) if decision.ok else decision

    def configure(self) -> Decision:
        """Old and new ranks: see each other in every group that changed, and connect the data plane."""
        return self._agree("configured", self.after, self._configure)

    def synchronise(self) -> Decision:
        """Old and new ranks: meet in every group that changed, and count each other."""
        return self._agree("synced", self.after, self._count)

    def dismiss(self) -> Decision:
        """Serving ranks: stand still, then the leader of each group makes the cohort inactive in it."""
        decision = self._agree("dismiss", self.before)
        return self._agree("dismissed", self.before, self._dismiss) if decision.ok else decision

    def _agree(self, step: str, members: tuple[int, ...], work: Callable[[], None] = lambda: None) -> Decision:
        error = ""
        try:
            work()
        except Exception as problem:  # whatever goes wrong here is this rank's vote, so that nobody is left waiting
            error = str(problem) or type(problem).__name__
        return self._registry.agree(self.cohort, step, self._rank, members, error)

    def _targets(self) -> list[Target]:
        """The groups of this rank in which the cohort is to be active."""
        if not self.cohort.recovers:
            return membership.world_targets(self._groups)
        return [target for target in membership.launch_targets(self._groups) if target.slots(self.cohort.ranks)]

    def _led(self) -> list[Target]:
        """Those for which this rank makes the calls."""
        return [target for target in self._targets() if target.leader(self.before) == self._rank]

    def _admit(self) -> None:
        for target in self._led():
            membership.admit(target, self.cohort.ranks, self._patience)

    def _configure(self) -> None:
        for target in self._targets():
            membership.wait_view(target, self.cohort.ranks, True, self._patience)
        self._data_plane(self.after)

    def _count(self) -> None:
        for target in self._targets():
            expected = len(target.slots(self.after))
            (found,), _ = membership.add_up(target, [1])
            if found != expected:
                raise RuntimeError(f"{found} ranks met in {target.name!r}, expected {expected}")

    def _dismiss(self) -> None:
        for target in self._led():
            membership.dismiss(target, self.cohort.ranks)
        for target in self._targets():
            membership.wait_view(target, self.cohort.ranks, False, self._patience)


def _settle(device: torch.device) -> None:
    """Let this rank's device finish what it was given, so that no collective is under way."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
