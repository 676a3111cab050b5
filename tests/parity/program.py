"""A program as text: what simulated ranks and real processes both run.

The text is that of a small module with a function `main(rank, world_size)`, which makes its default group itself, with
`dist.init_process_group`, and returns plain data. It runs under torchrun too.

Not modelled: a file on disk. The text is compiled under the program's name, so a report shows `name.py:12`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MARK = "# CULPRIT"

HEADER = '''\
"""{summary}"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

'''
FOOTER = """

if __name__ == "__main__":
    print(main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
"""


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    Attributes:
        source: text of the module.
        backend: `gloo` or `nccl`, the one that `main` asks for.
    """

    name: str
    source: str
    world_size: int
    backend: str = "gloo"

    @property
    def file(self) -> str:
        return f"{self.name}.py"

    @property
    def marked_lines(self) -> tuple[int, ...]:
        """The lines that a reader would point at, from 1."""
        return tuple(number for number, line in enumerate(self.source.splitlines(), 1) if MARK in line)

    def main(self) -> Callable[[int, int], Any]:
        """The function that each rank runs."""
        scope: dict[str, Any] = {"__name__": self.name, "__file__": self.file}
        exec(compile(self.source, self.file, "exec", dont_inherit=True), scope)
        function: Callable[[int, int], Any] = scope["main"]
        return function


def module_text(summary: str, functions: str) -> str:
    """A whole module: imports, the functions given, and what a launcher runs."""
    return HEADER.format(summary=summary) + "\n" + functions.strip("\n") + "\n" + FOOTER
