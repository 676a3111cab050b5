"""Corpus: not all ranks take part, collectives and messages that do not fit, orders across groups, probes."""

from __future__ import annotations

import os
import threading
import time

import torch
import torch.distributed as dist

from tests.suite.corpus import filled, known


@known("B18", "deepspeedai/DeepSpeed#2993", 2, "deadlock mismatch", (0, 1))
def saves_on_rank_0(rank, world_size):
    """Only rank 0 saves, and saving has a barrier in it."""
    dist.init_process_group("gloo")
    if rank == 0:
        dist.barrier()  # CULPRIT
    x = filled(1.0)
    dist.all_reduce(x)  # CULPRIT
    return x.item()


@known("B19", "huggingface/accelerate#2690", 2, "deadlock mismatch", (0, 1))
def barrier_in_the_else_branch(rank, world_size):
    """Rank 0 saves; all others wait for it in a barrier that it does not enter."""
    dist.init_process_group("gloo")
    if rank != 0:
        dist.barrier()  # CULPRIT
    x = filled(1.0)
    dist.all_reduce(x)  # CULPRIT
    return x.item()


@known("B22", "deepspeedai/DeepSpeed#8262", 2, "deadlock mismatch", (0, 1))
def leaves_the_decode_loop(rank, world_size):
    """A rank that sees its last token leaves the loop; the others still gather."""
    dist.init_process_group("gloo")
    for step in range(2 if rank == 0 else 5):
        tokens = [filled(0.0, 2), filled(0.0, 2)]
        dist.all_gather(tokens, filled(float(step), 2))  # CULPRIT
    x = filled(1.0, 3)
    dist.all_reduce(x)  # CULPRIT
    return x.tolist()


@known("B24", "vllm-project/vllm#43547", 2, "mismatch deadlock", (0, 1))
def returns_without_tokens(rank, world_size):
    """A step without tokens skips the count, and meets it with the vote."""
    dist.init_process_group("gloo")
    for step in range(3):
        tokens = 0 if rank == 0 and step == 1 else 4
        if tokens:
            counts = filled(0, 2, torch.int32)
            counts[rank] = tokens
            dist.all_reduce(counts)  # CULPRIT
        unfinished = filled(1, 1, torch.int32)
        dist.all_reduce(unfinished)  # CULPRIT
    return "done"


@known("B26", "sgl-project/sglang#30760", 4, "mismatch deadlock", (0,))
def only_ranks_with_a_request(rank, world_size):
    """The rank that has an ongoing prefetch reduces; the others go on to the broadcast."""
    dist.init_process_group("gloo")
    ongoing = {"request 7"} if rank == 0 else set()
    if ongoing:
        dist.all_reduce(filled(1.0), op=dist.ReduceOp.MAX)  # CULPRIT
    count = filled(0, 1, torch.int64)
    dist.broadcast(count, src=0)  # CULPRIT
    return "next round"


@known("B27", "sgl-project/sglang#32454", 2, "race mismatch deadlock", (), also=(0, 1), explore=True)
def time_limit_on_local_clocks(rank, world_size):
    """Each rank asks its own clock whether the time is up."""
    dist.init_process_group("gloo")
    began = time.monotonic() - (0.010 if rank == 0 else 0.030)
    expired = time.monotonic() - began > 0.020  # CULPRIT
    if expired:
        dist.all_reduce(filled(1.0, 8))  # CULPRIT
    else:
        dist.all_gather([filled(0.0, 2), filled(0.0, 2)], filled(1.0, 2))  # CULPRIT
    dist.barrier()
    return "done"


@known("B29", "sgl-project/sglang#25404", 3, "exception", (1,))
def idle_rank_raises(rank, world_size):
    """A field is missing on the idle rank."""
    dist.init_process_group("gloo")
    field = None if rank == 1 else [1]
    count = len(list(field))  # CULPRIT
    counts = torch.empty(world_size)
    dist.all_gather_into_tensor(counts, filled(float(count)))
    return counts.tolist()


@known("B30", "pytorch/torchtitan#1342", 2, "exception deadlock mismatch", (1,), also=(0,))
def collective_clean_up(rank, world_size):
    """The clean-up of a failed rank waits in a barrier, while its peers are in another collective."""
    dist.init_process_group("gloo")
    try:
        if rank == 1:
            raise ValueError("a bad sample")  # CULPRIT
        dist.all_reduce(filled(1.0))
        return "fine"
    finally:
        dist.barrier()  # CULPRIT


@known("B32", "modelscope/ms-swift#9551", 2, "mismatch", (0, 1), silent=True)
def float64_from_numpy(rank, world_size):
    """A metric is a Python float here and a numpy one there."""
    import numpy

    dist.init_process_group("gloo")
    x = torch.tensor([3.0, 4.0]) if rank == 0 else torch.tensor(numpy.array([3.0, 4.0]))
    dist.all_reduce(x)  # CULPRIT
    return x.tolist()


