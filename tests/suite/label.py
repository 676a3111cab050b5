"""What is known of a program because of how it was made: right, or which fault, whose, and on which line.

Labels never come from a simulation. The classes are those of the MPI Bugs Initiative (Laurent, Saillard, Quinson,
2021) that make sense for torch.distributed; `corpus` holds programs after public bug reports.

Kinds. A fault has one kind. Two or more stand there where each of them describes the same fault truthfully, and in
these cases only:
- deadlock, mismatch: a rank leaves out or adds a call and comes to a *later* call of the same group. The others' call
  meets the wrong partner, and nothing completes.
- exception, wrong_ranks: a rank number that is not in the group, which torch or the backend refuses.
- race beside the bad outcome: the order of the ranks decides, and the order that is run may be the bad one.
- leak, race: work that nobody waits for. leak, exception: it is still in flight when its group is destroyed. leak,
  deadlock: on NCCL, where the first message between two ranks waits for the other one to connect.
- timeout, deadlock: a rank comes after the group's time-out.

Ranks. Those whose code has to change. With three ranks or more a rank that differs from all others is to blame; of two
that differ, both are. All ranks of a cycle are. `also` may be named beside them, since they take part; of a race whose
fault is on all ranks alike, any of them may be.

Lines. Each line that ends in `# CULPRIT` is a right answer. It is the wrong call; for a call that is missing, the call
of the others that stays without it, or the one that the rank makes in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.parity.program import Program

CLASSES = (
    "invalid_parameter",
    "resource_leak",
    "request_lifecycle",
    "local_concurrency",
    "message_race",
    "parameter_matching",
    "call_matching",
    "global_concurrency",
    "buffering_hazard",
    "random",
    "corpus",
)


@dataclass(frozen=True, slots=True)
class Label:
    """What a checker should say.

    Attributes:
        kinds: the words that are right; none: the program is right.
        ranks: those to blame; none, if the order of the ranks decides which one it is.
        also: those that may be named beside them.
        explore: the fault shows in some orders of the ranks only.
        silent: real gloo may end without an error all the same.
    """

    kinds: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    also: tuple[int, ...] = ()
    explore: bool = False
    silent: bool = False

    @property
    def is_right(self) -> bool:
        return not self.kinds


@dataclass(frozen=True, slots=True)
class Case:
    """A program with its label.

    Attributes:
        pattern: what it is an instance of.
        real: real gloo is asked too; false where what it does depends on timing, or would take too long.
    """

    program: Program
    label: Label
    klass: str
    pattern: str
    real: bool = True

    @property
    def name(self) -> str:
        return self.program.name
