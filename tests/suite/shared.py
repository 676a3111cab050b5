"""Class `global_concurrency`: ranks that act at once on what they share: groups in crossed orders, names, keys."""

from __future__ import annotations

from tests.suite.pick import Pick, pattern

SHARED = "global_concurrency"
STORE = "store = dist.distributed_c10d._get_default_store()"


@pattern(SHARED)
def two_groups_in_crossed_order(p: Pick) -> None:
    """Two ranks share two groups and use them in opposite order."""
    a, b = p.ranks(2)
    p.wrong(f"""
        first, second = dist.new_group([{a}, {b}]), dist.new_group([{a}, {b}])
        x = filled(rank + 1.0)
        if rank == {a}:
            dist.all_reduce(x, group=first)  # CULPRIT
            dist.all_reduce(x, group=second)
        elif rank == {b}:
            dist.all_reduce(x, group=second)  # CULPRIT
            dist.all_reduce(x, group=first)
        out.append(x.item())
    """, "deadlock", [a, b])  # fmt: skip
    p.right(f"""
        first, second = dist.new_group([{a}, {b}]), dist.new_group([{a}, {b}])
        x = filled(rank + 1.0)
        if rank in ({a}, {b}):
            for group in (first, second) if rank == {a} else (second, first)[::-1]:
                dist.all_reduce(x, group=group)
        out.append(x.item())
    """)


@pattern(SHARED, sizes=(4, 4))
def rows_and_columns(p: Pick) -> None:
    """In a grid, two ranks reduce along the column first, the others along the row."""
    p.wrong("""
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        row, column = rows[rank // 2], columns[rank % 2]
        x = filled(rank + 1.0)
        for group in (row, column) if rank in (0, 3) else (column, row):
            dist.all_reduce(x, group=group)  # CULPRIT
        out.append(x.item())
    """, "deadlock", p.all)  # fmt: skip
    p.right("""
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        row, column = rows[rank // 2], columns[rank % 2]
        x = filled(rank + 1.0)
        if rank in (0, 3):
            dist.all_reduce(x, group=row)
            dist.all_reduce(x, group=column)
        else:
            groups = {"row": row, "column": column}
            for name in ("row", "column"):
                dist.all_reduce(x, group=groups[name])
        out.append(x.item())
    """)


@pattern(SHARED, sizes=(3, 7))
def circle_of_pairs(p: Pick) -> None:
    """Each rank meets its right neighbour first: a circle of groups of two."""
    p.wrong("""
        pairs = [dist.new_group(sorted((left, (left + 1) % world_size))) for left in range(world_size)]
        x = filled(rank + 1.0)
        dist.all_reduce(x, group=pairs[rank])  # CULPRIT
        dist.all_reduce(x, group=pairs[rank - 1])
        out.append(x.item())
    """, "deadlock", p.all)  # fmt: skip
    p.right("""
        pairs = [dist.new_group(sorted((left, (left + 1) % world_size))) for left in range(world_size)]
        x = filled(rank + 1.0)
        for pair in sorted((rank, (rank - 1) % world_size)):
            dist.all_reduce(x, group=pairs[pair])
        out.append(x.item())
    """)


@pattern(SHARED, backends=("gloo",))
def crossed_but_asynchronous(p: Pick) -> None:
    """Two groups in opposite order, but both calls are under way before either rank waits."""
    a, b = p.ranks(2)
    p.right(f"""
        first, second = dist.new_group([{a}, {b}]), dist.new_group([{a}, {b}])
        x, y = filled(rank + 1.0), filled(rank + 2.0)
        if rank in ({a}, {b}):
            order = ((x, first), (y, second)) if rank == {a} else ((y, second), (x, first))
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]
            for work in works:
                work.wait()
        out.append((x.item(), y.item()))
    """)


