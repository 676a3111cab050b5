"""Random small programs: correct ones, projected onto the ranks from one order of events, and ones with a single fault.

An event is a collective, a message, or an exchange of messages in a batch. Every rank does its part of the events in
their order, so the program is right by construction, whatever is asynchronous; a fault then changes one rank's part.
What a faulty program does is not said here: real gloo says it.

Not made: dtypes and reductions that differ between ranks, sizes other than one that is too large for its receivers, and
roots that differ in a group of more than two, because gloo has no defined outcome there: it mixes data silently, aborts
or hangs, by its tree and the number of elements. Nor is what a `reduce` leaves on other ranks recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.parity.program import Program, module_text

COLLECTIVES = (
    "all_reduce", "all_reduce", "broadcast", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter_tensor", "all_to_all_single", "barrier", "all_gather_object", "broadcast_object_list",
)  # fmt: skip
ALWAYS_SYNCHRONOUS = ("all_gather_object", "broadcast_object_list")
ROOTED = ("broadcast", "reduce", "gather", "scatter", "broadcast_object_list")
REDUCTIONS = ("SUM", "MAX", "MIN", "PRODUCT")
HELPER = '''
def data(rank, event, count):
    """Small whole numbers that no other rank and no other event has."""
    return torch.arange(count, dtype=torch.float32) + 10 * rank + 100 * event

'''


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does at one event.

    Attributes:
        event: number of the event; tensors and handles are named after it.
        op: a collective, `send`, `recv` or `exchange` (a batch of both).
        group: 0 is WORLD, 1 and 2 are sub-groups.
        root: global rank of the root, or of the peer of a message.
        is_async: issue only; the wait is a step of its own, `wait`.
    """

    event: int
    op: str
    group: int = 0
    root: int = 0
    count: int = 1
    tag: int = 0
    reduction: str = "SUM"
    is_async: bool = False


@dataclass(slots=True)
class Plan:
    """A program before it is text.

    Attributes:
        groups: lists of global ranks of the sub-groups 1, 2, ...
        local: the sub-groups are made by their members only, with local synchronisation.
        steps: what each rank does, in order.
        skips: (rank, sub-group) pairs: this rank makes no such `new_group` call.
        fault: what was done to one rank, or nothing.
    """

    seed: int
    world_size: int
    groups: list[list[int]]
    steps: list[list[Step]]
    local: bool = False
    skips: set[tuple[int, int]] = field(default_factory=set)
    fault: str = ""

    def members(self, group: int) -> Sequence[int]:
        return self.groups[group - 1] if group else range(self.world_size)

    @property
    def events(self) -> list[int]:
        """The numbers of all events."""
        return sorted({step.event for steps in self.steps for step in steps})

    def program(self) -> Program:
        """The program as text."""
        summary = f"Random program {self.seed}: {self.fault or 'correct'}."
        return Program(f"random_{self.seed}", module_text(summary, HELPER + "\n" + _main_text(self)), self.world_size)


# -- making ----------------------------------------------------------------------------------------------------------


def random_plan(seed: int) -> Plan:
    """The plan of one seed; about half of them have a fault."""
    rng = random.Random(seed)
    size = rng.choice((2, 3, 3, 4))
    groups = [sorted(rng.sample(range(size), rng.randint(2, size))) for _ in range(rng.randint(0, 2))]
    plan = Plan(seed, size, groups, [[] for _ in range(size)], local=rng.random() < 0.15)
    for event in range(rng.randint(2, 9)):
        _add_event(plan, event, rng)
    if rng.random() < 0.5:
        plan.fault = rng.choice(FAULTS)(plan, rng)
    return plan


def _add_event(plan: Plan, event: int, rng: random.Random) -> None:
    group = rng.randint(0, len(plan.groups))
    members = list(plan.members(group))
    if rng.random() < 0.35:
        a, b = rng.sample(members, 2)
        _add_message(plan, Step(event, "", group, 0, rng.randint(1, 3), rng.choice((0, 0, 5))), a, b, rng)
        return
    op = rng.choice(COLLECTIVES)
    step = Step(event, op, group, rng.choice(members), rng.randint(1, 3), reduction=rng.choice(REDUCTIONS))
    for rank in members:
        is_async = op not in ALWAYS_SYNCHRONOUS and rng.random() < 0.3
        _do(plan, rank, replace(step, is_async=is_async), rng)


