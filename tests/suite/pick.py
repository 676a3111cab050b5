"""How the programs of the suite are written: patterns, and what they choose from by a seed.

    @pattern("call_matching")
    def left_out(p):
        '''One rank does not enter a collective.'''
        victim, c = p.rank(), p.collective()
        p.wrong(f'''
            {c.setup}
            if rank != {victim}:
                {c.call}  # CULPRIT
        ''', "deadlock", [victim])

A pattern gives wrong programs and right ones that look like them. Around its body stand other calls, all right, which
differ from seed to seed; in every second program the body is a function of its own.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.parity.program import Program, module_text
from tests.suite.label import Case, Label

BOTH = ("gloo", "nccl")
HELPERS = {
    "gloo": '''
def filled(value, count=1, dtype=torch.float32):
    """A tensor of `count` equal numbers."""
    return torch.full((count,), value, dtype=dtype)

''',
    "nccl": '''
def device():
    """The rank's GPU; a simulation on a machine without GPUs has none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def filled(value, count=1, dtype=torch.float32):
    """A tensor of `count` equal numbers."""
    return torch.full((count,), value, dtype=dtype, device=device())

''',
}
START = {
    "gloo": '    dist.init_process_group("gloo")\n',
    "nccl": "    if torch.cuda.is_available():\n        torch.cuda.set_device(rank)\n"
    '    dist.init_process_group("nccl")\n',
}


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as text: a line that makes its tensors, the call, and an expression for what it gave."""

    op: str
    setup: str
    call: str
    value: str


class Pick:
    """The choices of one instance of a pattern, and the programs that come of them.

    Attributes:
        n: number of ranks.
        backend: `gloo` or `nccl`.
    """

    def __init__(self, klass: str, pattern: Pattern, backend: str, seed: int) -> None:
        self._rng = random.Random(f"{klass} {pattern.name} {backend} {seed}")
        self._klass, self._pattern, self._seed = klass, pattern, seed
        self.backend = backend
        self.n = self._rng.randint(*pattern.sizes)
        self.cases: list[Case] = []
        self._before = self._context() if pattern.context else ""

    # -- choices -----------------------------------------------------------------------------------------------------

    def among(self, options: Sequence[str]) -> str:
        """One of several texts."""
        return self._rng.choice(options)

    def number(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def rank(self, but: Sequence[int] = ()) -> int:
        """Any rank, except some."""
        return self._rng.choice([rank for rank in range(self.n) if rank not in but])

    def ranks(self, count: int) -> list[int]:
        """Several ranks, sorted."""
        return sorted(self._rng.sample(range(self.n), count))

    def blamed(self, victim: int) -> list[int]:
        """The rank that differs from all others; with two ranks, both."""
        return [victim] if self.n > 2 else [0, 1]

    def others(self, *ranks: int) -> list[int]:
        return [rank for rank in range(self.n) if rank not in ranks]

    @property
    def connect(self) -> str:
        """A first collective: NCCL connects the ranks of WORLD in it, and the host waits for all of them."""
        return "dist.barrier()" if self.backend == "nccl" else "pass"

    @property
    def all(self) -> list[int]:
        return list(range(self.n))

    def collective(self, name: str = "x", *, group: str = "", size: int = 0, but: Sequence[str] = ()) -> Collective:
        """Any collective on WORLD, or on the `size` ranks of a group."""
        where, size = (f", group={group}", size) if group else ("", self.n)
        count, root = self.number(1, 4), 0 if group else self.rank()
        made = f"{name} = filled(rank + 1.0, {count})"
        options = [
            Collective("all_reduce", made, f"dist.all_reduce({name}{where})", f"{name}.tolist()"),
            Collective("all_reduce", made, f"dist.all_reduce({name}, op=dist.ReduceOp.MAX{where})", f"{name}.tolist()"),
            Collective(
                "all_gather",
                f"{name}, {name}_parts = filled(rank + 1.0, {count}), [filled(0.0, {count}) for _ in range({size})]",
                f"dist.all_gather({name}_parts, {name}{where})",
                f"[part.tolist() for part in {name}_parts]",
            ),
            Collective(
                "all_gather",
                f"{name}, {name}_parts = filled(rank + 1.0, {count}), filled(0.0, {count * size})",
                f"dist.all_gather_into_tensor({name}_parts, {name}{where})",
                f"{name}_parts.tolist()",
            ),
            Collective(
                "reduce_scatter",
                f"{name}, {name}_parts = filled(0.0, {count}), filled(rank + 1.0, {count * size})",
                f"dist.reduce_scatter_tensor({name}, {name}_parts{where})",
                f"{name}.tolist()",
            ),
            Collective(
                "all_to_all_single",
                f"{name}, {name}_parts = filled(0.0, {count * size}), filled(rank + 1.0, {count * size})",
                f"dist.all_to_all_single({name}, {name}_parts{where})",
                f"{name}.tolist()",
            ),
        ]
        if not group:
            options.append(Collective("broadcast", made, f"dist.broadcast({name}, src={root})", f"{name}.tolist()"))
        return self._rng.choice([option for option in options if option.op not in but])

    # -- programs ----------------------------------------------------------------------------------------------------

    def wrong(
        self,
        body: str,
        kinds: str,
        ranks: Sequence[int],
        *,
        also: Sequence[int] = (),
        explore: bool = False,
        silent: bool = False,
        real: bool = True,
    ) -> None:
        """A wrong program. `kinds`: one word, or several with blanks between."""
        label = Label(tuple(kinds.split()), tuple(sorted(ranks)), tuple(sorted(also)), explore, silent)
        case = self._case("wrong", body, label, real)
        assert case.program.marked_lines, f"{case.name}: no line is marked"
        self.cases.append(case)

    def right(self, body: str, *, real: bool = True, end: bool = True) -> None:
        """A right program; `end`: it may meet once more, and destroy its groups, at the end."""
        ends = ("", "", "dist.barrier()", "dist.barrier()\ndist.destroy_process_group()")
        after = self._rng.choice(ends) if end else ""
        case = self._case("right", textwrap.dedent(body) + "\n" + after, Label(), real)
        assert not case.program.marked_lines, f"{case.name}: a line is marked"
        self.cases.append(case)

    def _case(self, what: str, body: str, label: Label, real: bool) -> Case:
        number = sum(case.label.is_right == (what == "right") for case in self.cases)
        suffix = f"{what}{number or ''}"
        name = f"{self._klass}-{self._pattern.name}-{self.backend}-{self._seed}-{suffix}"
        lines = [line for line in textwrap.dedent(body).strip("\n").splitlines() if line.strip() not in ("", "pass")]
        text = textwrap.indent(self._before + self._placed("\n".join(lines)), "    ")
        main = f"def main(rank, world_size):\n{START[self.backend]}    out = []\n{text}\n    return out\n"
        summary = f"{self._pattern.told} ({what})"
        source = module_text(summary, HELPERS[self.backend] + "\n" + main)
        program = Program(name, source, self.n, self.backend)
        return Case(program, label, self._klass, self._pattern.name, real and self.backend == "gloo")

    def _placed(self, body: str) -> str:
        """Every second instance has its calls one function deeper."""
        if self._seed % 2 == 0:
            return body
        name = ("step", "run", "work_on")[self._seed % 3]
        return f"\ndef {name}():\n{textwrap.indent(body, '    ')}\n\n{name}()"

    def _context(self) -> str:
        """Calls that stand before the body: all right, none to be remembered."""
        halves = f"[{list(range(self.n // 2))}, {list(range(self.n // 2, self.n))}]"
        options = (
            "",
            "",
            "dist.barrier()\n",
            "dist.all_reduce(filled(1.0))\n",
            f"time.sleep(0.01 * ((rank + {self.number(0, 3)}) % world_size))\n",
            f"halves = [dist.new_group(ranks) for ranks in {halves}]\n"
            f"dist.all_reduce(filled(1.0), group=halves[int(rank >= {self.n // 2})])\n",
            "names = [None] * world_size\ndist.all_gather_object(names, f'host-{rank}')\n",
            "everybody = dist.new_group()\ndist.barrier(group=everybody)\n",
        )
        return "".join(self._rng.sample(options, 2))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A way to be wrong, or right in a suspicious way.

    Attributes:
        told: one line that says which.
        sizes: least and most ranks.
        context: other calls may stand before it.
    """

    klass: str
    name: str
    told: str
    make: Callable[[Pick], None]
    backends: tuple[str, ...]
    sizes: tuple[int, int]
    context: bool

    def cases(self, backend: str, seed: int) -> list[Case]:
        """The programs of one seed."""
        pick = Pick(self.klass, self, backend, seed)
        self.make(pick)
        return pick.cases


def pattern(
    klass: str, *, backends: tuple[str, ...] = BOTH, sizes: tuple[int, int] = (2, 8), context: bool = True
) -> Callable[[Callable[[Pick], None]], Pattern]:
    """Make a pattern of a function; its docstring is one line."""

    def enter(make: Callable[[Pick], None]) -> Pattern:
        told = (make.__doc__ or "").strip().rstrip(".")
        return Pattern(klass, make.__name__, told, make, backends, sizes, context)

    return enter
