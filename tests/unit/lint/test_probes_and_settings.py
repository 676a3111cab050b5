"""HC006: probes without a question for the nodes. HC007: settings read before the size of the group is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Found = Callable[..., list[tuple[str, int]]]
HEAD = "from topo import in_the_same_node_as\nfrom ctx import get_server_args\nclass G:\n"
INIT = HEAD + "    def __init__(self, group, nnodes=1):\n"


@pytest.mark.parametrize(
    "code",
    [
        INIT + "        self.same = all(in_the_same_node_as(group, source_rank=0))\n",
        INIT
        + "        if group.world_size > 1 and not all(in_the_same_node_as(group)):\n            self.off = True\n",
        INIT + "        self._probe(group)\n    def _probe(self, group):\n        return in_the_same_node_as(group)\n",
    ],
)
def test_probes_in_constructors(code: str, found: Found) -> None:
    assert [one for one, _ in found(code)] == ["HC006"]


@pytest.mark.parametrize(
    "code",
    [
        INIT + "        if group.world_size > 1 and nnodes > 1 and not all(in_the_same_node_as(group)):\n"
        "            self.off = True\n",
        INIT + "        if group.world_size > 1 and get_server_args().nnodes > 1:\n"
        "            self.same = in_the_same_node_as(group)\n",
        INIT + "        if nnodes == 1:\n            return\n        self.same = in_the_same_node_as(group)\n",
        INIT + "        many = nnodes > 1\n        if many:\n            self.same = in_the_same_node_as(group)\n",
        INIT + "        if nnodes > 1:\n            self._probe(group)\n"
        "    def _probe(self, group):\n        return in_the_same_node_as(group)\n",
        HEAD + "    def later(self, group):\n        return in_the_same_node_as(group)\n",
        "def f(group):\n    return in_the_same_node_as(group)\n",
    ],
)
def test_what_looks_unguarded_and_is_not(code: str, found: Found) -> None:
    """Guarded here or where the method is called, or not in a constructor."""
    assert found(code) == []


def test_probes_have_names_that_can_be_configured(found: Found) -> None:
    code = INIT + "        self.same = share_a_node(group)\n"
    assert found(code) == []
    assert found(code, probes=("share_a_node",)) == [("HC006", 5)]


@pytest.mark.parametrize(
    "condition",
    [
        "get_server_args().nnodes > 1 and group.world_size > 1",
        "get_server_args().nnodes == 1 or group.world_size == 1",
        "group.ok and get_server_args().nnodes > 1 and group.get_world_size() != 1",
    ],
)
@pytest.mark.parametrize("function", ["__init__", "_may_span"])
def test_settings_before_the_size(condition: str, function: str, found: Found) -> None:
    code = HEAD + f"    def {function}(self, group):\n        self.x = {condition}\n"
    assert found(code) == [("HC007", 5)]


def test_nested_ifs_and_variables(found: Found) -> None:
    """The read stands around the test, or is kept for it."""
    nested = (
        INIT
        + "        if get_server_args().nnodes > 1:\n            if group.world_size > 1:\n                self.a = 1\n"
    )
    kept = (
        INIT
        + "        n = get_server_args().nnodes\n        if group.world_size > 1 and n > 1:\n            self.a = 1\n"
    )
    assert found(nested) == [("HC007", 5)]
    assert found(kept) == [("HC007", 5)]


@pytest.mark.parametrize(
    "code",
    [
        INIT + "        self.x = group.world_size > 1 and get_server_args().nnodes > 1\n",
        INIT + "        self.x = group.world_size == 1 or get_server_args().nnodes == 1\n",
        INIT + "        self.x = get_server_args().backend == 'a' and group.world_size == 1\n",
        INIT + "        if group.world_size > 1:\n            n = get_server_args().nnodes\n"
        "            self.x = n > 1 and group.world_size > 1\n",
        INIT + "        self.x = get_server_args().nnodes\n",
        HEAD + "    def forward(self, group):\n        return get_server_args().fast and group.world_size > 1\n",
    ],
)
def test_what_looks_early_and_is_not(code: str, found: Found) -> None:
    """The size comes first, is not asked, or the code runs when the settings are long there."""
    assert found(code) == []
