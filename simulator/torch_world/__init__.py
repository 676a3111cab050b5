"""The only owner of torch's and Python's process-wide state while a simulation runs.

install          puts all of it in place, and takes it away
alone            one simulation at a time in a process
affinity         a large run keeps to one CPU
patches          set attributes, follow those who imported them by name, and set everything back
per_rank         replace a function by one that asks which rank calls
simulation       one run: scheduler, contexts, records
context          what one simulated process has of its own
switching        which process-wide state is exchanged when another rank gets the baton
modules          instances of modules that belong to one rank; holders (what shared modules took from them) and
                 module_finder (how they are imported) belong to it
registrations    operators that such modules register with torch
zeromq           sockets of pyzmq between ranks
half_imports     modules whose import a run has cut short
clock            time.*, with polling for loops that look again and again
process          os and sys; hosts (names, addresses) and signals beside it
selecting        selectors, and so asyncio
threads          threads of a rank; locks and futures beside it
randomness       random, numpy.random, os.urandom
device_memory    memory that ranks reach across: addresses, accesses, waits for a change
symmetric_memory torch's symmetric memory; symmetric_space (buffers), symmetric_rendezvous, symmetric_handle,
                 signal_pad, stream_words and symmetric_operators belong to it
memory_watch     torch operations of a rank on shared memory; touched says on which bytes
host_order       what orders the hosts of different ranks
shared_memory    multiprocessing.shared_memory, one name space a node
stage            puts all of it up once, for runs one after another
store            TCPStore and its kin: store_base, prefix_store, key_table, servers
group_calls      new_group and the registry of groups; batches of messages beside it
meeting          where the members of a new group find each other
second_life      a group made again under the keys of its first life
gpu/             simulated GPUs, opt-in
accelerator      just enough of one for init_process_group(device_id=...) and split_group
in_flight        asynchronous calls between issue and end; flight_watch sees who touches their tensors
operands         what an operator does to its tensors; operator_watch sees operators, base of the watches
rank_numbers     global ranks taken for group ranks
fault_port       where faults act: the end of a process, lost time, stores out of reach
probe            topology probes, and the modelled crash
mooncake/        the module `mooncake.pg` and the groups behind it
"""
