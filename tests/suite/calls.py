"""Class `call_matching`: which calls the ranks make, and in which order."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

CALLS = "call_matching"
MOVED = "deadlock mismatch"
"""A call left out, added or moved, with a later call on the same group: both words are right (see label.py)."""


@pattern(CALLS)
def left_out_at_the_end(p: Pick) -> None:
    """One rank does not enter the last collective."""
    victim, c = p.rank(), p.collective()
    p.wrong(f"""
        {c.setup}
        if rank != {victim}:
            {c.call}  # CULPRIT
        out.append({c.value})
    """, "deadlock", p.blamed(victim))  # fmt: skip
    p.right(f"""
        {c.setup}
        if rank != {victim}:
            {c.call}
        else:
            {c.call}
        out.append({c.value})
    """)


@pattern(CALLS)
def left_out_with_more_to_come(p: Pick) -> None:
    """One rank leaves out a collective and goes on to the next one."""
    victim, a = p.rank(), p.collective("a")
    b = p.collective("b", but=[a.op])
    p.wrong(f"""
        {a.setup}
        {b.setup}
        if rank != {victim}:
            {a.call}  # CULPRIT
        {b.call}  # CULPRIT
        out.append({b.value})
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        {a.setup}
        {b.setup}
        if rank == {victim}:
            time.sleep(0.05)
        {a.call}
        {b.call}
        out.append({b.value})
    """)


@pattern(CALLS)
def one_round_more(p: Pick) -> None:
    """One rank goes round its loop once more than the others."""
    victim, rounds = p.rank(), p.number(1, 4)
    p.wrong(f"""
        rounds = {rounds + 1} if rank == {victim} else {rounds}
        x = filled(1.0)
        for _ in range(rounds):
            dist.all_reduce(x)  # CULPRIT
        out.append(x.tolist())
    """, "deadlock", p.blamed(victim))  # fmt: skip
    p.right(f"""
        x = filled(1.0)
        if rank == {victim}:
            for _ in range({rounds}):
                dist.all_reduce(x)
        else:
            left = {rounds}
            while left:
                left -= 1
                dist.all_reduce(x)
        out.append(x.tolist())
    """)


@pattern(CALLS)
def stops_before_the_others(p: Pick) -> None:
    """One rank sees its last token and leaves the loop; the others go on."""
    victim, most = p.rank(), p.number(3, 5)
    p.wrong(f"""
        last = {most - 1 if most > 3 else 1} if rank == {victim} else {most}
        for step in range(last):
            tokens = [filled(0.0, 2) for _ in range(world_size)]
            dist.all_gather(tokens, filled(float(step), 2))  # CULPRIT
        x = filled(1.0, 3)
        dist.all_reduce(x)  # CULPRIT
        out.append(x.tolist())
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        last = 1 if rank == {victim} else {most}
        step = 0
        while True:
            tokens = [filled(0.0, 2) for _ in range(world_size)]
            dist.all_gather(tokens, filled(float(step), 2))
            step += 1
            going_on = filled(float(step < last))
            dist.all_reduce(going_on)
            if going_on.item() == 0:
                break
        out.append(step)
    """)


@pattern(CALLS)
def swapped(p: Pick) -> None:
    """One rank enters two collectives in the other order."""
    victim, a = p.rank(), p.collective("a")
    b = p.collective("b", but=[a.op])
    p.wrong(f"""
        {a.setup}
        {b.setup}
        if rank == {victim}:
            {b.call}  # CULPRIT
            {a.call}
        else:
            {a.call}  # CULPRIT
            {b.call}
        out.append({a.value})
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        {a.setup}
        {b.setup}
        if rank == {victim}:
            {a.call}
            {b.call}
        else:
            {a.call}
            out.append({a.value})
            {b.call}
        out.append({b.value})
    """)


@pattern(CALLS)
def another_operation(p: Pick) -> None:
    """One rank takes another branch, with another collective in it."""
    victim, a = p.rank(), p.collective("a")
    b = p.collective("b", but=[a.op])
    p.wrong(f"""
        {a.setup}
        {b.setup}
        if rank == {victim}:
            {b.call}  # CULPRIT
        else:
            {a.call}  # CULPRIT
    """, "mismatch", p.blamed(victim))  # fmt: skip


@pattern(CALLS)
def barrier_in_one_branch(p: Pick) -> None:
    """Only one rank saves, and there is a barrier in it."""
    victim = p.rank()
    p.wrong(f"""
        if rank == {victim}:
            out.append("saved")
            dist.barrier()  # CULPRIT
        x = filled(1.0)
        dist.all_reduce(x)  # CULPRIT
        out.append(x.item())
    """, MOVED, p.blamed(victim))  # fmt: skip
    p.right(f"""
        if rank != {victim}:
            dist.barrier()
        time.sleep(0.02)
        if rank == {victim}:
            out.append("saved")
            dist.barrier()
        x = filled(1.0)
        dist.all_reduce(x)
        out.append(x.item())
    """)


@pattern(CALLS, sizes=(4, 8))
def forgotten_group(p: Pick) -> None:
    """One rank leaves out the group, and its call goes to WORLD."""
    half = p.n // 2
    low, high = p.all[:half], p.all[half:]
    victim = p.rank()
    mine = low if victim in low else high
    p.wrong(f"""
        groups = [dist.new_group(ranks) for ranks in ({low}, {high})]
        group = groups[int(rank >= {half})]
        x = filled(rank + 1.0)
        if rank == {victim}:
            dist.all_reduce(x)  # CULPRIT
        else:
            dist.all_reduce(x, group=group)
        out.append(x.item())
    """, "deadlock", [victim], also=mine)  # fmt: skip
    p.right(f"""
        groups = [dist.new_group(ranks) for ranks in ({low}, {high})]
        group = groups[int(rank >= {half})]
        x = filled(rank + 1.0)
        if rank == {victim}:
            time.sleep(0.02)
        dist.all_reduce(x, group=group)
        if rank in {low}:
            dist.all_reduce(x, group=group)
        dist.all_reduce(x)
        out.append(x.item())
    """)


@pattern(CALLS)
def receive_without_send(p: Pick) -> None:
    """A rank receives what nobody sends."""
    a, b = p.ranks(2)
    if p.number(0, 1):
        a, b = b, a
    p.wrong(f"""
        if rank == {b}:
            x = filled(0.0)
            dist.recv(x, src={a})  # CULPRIT
            out.append(x.item())
    """, "deadlock", [a, b])  # fmt: skip
    p.right(f"""
        if rank == {b}:
            x = filled(0.0)
            dist.recv(x, src={a})
            out.append(x.item())
        if rank == {a}:
            time.sleep(0.03)
            dist.send(filled(7.0), dst={b})
    """)


@pattern(CALLS, backends=("gloo",))
def send_without_receive(p: Pick) -> None:
    """A rank sends what nobody receives."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank == {a}:
            dist.send(filled(7.0), dst={b})  # CULPRIT
    """, "deadlock", [a, b])  # fmt: skip
    p.right(f"""
        x = filled(0.0)
        if rank == {a}:
            dist.send(filled(7.0), dst={b})
            dist.recv(x, src={b})
        elif rank == {b}:
            dist.recv(x, src={a})
            dist.send(x + 1, dst={a})
        out.append(x.item())
    """)


@pattern(CALLS, sizes=(3, 8))
def wrong_peer(p: Pick) -> None:
    """A rank sends to the wrong peer; the right one waits."""
    a, b, c = p.ranks(3)
    p.wrong(f"""
        if rank == {a}:
            dist.send(filled(7.0), dst={c})  # CULPRIT
        elif rank == {b}:
            x = filled(0.0)
            dist.recv(x, src={a})
            out.append(x.item())
    """, "deadlock", [a], also=[b, c])  # fmt: skip
    p.right(f"""
        x = filled(0.0)
        if rank == {a}:
            dist.send(filled(7.0), dst={b})
        elif rank == {b}:
            dist.recv(x, src={a})
            dist.send(x, dst={c})
        elif rank == {c}:
            dist.recv(x, src={b})
        out.append(x.item())
    """)


@pattern(CALLS)
def batch_with_one_message_too_many(p: Pick) -> None:
    """A batch holds a receive whose sender has no such send."""
    a, b = p.ranks(2)
    p.wrong(f"""
        {p.connect}
        x = filled(0.0)
        if rank == {a}:
            ops = [dist.P2POp(dist.isend, filled(1.0), {b}), dist.P2POp(dist.irecv, x, {b})]
        elif rank == {b}:
            ops = [dist.P2POp(dist.irecv, x, {a})]
        else:
            return out
        for work in dist.batch_isend_irecv(ops):  # CULPRIT
            work.wait()  # CULPRIT
        out.append(x.item())
    """, "deadlock", [a, b])  # fmt: skip
    p.right(f"""
        {p.connect}
        x = filled(0.0)
        if rank == {a}:
            ops = [dist.P2POp(dist.isend, filled(1.0), {b}), dist.P2POp(dist.irecv, x, {b})]
        elif rank == {b}:
            ops = [dist.P2POp(dist.irecv, x, {a}), dist.P2POp(dist.isend, filled(2.0), {a})]
        else:
            return out
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        out.append(x.item())
    """, end=False)  # fmt: skip


@pattern(CALLS)
def exception_on_one_rank(p: Pick) -> None:
    """One rank raises before a collective, and the others wait in it."""
    victim, c = p.rank(), p.collective()
    what = p.among(["int('')", "[][rank]", "list(None)", "{}['field']"])
    p.wrong(f"""
        {c.setup}
        if rank == {victim}:
            out.append({what})  # CULPRIT
        {c.call}
        out.append({c.value})
    """, "exception", [victim])  # fmt: skip
    p.right(f"""
        {c.setup}
        good = filled(1.0)
        if rank == {victim}:
            try:
                out.append({what})
            except (ValueError, IndexError, TypeError, KeyError):
                good.zero_()
        dist.all_reduce(good, op=dist.ReduceOp.MIN)
        if good.item():
            {c.call}
        out.append(good.item())
    """)


@pattern(CALLS)
def member_does_not_create_its_group(p: Pick) -> None:
    """A member leaves out the new_group call of its group."""
    members = p.ranks(max(2, p.n - 1))
    victim = members[p.number(0, len(members) - 1)]
    blamed = [victim] if len(members) > 2 else members
    p.wrong(f"""
        if rank != {victim}:
            group = dist.new_group({members})  # CULPRIT
            if rank in {members}:
                x = filled(1.0)
                dist.all_reduce(x, group=group)  # CULPRIT
                out.append(x.item())
    """, "deadlock", [victim], also=blamed)  # fmt: skip
    p.right(f"""
        group = dist.new_group({members})
        if rank in {members}:
            x = filled(1.0)
            dist.all_reduce(x, group=group)
            out.append(x.item())
    """)


@pattern(CALLS, sizes=(3, 8))
def skipped_creation_breaks_a_later_group(p: Pick) -> None:
    """A rank leaves out a group that it is not in; the next group then has another name there."""
    members = p.ranks(2)
    victim = p.rank(but=members)
    p.wrong(f"""
        if rank != {victim}:
            dist.new_group({members})  # CULPRIT
        everybody = dist.new_group()  # CULPRIT
        x = filled(1.0)
        dist.all_reduce(x, group=everybody)  # CULPRIT
        out.append(x.item())
    """, "deadlock", [victim])  # fmt: skip
    p.right(f"""
        if rank in {members}:
            pair = dist.new_group({members})
            dist.barrier(group=pair)
        else:
            dist.new_group({members})
        everybody = dist.new_group()
        x = filled(1.0)
        dist.all_reduce(x, group=everybody)
        out.append(x.item())
    """)