def _add_message(plan: Plan, step: Step, a: int, b: int, rng: random.Random) -> None:
    if rng.random() < 0.3:
        for rank, peer in ((a, b), (b, a)):
            _do(plan, rank, replace(step, op="exchange", root=peer, is_async=rng.random() < 0.3, tag=0), rng)
        return
    for rank, peer, op in ((a, b, "send"), (b, a, "recv")):
        _do(plan, rank, replace(step, op=op, root=peer, is_async=rng.random() < 0.4), rng)


def _do(plan: Plan, rank: int, step: Step, rng: random.Random) -> None:
    """Add a step, after the waits that are due by chance."""
    mine = plan.steps[rank]
    for pending in _unwaited(mine):
        if rng.random() < 0.4:
            mine.append(Step(pending.event, "wait"))
    mine.append(step)


def _unwaited(steps: Sequence[Step]) -> list[Step]:
    waited = {step.event for step in steps if step.op == "wait"}
    return [step for step in steps if step.is_async and step.event not in waited]


def without(plan: Plan, event: int) -> Plan:
    """The plan without one event on any rank."""
    steps = [[step for step in mine if step.event != event] for mine in plan.steps]
    return replace(plan, steps=steps)


# -- faults ----------------------------------------------------------------------------------------------------------

Fault = Callable[[Plan, random.Random], str]


def _pick(plan: Plan, rng: random.Random, fits: Callable[[Step], bool]) -> tuple[int, int] | None:
    """A place (rank, index) whose step fits."""
    places = [(r, i) for r, steps in enumerate(plan.steps) for i, step in enumerate(steps) if fits(step)]
    return rng.choice(places) if places else None


def _drop(plan: Plan, rng: random.Random) -> str:
    place = _pick(plan, rng, lambda step: step.op != "wait")
    if place is None:
        return ""
    rank, index = place
    gone = plan.steps[rank][index]
    plan.steps[rank] = [step for step in plan.steps[rank] if step.event != gone.event]
    return f"rank {rank} leaves out event {gone.event} ({gone.op})"


def _swap(plan: Plan, rng: random.Random) -> str:
    """A wait never comes before its issue: the issue itself moves with it."""
    ranks = [rank for rank, steps in enumerate(plan.steps) if len({s.event for s in steps}) > 1]
    if not ranks:
        return ""
    rank = rng.choice(ranks)
    steps = plan.steps[rank]
    issues = [index for index, step in enumerate(steps) if step.op != "wait"]
    first = rng.randrange(len(issues) - 1)
    a, b = issues[first], issues[first + 1]
    moved, events = [steps[b], steps[a]], {steps[a].event, steps[b].event}
    between = [step for step in steps[a + 1 : b] if step.event not in events]
    early = [step for step in steps[a + 1 : b] if step.event in events]
    plan.steps[rank] = [*steps[:a], *moved, *early, *between, *steps[b + 1 :]]
    return f"rank {rank} swaps events {moved[1].event} ({moved[1].op}) and {moved[0].event} ({moved[0].op})"


def _change(
    fits: Callable[[Plan, int, Step], bool], changed: Callable[[Plan, int, Step, random.Random], Step]
) -> Fault:
    def fault(plan: Plan, rng: random.Random) -> str:
        places = [(r, i) for r, steps in enumerate(plan.steps) for i, s in enumerate(steps) if fits(plan, r, s)]
        if not places:
            return ""
        rank, index = rng.choice(places)
        old = plan.steps[rank][index]
        new = plan.steps[rank][index] = changed(plan, rank, old, rng)
        return f"rank {rank} does {_told(new)} instead of {_told(old)} at event {old.event}"

    return fault


def _told(step: Step) -> str:
    where = f" on group {step.group}"
    root = f" with {step.root}" if step.op in (*ROOTED, "send", "recv", "exchange") else ""
    return f"{step.op}({step.count}){root}{where}" + (f" tag {step.tag}" if step.tag else "")


def _other_root(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, root=rng.choice([r for r in plan.members(step.group) if r != step.root]))


def _other_peer(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, root=rng.choice([r for r in plan.members(step.group) if r not in (rank, step.root)]))


def _other_groups(plan: Plan, rank: int, step: Step) -> list[int]:
    """Groups that have this rank, the root, and as many members, since lists are made for their number."""
    size = len(plan.members(step.group))
    groups = range(len(plan.groups) + 1)
    fitting = [g for g in groups if {rank, step.root} <= set(plan.members(g)) and len(plan.members(g)) == size]
    return [g for g in fitting if g != step.group]