@pattern(SHARED)
def collective_against_message(p: Pick) -> None:
    """One rank waits for a message that its peer sends after the collective."""
    a, b = p.ranks(2)
    p.wrong(f"""
        x, y = filled(1.0), filled(0.0)
        if rank == {b}:
            dist.recv(y, src={a})  # CULPRIT
            out.append(y.item())
        dist.all_reduce(x)  # CULPRIT
        out.append(x.item())
        if rank == {a}:
            dist.send(x, dst={b})
    """, "deadlock", [a, b], also=p.all)  # fmt: skip
    if p.backend == "nccl":
        return
    p.right(f"""
        x, y = filled(1.0), filled(0.0)
        if rank == {b}:
            work = dist.irecv(y, src={a})
        dist.all_reduce(x)
        if rank == {a}:
            dist.send(x, dst={b})
        if rank == {b}:
            work.wait()
        out.append((x.item(), y.item()))
    """)


@pattern(SHARED, backends=("gloo",))
def key_set_after_the_barrier(p: Pick) -> None:
    """A rank waits for a key that its owner sets behind the barrier."""
    a, b = p.ranks(2)
    p.wrong(f"""
        {STORE}
        if rank == {b}:
            store.wait(["settings"])  # CULPRIT
        dist.barrier()  # CULPRIT
        if rank == {a}:
            store.set("settings", "fast")
    """, "deadlock", [b], also=p.all)  # fmt: skip
    p.right(f"""
        {STORE}
        if rank == {a}:
            time.sleep(0.03)
            store.set("settings", "fast")
        if rank == {b}:
            store.wait(["settings"])
        dist.barrier()
        out.append(store.get("settings").decode())
    """)


@pattern(SHARED, backends=("gloo",))
def key_of_another_name(p: Pick) -> None:
    """The key is set under another name than it is asked for."""
    a, b = p.ranks(2)
    p.wrong(f"""
        {STORE}
        if rank == {a}:
            store.set("adress", "host-1")
        elif rank == {b}:
            out.append(store.get("address").decode())  # CULPRIT
    """, "deadlock", [b], also=[a])  # fmt: skip
    p.right(f"""
        {STORE}
        if rank == {a}:
            store.set("address/" + str({b}), "host-1")
        elif rank == {b}:
            out.append(store.get("address/" + str(rank)).decode())
    """)


@pattern(SHARED, backends=("gloo",))
def last_one_to_set_a_key(p: Pick) -> None:
    """Two ranks set one key, and others use what they find."""
    a, b = p.ranks(2)
    p.wrong(f"""
        {STORE}
        if rank in ({a}, {b}):
            store.set("leader", str(rank))  # CULPRIT
        dist.barrier()
        out.append(store.get("leader").decode())
    """, "race", [a, b], also=p.all, explore=True, real=False)  # fmt: skip
    p.right(f"""
        {STORE}
        if rank in ({a}, {b}):
            store.set(f"candidate/{{rank}}", "yes")
        dist.barrier()
        candidates = [peer for peer in range(world_size) if store.check([f"candidate/{{peer}}"])]
        out.append(min(candidates))
    """)


@pattern(SHARED, backends=("gloo",))
def looks_once_and_decides(p: Pick) -> None:
    """A rank looks whether a key is there yet, and by that takes part in a collective or not."""
    a = p.rank()
    p.wrong(f"""
        {STORE}
        if rank == {a}:
            store.set("request", "42")
        there = rank == {a}
        if rank != {a}:
            there = store.check(["request"])  # CULPRIT
        x = filled(1.0)
        if there:
            dist.all_reduce(x)  # CULPRIT
        out.append(x.item())
    """, "race deadlock", [], also=p.all, explore=True, real=False)  # fmt: skip
    p.right(f"""
        {STORE}
        if rank == {a}:
            store.set("request", "42")
        there = filled(float(store.check(["request"])))
        dist.all_reduce(there, op=dist.ReduceOp.MAX)
        x = filled(1.0)
        if there.item():
            dist.all_reduce(x)
        out.append(x.item())
    """)


