"""Classes `message_race` (which message comes first) and `buffering_hazard` (a send that waits for its receive)."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

RACES = "message_race"
BUFFERS = "buffering_hazard"
GLOO = ("gloo",)
"""NCCL cannot receive from any source."""


@pattern(RACES, backends=GLOO, sizes=(3, 6))
def first_come_taken_for_the_first_rank(p: Pick) -> None:
    """A rank receives from any source and takes what comes for messages in rank order."""
    root = p.rank()
    p.wrong(f"""
        if rank == {root}:
            parts = [filled(0.0) for _ in range(world_size - 1)]
            for part in parts:
                dist.recv(part)  # CULPRIT
            out.append([part.item() for part in parts])
        else:
            dist.send(filled(float(rank)), dst={root})
        dist.barrier()
    """, "race", [root], also=p.all, explore=True, real=False)  # fmt: skip
    p.right(f"""
        if rank == {root}:
            parts = dict()
            for _ in range(world_size - 1):
                part = filled(0.0)
                source = dist.recv(part)
                parts[source] = part.item()
            out.append(sorted(parts.items()))
        else:
            dist.send(filled(float(rank)), dst={root})
        dist.barrier()
    """)


@pattern(RACES, backends=GLOO, sizes=(3, 6))
def any_source_takes_what_another_receive_needs(p: Pick) -> None:
    """A receive from any source, then one from a certain rank, whose message may be gone by then."""
    root = p.rank()
    a = p.rank(but=[root])
    b = p.rank(but=[root, a])
    p.wrong(f"""
        x, y = filled(0.0), filled(0.0)
        if rank == {root}:
            dist.recv(x)  # CULPRIT
            dist.recv(y, src={a})  # CULPRIT
        elif rank in ({a}, {b}):
            dist.send(filled(float(rank)), dst={root})
    """, "race deadlock", [root], also=p.all, explore=True, real=False)  # fmt: skip
    p.right(f"""
        x, y = filled(0.0), filled(0.0)
        if rank == {root}:
            dist.recv(y, src={a})
            dist.recv(x)
            out.append((x.item(), y.item()))
        elif rank in ({a}, {b}):
            dist.send(filled(float(rank)), dst={root})
    """)


@pattern(RACES, backends=GLOO, sizes=(3, 6))
def answers_to_whoever_asks(p: Pick) -> None:
    """A server answers requests in the order in which they come; every client gets its own answer."""
    p.right("""
        x = filled(0.0)
        if rank == 0:
            for _ in range(world_size - 1):
                client = dist.recv(x)
                dist.send(x * 2, dst=client)
        else:
            dist.send(filled(float(rank)), dst=0)
            dist.recv(x, src=0)
            out.append(x.item())
        dist.barrier()
    """)


@pattern(RACES, backends=GLOO, sizes=(3, 6))
def sum_of_whatever_comes(p: Pick) -> None:
    """The order of the messages does not matter, since they are added."""
    p.right("""
        total, x = filled(0.0), filled(0.0)
        if rank == 0:
            for _ in range(world_size - 1):
                dist.recv(x)
                total += x
        else:
            dist.send(filled(float(rank)), dst=0)
        dist.broadcast(total, src=0)
        out.append(total.item())
    """)


@pattern(RACES, backends=GLOO)
def tags_keep_messages_apart(p: Pick) -> None:
    """Messages cross each other; their tags tell which is which."""
    a, b = p.ranks(2)
    p.right(f"""
        data, note = filled(0.0, 3), filled(0.0, 3)
        if rank == {a}:
            works = [dist.isend(filled(1.0, 3), dst={b}, tag=1), dist.isend(filled(2.0, 3), dst={b}, tag=2)]
            for work in works:
                work.wait()
        elif rank == {b}:
            works = [dist.irecv(note, src={a}, tag=2), dist.irecv(data, src={a}, tag=1)]
            for work in works:
                work.wait()
            out.append((data.tolist(), note.tolist()))
        dist.barrier()
    """)


@pattern(BUFFERS)
def both_send_first(p: Pick) -> None:
    """Two ranks send to each other before they receive."""
    a, b = p.ranks(2)
    count = 1 if p.backend == "gloo" else 1 << 22
    p.wrong(f"""
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            x = filled(0.0, {count})
            dist.send(filled(1.0, {count}), dst=peer)  # CULPRIT
            dist.recv(x, src=peer)
            out.append(x[0].item())
    """, "deadlock", [a, b])  # fmt: skip
    p.right(f"""
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            x = filled(0.0, {count})
            if rank == {a}:
                dist.send(filled(1.0, {count}), dst=peer)
                dist.recv(x, src=peer)
            else:
                dist.recv(x, src=peer)
                dist.send(filled(2.0, {count}), dst=peer)
            out.append(x[0].item())
    """)


@pattern(BUFFERS)
def ring_of_sends(p: Pick) -> None:
    """Every rank sends to its right before it receives from its left."""
    count = 1 if p.backend == "gloo" else 1 << 22
    p.wrong(f"""
        x = filled(0.0, {count})
        dist.send(filled(float(rank), {count}), dst=(rank + 1) % world_size)  # CULPRIT
        dist.recv(x, src=(rank - 1) % world_size)
        out.append(x[0].item())
    """, "deadlock", p.all)  # fmt: skip
    p.right(f"""
        x = filled(0.0)
        if rank == {p.rank()}:
            dist.recv(x, src=(rank - 1) % world_size)
            dist.send(filled(float(rank)), dst=(rank + 1) % world_size)
        else:
            dist.send(filled(float(rank)), dst=(rank + 1) % world_size)
            dist.recv(x, src=(rank - 1) % world_size)
        out.append(x.item())
    """)


@pattern(BUFFERS)
def both_receive_first(p: Pick) -> None:
    """Two ranks receive from each other before they send."""
    a, b = p.ranks(2)
    p.wrong(f"""
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            x = filled(0.0)
            dist.recv(x, src=peer)  # CULPRIT
            out.append(x.item())
            dist.send(filled(1.0), dst=peer)
    """, "deadlock", [a, b])  # fmt: skip
    posted = f"""
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            x = filled(0.0)
            coming = dist.irecv(x, src=peer){{mark}}
            dist.send(filled(1.0), dst=peer){{mark}}
            coming.wait()
            out.append(x.item())
    """
    if p.backend == "gloo":
        p.right(posted.format(mark=""))
    else:  # the messages of a pair go out in one order, so the sends stand behind the receives
        p.wrong(posted.format(mark="  # CULPRIT"), "deadlock", [a, b])


@pattern(BUFFERS, backends=GLOO)
def send_across_a_collective(p: Pick) -> None:
    """One rank sends before a collective, its peer receives after it."""
    a, b = p.ranks(2)
    call = p.among(["dist.barrier()", "dist.all_reduce(y)"])
    p.wrong(f"""
        x, y = filled(0.0), filled(1.0)
        if rank == {a}:
            dist.send(y, dst={b})  # CULPRIT
        {call}
        if rank == {b}:
            dist.recv(x, src={a})
        out.append(x.item())
    """, "deadlock", [a], also=p.all)  # fmt: skip
    p.right(f"""
        x, y = filled(0.0), filled(1.0)
        if rank == {a}:
            work = dist.isend(filled(3.0), dst={b})
        {call}
        if rank == {b}:
            dist.recv(x, src={a})
        if rank == {a}:
            work.wait()
        out.append(x.item())
    """)


@pattern(BUFFERS, backends=GLOO)
def waits_for_its_send_at_once(p: Pick) -> None:
    """The sends are asynchronous, but waited for before the receives are posted."""
    p.wrong("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x = filled(0.0)
        work = dist.isend(filled(float(rank)), dst=right)  # CULPRIT
        work.wait()  # CULPRIT
        dist.recv(x, src=left)
        out.append(x.item())
    """, "deadlock", p.all)  # fmt: skip
    p.right("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x = filled(0.0)
        work = dist.isend(filled(float(rank)), dst=right)
        dist.recv(x, src=left)
        work.wait()
        out.append(x.item())
    """)


@pattern(BUFFERS)
def even_and_odd(p: Pick) -> None:
    """Even ranks send first, odd ones receive first; the last of an odd number is even too."""
    p.right("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x = filled(0.0)
        if rank % 2 == 0:
            dist.send(filled(float(rank)), dst=right)
            dist.recv(x, src=left)
        else:
            dist.recv(x, src=left)
            dist.send(filled(float(rank)), dst=right)
        out.append(x.item())
    """)


