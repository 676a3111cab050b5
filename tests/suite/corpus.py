"""Programs whose mechanism comes from public bug reports, and correct ones that look as suspicious.

The functions stand in `corpus_groups`, `corpus_calls` and `corpus_right`. Each is the whole program; its text is taken
from its source. What they show of torch and gloo was measured with real processes, torch 2.13.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from tests.parity.program import Program, module_text
from tests.suite.label import Case, Label
from tests.suite.pick import HELPERS

Main = Callable[[int, int], Any]


def filled(value: float, count: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of `count` equal numbers; the programs have it too."""
    return torch.full((count,), value, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Known:
    """One program of the corpus.

    Attributes:
        identity: its name here, such as `B02`.
        report: the public report that it is made after.
    """

    identity: str
    report: str
    world_size: int
    main: Main
    label: Label
    real: bool

    def case(self) -> Case:
        """The program as text, with its label."""
        lines = inspect.getsource(self.main).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("def "))
        head = f"def main(rank, world_size):  # {self.main.__name__}"
        functions = HELPERS["gloo"] + "\n" + "\n".join([head, *lines[first + 1 :]])
        told = (self.main.__doc__ or "").strip().split("\n")[0].rstrip(".")
        name = f"corpus-{self.identity}"
        program = Program(name, module_text(f"{told} (after {self.report})", functions), self.world_size)
        return Case(program, self.label, "corpus", self.identity, self.real)


def known(
    identity: str,
    report: str,
    world_size: int,
    kinds: str = "",
    ranks: tuple[int, ...] = (),
    *,
    also: tuple[int, ...] = (),
    explore: bool = False,
    silent: bool = False,
    real: bool = True,
) -> Callable[[Main], Known]:
    """Enter a program; without kinds it is right."""
    label = Label(tuple(kinds.split()), ranks, also, explore, silent)
    return lambda main: Known(identity, report, world_size, main, label, real)


def corpus() -> list[Case]:
    """All programs of the corpus, in the order of their texts."""
    from tests.suite import corpus_calls, corpus_groups, corpus_right

    return [case for module in (corpus_groups, corpus_calls, corpus_right) for case in _of(module)]


def _of(module: ModuleType) -> list[Case]:
    return [value.case() for value in vars(module).values() if isinstance(value, Known)]
