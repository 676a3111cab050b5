"""From records to findings: pure functions over plain data, no torch, nothing printed.

findings    what a finding is
facts       small questions to the records (who is alive, what did it do instead)
contracts   new_group: the same calls, in one order, with one list each
modes       groups that some members create with local synchronisation and others without
rank_numbers  group ranks given where torch takes global ones
gpus        ranks of one nccl group on one simulated GPU
requests    tensors used before the end of a call, handles nobody waits for, threads on one group
elastic     elastic groups over Mooncake: data of fewer ranks than asked for, calls that waited
admission   joiners of such groups that nobody admits, or whose number another process has
roles       joiners whose groups reach too far or run alone; probes
stale_keys  groups made again under the keys of their first life
early_exits  collectives that some ranks left before all had come
name_skew   groups of one list of ranks that have several names
raised      what an exception asks for: a mend, simulated GPUs, or what is not modelled
deadlock    who waits for whom, when nothing could move any more; wait_graph (which wait explains the others) and
            partnerless (sends and receives that would fit each other) below it
symmetric   symmetric memory: buffers that do not fit together; buffer_order, signal_pads, rendezvous beside it
memory_waits  waits for words of shared memory
races       accesses to shared memory that nothing orders: racing_access (in words) and race_causes (why) beside it,
            happens_before (which ones) on vector_clocks, memory_history, cells and cell_past
injected    what faults that were put into the run have to do with the findings
diagnose    all of them, in the order in which a reader wants them
"""
