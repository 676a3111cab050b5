"""The only owner of torch's and Python's process-wide state while a simulation runs.

patches        set attributes, and set them back
context        what one simulated process has of its own
simulation     one run: scheduler, contexts, records
switching      which process-wide state is exchanged when another rank gets the baton
modules        instances of modules that belong to one rank
clock          time.*                        process        os, socket, signal, sys
threads        threads and locks of a rank   randomness     random, numpy.random
store          TCPStore, FileStore, HashStore, PrefixStore
selecting      selectors, and so asyncio
shared_memory  multiprocessing.shared_memory, one name space a node
group_calls    new_group and the registry of groups
mooncake_pg    stand-in for the module `mooncake.pg`
install        puts all of it in place, and takes it away
"""
