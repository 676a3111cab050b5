"""Operations, tasks and delays in words."""

from __future__ import annotations

from simulator.engine.operations import Operation, Target


def described(operation: Operation) -> str:
    """What an operation does and to what: the text by which a schedule knows it again."""
    return f"{operation.verb} {_target(operation.target)}".strip()


def _target(target: Target) -> str:
    kind, rest = target[0], target[1:]
    if kind == "key":
        return f"key {rest[1]!r} of {rest[0]}"
    if kind in ("message", "receive"):
        return _message(target)
    if kind == "segment":
        return f"segment {rest[1]!r} on node {rest[0]}"
    if kind == "group":
        ranks = f" {list(rest[1])}" if len(rest) > 1 and isinstance(rest[1], tuple) else ""
        return f"group{ranks} under {rest[0]}"
    if kind == "lock":
        return f"lock {rest[-1]}"
    if kind == "word":
        return f"word {rest[1]} of region {rest[0]}"
    return "" if kind in ("clock", "task") else f"on {rest[0]}"


def _message(target: Target) -> str:
    kind, _, receiver, sender, tag = target
    source = "any rank" if sender == -1 else f"rank {sender}"
    text = f"to rank {receiver}" if kind == "message" else f"from {source}"
    return f"{text} tag {tag}" if tag else text


def noun(operation: Operation) -> str:
    """An operation as something that somebody does: `set of key 'x'`."""
    verb, target = operation.verb, operation.target
    kind = target[0]
    if kind == "key":
        return f"{verb} of key {target[2]!r}"
    if kind in ("message", "receive"):
        return f"{verb} {_message(target)}"
    if kind == "segment":
        return f"{verb} of shared memory {target[2]!r}"
    if kind == "group":
        ranks = f" {list(target[2])}" if len(target) > 2 and isinstance(target[2], tuple) else ""
        return f"{'creation of' if verb == 'create' else verb + ' to'} group{ranks}"
    if kind in ("lock", "word"):
        return f"{verb} of a lock" if kind == "lock" else f"{verb} of a {_target(target)}"
    return {"clock": "look at the clock", "task": "start"}.get(str(kind), verb)


def who(task: str) -> str:
    """`r3` is rank 3, `r3/loader` a thread of it, `r3~2` the second process in its slot."""
    main, _, thread = task.partition("/")
    rank, _, again = main.removeprefix("r").partition("~")
    text = f"rank {rank}" + (f" (process {again})" if again else "")
    return f"{text}'s thread {thread!r}" if thread else text


def rank_of(task: str) -> int:
    """The rank that a task belongs to."""
    return int(task.partition("/")[0].removeprefix("r").partition("~")[0])
