"""The text of a planned program: one branch for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from tests.parity.plan import Plan, Step, unwaited
from tests.parity.program import MARK, Program, module_text

HELPER = '''
def data(rank, event, count):
    """Small whole numbers that no other rank and no other event has; their products are exact."""
    return torch.arange(count, dtype=torch.float64) + 10 * rank + 100 * event


def room(count):
    """A place for what comes."""
    return torch.zeros(count, dtype=torch.float64)

'''


def program_of(plan: Plan, name: str = "") -> Program:
    """The program as text."""
    summary = f"Random program {plan.seed}: {plan.fault or 'correct'}."
    source = module_text(summary, HELPER + "\n" + _main_text(plan))
    return Program(name or f"random_{plan.seed}", source, plan.world_size)


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
    return [*steps, *(Step(pending.event, "wait") for pending in unwaited(steps))]


def _step_text(plan: Plan, rank: int, step: Step, steps: Sequence[Step]) -> list[str]:
    lines = _plain_text(plan, rank, step, steps)
    if (rank, step.event) not in plan.marks:
        return lines
    return [f"{line}  {MARK}" if "dist." in line or ".wait()" in line else line for line in lines]


def _plain_text(plan: Plan, rank: int, step: Step, steps: Sequence[Step]) -> list[str]:
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
    lists = f"{y} = [room({n}) for _ in range({size})]"
    here = rank == step.root
    tag, prefix = f", tag={step.tag}" if step.tag else "", "i" if step.is_async else ""
    text: dict[str, tuple[list[str], str]] = {
        "all_reduce": (mine, f"dist.all_reduce({x}, op=dist.ReduceOp.{step.reduction}, {group}{later})"),
        "broadcast": (mine, f"dist.broadcast({x}, src={step.root}, {group}{later})"),
        "reduce": (mine, f"dist.reduce({x}, dst={step.root}, op=dist.ReduceOp.{step.reduction}, {group}{later})"),
        "all_gather": ([*mine, lists], f"dist.all_gather({y}, {x}, {group}{later})"),
        "all_gather_into_tensor": (
            [*mine, f"{y} = room({n * size})"],
            f"dist.all_gather_into_tensor({y}, {x}, {group}{later})",
        ),
        "gather": (
            [*mine, lists if here else f"{y} = None"],
            f"dist.gather({x}, {y}, dst={step.root}, {group}{later})",
        ),
        "scatter": (
            [f"{x} = [data(rank, {e}, {n}) + i for i in range({size})]" if here else f"{x} = None",
             f"{y} = room({n})"],
            f"dist.scatter({y}, {x}, src={step.root}, {group}{later})",
        ),
        "reduce_scatter_tensor": (
            [*many, f"{y} = room({n})"],
            f"dist.reduce_scatter_tensor({y}, {x}, {group}{later})",
        ),
        "all_to_all_single": (
            [*many, f"{y} = room({n * size})"],
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
        "recv": ([f"{x} = room({n})"], f"dist.{prefix}recv({x}, {step.root}, {group}{tag})"),
        "exchange": (
            [*mine, f"{y} = room({n})"],
            f"dist.batch_isend_irecv([dist.P2POp(dist.isend, {x}, {step.root}, {group}), "
            f"dist.P2POp(dist.irecv, {y}, {step.root}, {group})])",
        ),
    }  # fmt: skip
    return text[step.op]
