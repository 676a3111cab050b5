"""A schedule is data with a versioned text form, and what it cannot say is refused by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Schedule, UsageError
from simulator.exploration.schedule import Delay

TEXT = """\
hangcheck-schedule 1
program: hangcheck run --seed 0 --nproc-per-node 2 serve.py
delay: r1 2 set key 'plan' of TCPStore at node0:29500 @ serve.py:11
delay: r0/Thread-1 (work) 0 start @ -
"""
SCHEDULE = Schedule(
    (
        Delay("r1", 2, "set key 'plan' of TCPStore at node0:29500", "serve.py:11"),
        Delay("r0/Thread-1 (work)", 0, "start"),
    ),
    "hangcheck run --seed 0 --nproc-per-node 2 serve.py",
)


def test_the_text_form_is_an_interface() -> None:
    """Pinned, in both directions."""
    assert SCHEDULE.to_text() == TEXT
    assert Schedule.from_text(TEXT) == SCHEDULE


def test_empty_lines_and_comments_say_nothing() -> None:
    assert Schedule.from_text("# found on Monday\n\n" + TEXT.replace("delay: r1", "\n# late\n  delay: r1")) == SCHEDULE


WORDS = st.text(st.characters(codec="ascii", exclude_characters="#", categories=("L", "P", "S")), min_size=1)
TASKS = st.sampled_from(["r0", "r17", "r3~2", "r0/Thread-1 (a b)"])


@given(st.lists(st.tuples(TASKS, st.integers(0, 10**6), WORDS, st.sampled_from(["", "a.py:1"])), max_size=5), WORDS)
def test_any_schedule_survives_its_text(delays: list[tuple[str, int, str, str]], program: str) -> None:
    schedule = Schedule(tuple(Delay(*delay) for delay in delays), program)
    assert Schedule.from_text(schedule.to_text()) == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: a schedule begins with 'hangcheck-schedule 1'"),
        ("hangcheck-schedule 2\n", "line 1: a schedule begins with 'hangcheck-schedule 1'"),
        (TEXT + "late: r1\n", "line 5: 'late: r1': give 'program: COMMAND' or 'delay: TASK NUMBER OPERATION'"),
        (TEXT + "r1 2 set\n", "line 5: 'r1 2 set': give 'program: COMMAND' or 'delay: TASK NUMBER OPERATION'"),
        (TEXT + "program: x\n", "line 5: a schedule is for one program"),
        (TEXT + "delay: r1 set\n", "line 5: 'r1 set': give a task, the number of its operation, and what that is"),
        (TEXT + "delay: r1 2\n", "line 5: 'r1 2': give a task, the number of its operation, and what that is"),
        (TEXT + "delay:\n", "line 5: '': give a task, the number of its operation, and what that is"),
    ],
)
def test_what_is_no_schedule_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Schedule.from_text(text)
    assert str(caught.value) == message
