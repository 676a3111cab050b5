"""HC001: parameters that are not passed on to a group constructor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Found = Callable[..., list[tuple[str, int]]]

MAKER = """
class Group:
    def __init__(self, ranks, backend, recovered_rank=False, rank_offset=0, max_world_size=None): ...

def make(ranks, backend, name="", recovered_rank=False, rank_offset=0, max_world_size=None):
    return Group(ranks, backend, recovered_rank, rank_offset, max_world_size)
"""


def test_a_call_that_leaves_parameters_out_is_named_with_what_to_write(violations: Callable[..., list]) -> None:
    """One violation for the call, with all that is missing."""
    (one,) = violations(
        MAKER
        + """
def start(rank_offset=0, recovered_rank=False, max_world_size=None):
    make([0], "gloo", name="tp", rank_offset=rank_offset, recovered_rank=recovered_rank, max_world_size=max_world_size)
    make([0], "gloo", name="dcp", recovered_rank=recovered_rank)
"""
    )
    assert (one.code, one.span.line, one.span.column, one.certainty) == ("HC001", 10, 5, "cause")
    assert one.message == "make() accepts rank_offset, max_world_size, and start() does not pass on its own"
    assert one.remedy == (
        "write rank_offset=rank_offset, max_world_size=max_world_size, or say by name what else is meant"
    )
    assert one.source == '    make([0], "gloo", name="dcp", recovered_rank=recovered_rank)'


START = "def start(rank_offset=0):\n"


@pytest.mark.parametrize(
    "body",
    [
        "    make([0], 'gloo')",
        "    Group([0], 'gloo')",
        "    alias = make\n    alias([0], 'gloo')",
        "    def inner(ranks):\n        return make(ranks, 'gloo')\n    return inner([0])",
        "    return [make([r], 'gloo') for r in range(4)]",
        "    return (lambda ranks: make(ranks, 'gloo'))([0])",
        "    if rank_offset > 0:\n        make([0], 'gloo')",
        "    size = 2 if rank_offset > 0 else 4\n    make(list(range(size)), 'gloo')",
    ],
)
def test_ways_to_forget(body: str, found: Found) -> None:
    """Also through aliases, closures and lambdas; a parameter that is only asked about is not passed on."""
    assert [code for code, _ in found(MAKER + START + body)] == ["HC001"]


@pytest.mark.parametrize(
    "body",
    [
        "    make([0], 'gloo', '', False, rank_offset)",
        "    make([0], 'gloo', rank_offset=0)",
        "    make(*[[0], 'gloo'])",
        "    make([0], 'gloo', **{'rank_offset': rank_offset})",
        "    make([r + rank_offset for r in range(4)], 'gloo')",
        "    ranks = [r + rank_offset for r in range(4)]\n    make(ranks, 'gloo')",
        "    lists = []\n    for r in range(4):\n        lists.append([r + rank_offset])\n    make(lists, 'gloo')",
        "    if rank_offset == 0:\n        make([0], 'gloo')",
        "    if not rank_offset:\n        return make([0], 'gloo')",
        "    if rank_offset:\n        raise ValueError\n    make([0], 'gloo')",
        "    return make([0], 'gloo') if rank_offset == 0 else None",
        "    other([0], 'gloo')",
        "    self.make([0], 'gloo')",
    ],
)
def test_what_looks_forgotten_and_is_not(body: str, found: Found) -> None:
    """By position, by another way into the ranks, where it is known to be 0, or where the function is not known."""
    assert found(MAKER + START + body) == []


def test_functions_without_the_parameter_have_nothing_to_pass_on(found: Found) -> None:
    """A launch that knows of no offset is right to give none."""
    assert found(MAKER + "def start(ranks):\n    make(ranks, 'gloo')\n") == []


def test_options_are_no_groups(found: Found) -> None:
    """A dataclass that has such a field holds settings."""
    options = "from dataclasses import dataclass\n@dataclass\nclass Options:\n    rank_offset: int = 0\n"
    assert found(options + "def f(rank_offset, base=None):\n    base = base or Options()\n") == []


def test_signatures_are_found_in_other_files(found: Found) -> None:
    """Through packages that hand names on, relative imports, and modules under another name."""
    files = {
        "pkg/__init__.py": "from .groups import *\n",
        "pkg/groups.py": MAKER,
        "pkg/a.py": "from pkg import make as mk\ndef f(rank_offset):\n    mk([0], 'gloo')\n",
        "pkg/b.py": "from .groups import make\ndef f(rank_offset):\n    make([0], 'gloo')\n",
        "pkg/c.py": "import pkg.groups as g\ndef f(rank_offset):\n    g.make([0], 'gloo')\n",
        "pkg/d.py": "from other.groups import make\ndef f(rank_offset):\n    make([0], 'gloo')\n",
    }
    assert found(files) == [("HC001", 3)] * 3


def test_methods_and_inherited_constructors(found: Found) -> None:
    """`self.method`, `super().__init__`, a subclass without a constructor, a class method."""
    code = """
class Base:
    def __init__(self, ranks, rank_offset=0): ...
    def make(self, ranks, rank_offset=0): ...

class Plain(Base): ...

class Own(Base):
    def __init__(self, ranks, rank_offset=0):
        super().__init__(ranks)
    def grow(self, rank_offset):
        self.make([0])
    @classmethod
    def create(cls, rank_offset):
        return cls([0])

def f(rank_offset):
    Plain([0])
"""
    assert [line for _, line in found(code)] == [10, 12, 15, 18]


def test_constructors_and_parameters_can_be_configured(found: Found) -> None:
    """A constructor outside the tree, and a parameter with another name."""
    code = "from lib import form\ndef f(cohort_start):\n    form([0])\n"
    options = {"parameters": ("cohort_start",), "constructors": (("form", ("cohort_start",)),)}
    assert found(code) == []
    assert found(code, **options) == [("HC001", 3)]


def test_signature_paths_are_read_and_not_linted(found: Found, tree: Callable) -> None:
    """What pre-commit does not name still has its signatures."""
    from simulator.lint.options import LintOptions
    from simulator.lint.run import lint

    root = tree(
        {
            "lib/groups.py": MAKER + "def g(rank_offset):\n    make([0], 'gloo')\n",
            "app.py": "from lib.groups import make\ndef f(rank_offset):\n    make([0], 'gloo')\n",
        }
    )
    assert lint(["app.py"], LintOptions(root=root)).violations == ()
    (one,) = lint(["app.py"], LintOptions(root=root, signature_paths=("lib",))).violations
    assert (one.path, one.code) == ("app.py", "HC001")