@pattern(BUFFERS)
def exchange_in_a_batch(p: Pick) -> None:
    """Each rank exchanges with both neighbours in one batch, in an order of its own."""
    p.right("""
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        x, y = filled(0.0, 2), filled(0.0, 2)
        ops = [
            dist.P2POp(dist.isend, filled(float(rank), 2), right),
            dist.P2POp(dist.irecv, x, left),
        ]
        if world_size > 2:
            ops += [dist.P2POp(dist.isend, filled(10.0 + rank, 2), left), dist.P2POp(dist.irecv, y, right)]
        for work in dist.batch_isend_irecv(ops[::-1] if rank % 2 else ops):
            work.wait()
        out.append((x.tolist(), y.tolist()))
    """)


@pattern(BUFFERS, backends=GLOO)
def large_messages_both_ways(p: Pick) -> None:
    """Large messages go both ways at once; the sends are asynchronous."""
    a, b = p.ranks(2)
    p.right(f"""
        if rank in ({a}, {b}):
            peer = {a + b} - rank
            x = filled(0.0, 1 << 18)
            work = dist.isend(filled(float(rank), 1 << 18), dst=peer)
            dist.recv(x, src=peer)
            work.wait()
            out.append(x[-1].item())
    """)


@pattern(BUFFERS)
def order_of_many_messages(p: Pick) -> None:
    """A rank sends several messages; they are received in the order in which they were sent."""
    a, b = p.ranks(2)
    count = p.number(2, 5)
    p.right(f"""
        if rank == {a}:
            for step in range({count}):
                dist.send(filled(float(step), step + 1), dst={b})
        elif rank == {b}:
            for step in range({count}):
                x = filled(-1.0, step + 1)
                dist.recv(x, src={a})
                out.append(x.tolist())
    """)