def _other_group(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, group=rng.choice(_other_groups(plan, rank, step)))


def _other_op(plan: Plan, rank: int, step: Step, rng: random.Random) -> Step:
    return replace(step, op="broadcast" if step.op != "broadcast" else "all_reduce")


def _shorten(plan: Plan, rng: random.Random) -> str:
    rank = rng.randrange(plan.world_size)
    steps = plan.steps[rank]
    if not steps:
        return ""
    cut = rng.randrange(len(steps))
    plan.steps[rank] = steps[:cut]
    return f"rank {rank} returns after {cut} of {len(steps)} steps"


def _repeat(plan: Plan, rng: random.Random) -> str:
    place = _pick(plan, rng, lambda step: step.op != "wait" and not step.is_async)
    if place is None:
        return ""
    rank, index = place
    step = plan.steps[rank][index]
    plan.steps[rank].insert(index, step)
    return f"rank {rank} does event {step.event} ({step.op}) twice"


def _skip_creation(plan: Plan, rng: random.Random) -> str:
    """The last group, so that no later one gets another name; a member does nothing on it either."""
    if not plan.groups or plan.local:
        return ""
    rank, last = rng.randrange(plan.world_size), len(plan.groups)
    plan.skips.add((rank, last))
    gone = {step.event for step in plan.steps[rank] if step.group == last and step.op != "wait"}
    plan.steps[rank] = [step for step in plan.steps[rank] if step.event not in gone]
    kind = "a member" if rank in plan.members(last) else "no member"
    return f"rank {rank}, {kind}, does not create group {last}"


def _is_message(plan: Plan, rank: int, step: Step) -> bool:
    return step.op in ("send", "recv")


def _gives(plan: Plan, rank: int, step: Step) -> bool:
    """Real gloo ends a receiver whose tensor is too small."""
    return step.op == "send" or (step.op == "broadcast" and step.root == rank)


FAULTS: tuple[Fault, ...] = (
    _drop,
    _drop,
    _swap,
    _swap,
    _swap,
    _shorten,
    _repeat,
    _skip_creation,
    _change(lambda plan, rank, step: step.op in ROOTED and len(plan.members(step.group)) == 2, _other_root),
    _change(lambda plan, rank, step: step.op in ("send", "recv", "exchange") and len(plan.members(step.group)) > 2,
            _other_peer),
    _change(lambda plan, rank, step: step.op != "wait" and bool(_other_groups(plan, rank, step)), _other_group),
    _change(lambda plan, rank, step: step.op in ("all_reduce", "broadcast", "barrier"), _other_op),
    _change(_is_message, lambda plan, rank, step, rng: replace(step, tag=step.tag + 1)),
    _change(_gives, lambda plan, rank, step, rng: replace(step, count=step.count + 1)),
)  # fmt: skip


# -- text ------------------------------------------------------------------------------------------------------------


def _main_text(plan: Plan) -> str:
    lines = ["def main(rank, world_size):", '    dist.init_process_group("gloo")', "    groups = [dist.group.WORLD]"]
    lines += [line for group in range(1, len(plan.groups) + 1) for line in _creation_text(plan, group)]
    lines.append("    out = []")
    for rank, steps in enumerate(plan.steps):
        body = [line for step in _with_last_waits(steps) for line in _step_text(plan, rank, step, steps)]
        lines.append(f"    {'el' if rank else ''}if rank == {rank}:")
        lines += [f"        {line}" for line in body or ["pass"]]
    return "\n".join([*lines, "    return out"])


def _creation_text(plan: Plan, group: int) -> list[str]:
    ranks = plan.groups[group - 1]
    absent = sorted(rank for rank, skipped in plan.skips if skipped == group)
    call = f"dist.new_group({ranks}{', use_local_synchronization=True' if plan.local else ''})"
    condition = (
        f" if rank in {ranks} else None" if plan.local else f" if rank not in {absent} else None" if absent else ""
    )
    return [f"    groups.append({call}{condition})"]


def _with_last_waits(steps: Sequence[Step]) -> list[Step]:
    return [*steps, *(Step(pending.event, "wait") for pending in _unwaited(steps))]