@pattern(SHARED, sizes=(4, 8))
def own_list_in_the_same_place(p: Pick) -> None:
    """Each half makes only its own group, in world mode: two lists under one name."""
    half = p.n // 2
    low, high = p.all[:half], p.all[half:]
    p.wrong(f"""
        group = dist.new_group({low} if rank < {half} else {high})  # CULPRIT
        x = filled(rank + 1.0)
        dist.all_reduce(x, group=group)  # CULPRIT
        out.append(x.item())
    """, "mismatch race", low, also=p.all, real=False)  # fmt: skip
    p.right(f"""
        mine = {low} if rank < {half} else {high}
        group = dist.new_group(mine, use_local_synchronization=True)
        x = filled(rank + 1.0)
        dist.all_reduce(x, group=group)
        out.append(x.item())
    """)


@pattern(SHARED, sizes=(3, 8))
def groups_made_in_another_order(p: Pick) -> None:
    """One rank makes the same groups in another order."""
    first = p.ranks(2)
    victim = first[p.number(0, 1)]
    second = sorted({(rank + 1) % p.n for rank in first})
    p.wrong(f"""
        lists = [{first}, {second}]
        if rank == {victim}:
            lists.reverse()
        groups = dict()
        for ranks in lists:
            groups[tuple(ranks)] = dist.new_group(ranks)  # CULPRIT
        x = filled(rank + 1.0)
        for ranks in ({tuple(first)}, {tuple(second)}):
            if rank in ranks:
                dist.all_reduce(x, group=groups[ranks])  # CULPRIT
        out.append(x.item())
    """, "mismatch deadlock", [victim], also=p.all, real=False)  # fmt: skip
    p.right(f"""
        lists = [{first}, {second}]
        groups = dict()
        for ranks in lists:
            groups[tuple(ranks)] = dist.new_group(ranks if rank == {victim} else ranks[::-1])
        x = filled(rank + 1.0)
        for ranks in ({tuple(first)}, {tuple(second)}):
            if rank in ranks:
                dist.all_reduce(x, group=groups[ranks])
        out.append(x.item())
    """)


@pattern(SHARED)
def device_runs_behind_the_host(p: Pick) -> None:
    """A rank tells its peers of a collective that it is in already: right on NCCL, whose host goes on."""
    a = p.rank()
    body = f"""
        {STORE}
        {p.connect}
        x = filled(rank + 1.0)
        if rank == {a}:
            dist.all_reduce(x){{mark}}
            store.set("go", "1")
        else:
            store.wait(["go"]){{mark}}
            dist.all_reduce(x)
        out.append(x.item())
    """
    if p.backend == "gloo":
        p.wrong(body.format(mark="  # CULPRIT"), "deadlock", [a], also=p.all)
    else:
        p.right(body.format(mark=""))


@pattern(SHARED, backends=("nccl",), sizes=(2, 6))
def read_behind_the_others(p: Pick) -> None:
    """Calls on two groups go out in one order; a rank reads its result only at the end."""
    a = p.rank()
    p.right(f"""
        other = dist.new_group()
        x, y = filled(rank + 1.0), filled(rank + 2.0)
        dist.all_reduce(x)
        if rank == {a}:
            out.append(x.item())
        dist.all_reduce(y, group=other)
        out.append((x.item(), y.item()))
    """)


@pattern(SHARED, backends=("gloo",))
def counted_in_the_store(p: Pick) -> None:
    """Ranks count each other in the store, in any order, and each waits until all are there."""
    p.right(f"""
        {STORE}
        place = store.add("arrived", 1)
        while store.add("arrived", 0) < world_size:
            time.sleep(0.005)
        places = [None] * world_size
        dist.all_gather_object(places, place)
        out.append(sorted(places))
    """)


@pattern(SHARED, sizes=(3, 8))
def overlapping_groups_in_one_order(p: Pick) -> None:
    """Groups overlap in a chain; everybody uses them from left to right."""
    p.right("""
        chain = [dist.new_group([left, left + 1]) for left in range(world_size - 1)]
        x = filled(rank + 1.0)
        for left, group in enumerate(chain):
            if rank in (left, left + 1):
                dist.all_reduce(x, group=group)
        out.append(x.item())
    """)
