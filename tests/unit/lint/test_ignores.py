"""Comments that ignore: with a code and a reason, and only while there is something to ignore."""

from __future__ import annotations

from collections.abc import Callable

Found = Callable[..., list[tuple[str, int]]]
HEAD = "import torch.distributed as dist\ndef f(rank):\n    if rank:\n"


def test_a_comment_with_code_and_reason_silences(found: Found) -> None:
    """On any line of the call, or alone above it."""
    assert found(HEAD + "        dist.new_group([0])  # hangcheck: ignore[HC003] the rest has ended\n") == []
    assert found(HEAD + "        dist.new_group(\n            [0],\n        )  # hangcheck: ignore[HC003] why\n") == []
    assert found(
        HEAD + "        # hangcheck: ignore[HC003, HC001] why\n        # more\n        dist.new_group([0])\n"
    ) == [("HC902", 4)]


def test_without_a_reason_it_silences_nothing(found: Found) -> None:
    """And is a violation itself."""
    for comment in (
        "# hangcheck: ignore[HC003]",
        "# hangcheck: ignore",
        "# hangcheck: ignore because",
        "# hangcheck: ignore[]",
    ):
        assert found(HEAD + f"        dist.new_group([0])  {comment}\n") == [("HC003", 4), ("HC901", 4)], comment


def test_unused_and_unknown_codes(violations: Callable[..., list]) -> None:
    """A comment that has outlived what it spoke for; one with a typing error."""
    (unused,) = violations("x = 1  # hangcheck: ignore[HC003] once\n")
    assert (unused.code, unused.message) == ("HC902", "nothing here breaks HC003")
    (unknown,) = violations("x = 1  # hangcheck: ignore[HC999] once\n")
    assert unknown.message == "there is no rule HC999"


def test_rules_that_are_not_looked_for_are_not_unused(found: Found) -> None:
    assert found("x = 1  # hangcheck: ignore[HC003] once\n", ignore=("HC003",)) == []


def test_texts_are_no_comments(found: Found) -> None:
    code = HEAD + "        dist.new_group([0], group_desc='# hangcheck: ignore[HC003] no')\n"
    assert found(code) == [("HC003", 4)]