def _step_text(plan: Plan, rank: int, step: Step, steps: Sequence[Step]) -> list[str]:
    name = f"{step.event}"
    if step.op == "wait":
        issued = next(s for s in steps if s.event == step.event and s.op != "wait")
        waits = f"[w.wait() for w in w{name}]" if issued.op == "exchange" else f"w{name}.wait()"
        return [waits, *_keep(rank, issued)]
    before, call = _call_text(plan, rank, step)
    if not step.is_async:
        after = f"[w.wait() for w in {call}]" if step.op == "exchange" else call
        return [*before, after, *_keep(rank, step)]
    return [*before, f"w{name} = {call}"]


def _keep(rank: int, step: Step) -> list[str]:
    """Record what the event gave this rank."""
    result = {"all_gather": f"[t.tolist() for t in y{step.event}]", "gather": f"[t.tolist() for t in y{step.event}]"}
    if step.op in ("barrier", "send") or (step.op in ("reduce", "gather") and step.root != rank):
        return []
    if step.op in ("all_gather_object", "broadcast_object_list"):
        return [f"out.append(y{step.event})"]
    own = "x" if step.op in ("all_reduce", "broadcast", "reduce", "recv") else "y"
    return [f"out.append({result.get(step.op, f'{own}{step.event}.tolist()')})"]


def _call_text(plan: Plan, rank: int, step: Step) -> tuple[list[str], str]:
    """Lines that make the tensors, and the call."""
    e, n, size = step.event, step.count, len(plan.members(step.group))
    group, later = f"group=groups[{step.group}]", ", async_op=True" if step.is_async else ""
    x, y = f"x{e}", f"y{e}"
    mine = [f"{x} = data(rank, {e}, {n})"]
    many = [f"{x} = data(rank, {e}, {n * size})"]
    lists = f"{y} = [torch.zeros({n}) for _ in range({size})]"
    here = rank == step.root
    tag, prefix = f", tag={step.tag}" if step.tag else "", "i" if step.is_async else ""
    text: dict[str, tuple[list[str], str]] = {
        "all_reduce": (mine, f"dist.all_reduce({x}, op=dist.ReduceOp.{step.reduction}, {group}{later})"),
        "broadcast": (mine, f"dist.broadcast({x}, src={step.root}, {group}{later})"),
        "reduce": (mine, f"dist.reduce({x}, dst={step.root}, op=dist.ReduceOp.{step.reduction}, {group}{later})"),
        "all_gather": ([*mine, lists], f"dist.all_gather({y}, {x}, {group}{later})"),
        "all_gather_into_tensor": (
            [*mine, f"{y} = torch.zeros({n * size})"],
            f"dist.all_gather_into_tensor({y}, {x}, {group}{later})",
        ),
        "gather": (
            [*mine, lists if here else f"{y} = None"],
            f"dist.gather({x}, {y}, dst={step.root}, {group}{later})",
        ),
        "scatter": (
            [f"{x} = [data(rank, {e}, {n}) + i for i in range({size})]" if here else f"{x} = None",
             f"{y} = torch.zeros({n})"],
            f"dist.scatter({y}, {x}, src={step.root}, {group}{later})",
        ),
        "reduce_scatter_tensor": (
            [*many, f"{y} = torch.zeros({n})"],
            f"dist.reduce_scatter_tensor({y}, {x}, {group}{later})",
        ),
        "all_to_all_single": (
            [*many, f"{y} = torch.zeros({n * size})"],
            f"dist.all_to_all_single({y}, {x}, {group}{later})",
        ),
        "barrier": ([], f"dist.barrier({group}{later})"),
        "all_gather_object": (
            [f"{y} = [None] * {size}"],
            f'dist.all_gather_object({y}, ("from", rank, {e}), {group})',
        ),
        "broadcast_object_list": (
            [f'{y} = [("from", rank, {e})]'],
            f"dist.broadcast_object_list({y}, src={step.root}, {group})",
        ),
        "send": (mine, f"dist.{prefix}send({x}, {step.root}, {group}{tag})"),
        "recv": ([f"{x} = torch.zeros({n})"], f"dist.{prefix}recv({x}, {step.root}, {group}{tag})"),
        "exchange": (
            [*mine, f"{y} = torch.zeros({n})"],
            f"dist.batch_isend_irecv([dist.P2POp(dist.isend, {x}, {step.root}, {group}), "
            f"dist.P2POp(dist.irecv, {y}, {step.root}, {group})])",
        ),
    }  # fmt: skip
    return text[step.op]