@known("B34", "pytorch/pytorch#117486", 2, "mismatch", (0, 1), silent=True)
def splits_that_are_no_transposes(rank, world_size):
    """One rank expects other numbers of rows than its peer sends."""
    dist.init_process_group("gloo")
    x, y = filled(float(rank), 4), filled(-1.0, 4)
    dist.all_to_all_single(y, x, [2, 2] if rank == 0 else [3, 1], [2, 2])  # CULPRIT
    return y.tolist()


@known("B36", "NVIDIA/Megatron-LM#6616", 4, "deadlock", (0, 1, 2, 3))
def parameter_groups_in_another_order(rank, world_size):
    """Stages reduce experts and dense parameters in another order, over overlapping groups."""
    dist.init_process_group("gloo")
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    for group in [row, column] if rank in (0, 3) else [column, row]:
        dist.all_reduce(filled(1.0, 2), group=group)  # CULPRIT
    return "done"


@known("B37", "sgl-project/sglang#9154", 2, "race mismatch", (), also=(0, 1), explore=True, real=False)
def two_threads_on_one_group(rank, world_size):
    """Input and prefetch threads share a group; their order differs between ranks."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1])

    def work(count, after_s):
        time.sleep(after_s)
        dist.all_reduce(filled(float(count), count), group=group)  # CULPRIT

    threads = [
        threading.Thread(target=work, args=(3, 0.0 if rank == 0 else 0.6)),
        threading.Thread(target=work, args=(5, 0.3)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "done"


@known("B39", "pytorch/pytorch#172668", 2, "deadlock", (0, 1))
def both_send_first(rank, world_size):
    """Two blocking sends, before the receives."""
    dist.init_process_group("gloo")
    dist.send(filled(float(rank)), dst=1 - rank)  # CULPRIT
    x = filled(0.0)
    dist.recv(x, src=1 - rank)
    return x.item()


@known("B40s", "NVIDIA/Megatron-LM#1450", 2, "mismatch race", (0, 1), silent=True)
def messages_in_each_others_place(rank, world_size):
    """Two messages of one size, posted in another order by the receiver."""
    dist.init_process_group("gloo")
    if rank == 0:
        works = [dist.isend(filled(50.0, 3), dst=1), dist.isend(filled(30.0, 3), dst=1)]  # CULPRIT
    else:
        activation, gradient = filled(-1.0, 3), filled(-1.0, 3)
        works = [dist.irecv(activation, src=0), dist.irecv(gradient, src=0)]  # CULPRIT
    for work in works:
        work.wait()
    return "sent: gradient, activation" if rank == 0 else (activation.tolist(), gradient.tolist())


@known("B42", "NVIDIA/nccl#2130", 2, "deadlock", (0, 1))
def receive_without_a_sender_in_a_batch(rank, world_size):
    """A batch holds one receive too many."""
    dist.init_process_group("gloo")
    x = filled(-1.0)
    if rank == 0:
        ops = [dist.P2POp(dist.isend, filled(7.0), 1), dist.P2POp(dist.irecv, x, 1)]
    else:
        ops = [dist.P2POp(dist.irecv, x, 0)]
    for work in dist.batch_isend_irecv(ops):  # CULPRIT
        work.wait()  # CULPRIT
    dist.barrier()
    return x.item()


@known("B48", "vllm-project/vllm#46716", 2, "deadlock livelock", (0, 1))
def same_host_by_a_name_that_is_always_equal(rank, world_size):
    """The identity of the host is broadcast, so it agrees everywhere; each rank then waits in its own memory."""
    from multiprocessing import shared_memory

    dist.init_process_group("gloo")
    job = ["job42" if rank == 0 else None]
    dist.broadcast_object_list(job, src=0)
    names = [None] * world_size
    dist.all_gather_object(names, f"{job[0]}_0_1")
    name = f"host{rank}_{os.getppid()}_{names[0]}"
    segment = shared_memory.SharedMemory(name=name, create=True, size=2)
    try:
        segment.buf[rank] = 1
        while len(set(names)) == 1 and segment.buf[1 - rank] == 0:
            time.sleep(0.01)  # CULPRIT
    finally:
        segment.close()
        segment.unlink()
    return "done"


@known("B50", "vllm-project/vllm#51986", 4, "deadlock mismatch", (3,))
def failed_probe_leaves_without_a_vote(rank, world_size):
    """A probe fails on one rank, which then leaves out the vote."""
    dist.init_process_group("gloo")
    try:
        if rank == 3:
            raise RuntimeError("no fabric here")
        vote = filled(1, 1, torch.int32)
        dist.all_reduce(vote, op=dist.ReduceOp.MIN)  # CULPRIT
    except RuntimeError:
        pass
    count = filled(0, 1, torch.int64)
    dist.broadcast(count, src=0)  # CULPRIT
    return "next"
